-- Large results (§6.4) are kept once, in the table blob of the first schema, under the hash of their bytes. Who names
-- which: a blob goes with the last of them. A run that is gone may still stand here, for an effect under a shared key.
CREATE TABLE blob_use (
  run_id TEXT NOT NULL,
  sha256 BLOB NOT NULL,
  PRIMARY KEY (run_id, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_use_blob ON blob_use (sha256);
