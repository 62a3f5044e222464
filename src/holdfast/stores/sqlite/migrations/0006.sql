-- What each worker works on (§10.11): its queues, and the shapes of the skills it has.
CREATE TABLE offer (
  owner TEXT PRIMARY KEY,
  data  BLOB NOT NULL
) STRICT, WITHOUT ROWID;
