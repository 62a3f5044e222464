-- What a run's row says that no event tells (fence, owner, due, holds, turn) carries a digest of its own (§12.1); rows that are here already
-- are taken as they are. Limits, what their rates have given and the calls that hold them are vouched for too.

ALTER TABLE run ADD COLUMN seal BLOB;
UPDATE run SET seal = standing(run_id, fence, owner, due, holds, turn);

INSERT INTO vouch SELECT '', 'limit', name, '', seal('limit', '', name, data), NULL FROM rule;
INSERT INTO vouch SELECT '', 'bucket', name, '', seal('bucket', '', name, full_at), NULL FROM bucket;
INSERT INTO vouch SELECT '', 'call', place || char(31) || name, run_id, seal('call', '', place || char(31) || name, owner, run_id, since), NULL FROM call;
