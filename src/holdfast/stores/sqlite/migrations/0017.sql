-- Where a run's log ended when its row was last written by anything but a plain step. The row says where its log ends, but it is only a cache: a row
-- that was restored from an older copy names an older end, and the log has no index by run that would show it. A row that names an older end than
-- this one lags behind its log.

CREATE TABLE tail (
  run INTEGER PRIMARY KEY,
  log INTEGER NOT NULL             -- log.id
) STRICT;
INSERT INTO tail (run, log) SELECT run, max(id) FROM log WHERE run <> 0 GROUP BY run;
