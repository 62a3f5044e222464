-- Shelves, workers and what they offer get vouchers too (§12.1); existing records are taken as they are.

-- Tombstones of pruned runs: nothing is written to these runs, or imported in their place, as if they had never existed.
CREATE TABLE pruned (
  run_id TEXT PRIMARY KEY,
  at     INTEGER NOT NULL,
  by     TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO vouch SELECT '', 'shelf', name || char(31) || key, name, seal('shelf', '', name || char(31) || key, data), NULL FROM shelf;
INSERT INTO vouch SELECT '', 'worker', owner, '', seal('worker', '', owner, started_at, expires_at, boot, ticks, host, pid), NULL FROM worker;
INSERT INTO vouch SELECT '', 'offer', owner, '', seal('offer', '', owner, data), NULL FROM offer;
INSERT INTO vouch SELECT '', 'pruned', run_id, '', seal('pruned', '', run_id, at, by), NULL FROM pruned;
