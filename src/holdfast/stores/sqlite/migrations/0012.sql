-- The columns of a run's row that no event determines (fence, owner, due, holds, turn) get a digest of their own (§12.1); existing rows are taken as
-- they are. Limits, their buckets and the calls that hold them get vouchers too.

ALTER TABLE run ADD COLUMN seal BLOB;
UPDATE run SET seal = standing(run_id, fence, owner, due, holds, turn);

INSERT INTO vouch SELECT '', 'limit', name, '', seal('limit', '', name, data), NULL FROM rule;
INSERT INTO vouch SELECT '', 'bucket', name, '', seal('bucket', '', name, full_at), NULL FROM bucket;
INSERT INTO vouch SELECT '', 'call', place || char(31) || name, run_id, seal('call', '', place || char(31) || name, owner, run_id, since), NULL FROM call;
