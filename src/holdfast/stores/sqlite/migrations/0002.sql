-- Large results (§6.4) are stored once, in the table blob of the first schema, under the hash of their bytes. This
-- table has the runs that refer to them: a blob is deleted with the last of these. A run that is gone may still be
-- here, for an effect under a shared key.
CREATE TABLE blob_use (
  run_id TEXT NOT NULL,
  sha256 BLOB NOT NULL,
  PRIMARY KEY (run_id, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_use_blob ON blob_use (sha256);
