-- Rows of others (§19.2): named shelves of bytes under keys, in the same file.

CREATE TABLE shelf (
  name TEXT NOT NULL,
  key  TEXT NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (name, key)
) STRICT, WITHOUT ROWID;
