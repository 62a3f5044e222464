-- The columns of a run's row that no event determines (fence, owner, due, holds, turn) get a digest of their own (§12.1, core/vouch.py); existing
-- rows are taken as they are. Limits, their buckets and the calls that hold them have vouchers from now on.

CREATE OR REPLACE FUNCTION holdfast.standing(run_id text, fence bigint, owner text, due bigint, holds boolean, turn bigint) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT substring(sha256(convert_to(run_id || chr(31) || fence || chr(31) || coalesce(owner, chr(30)) || chr(31) || coalesce(due::text, chr(30)) || chr(31)
    || CASE WHEN holds THEN '1' ELSE '0' END || chr(31) || turn, 'UTF8')) FROM 1 FOR 16)
$$;

ALTER TABLE holdfast.run ADD COLUMN seal bytea;
UPDATE holdfast.run SET seal = holdfast.standing(run_id, fence, owner, due, holds, turn);
