-- From whom an owner took a run over, and why, is included in the digest of the columns that no event determines, as long as the run has an owner: a
-- claim whose answer was lost is found again by them (§12.1). Without them the digest is the earlier one. All runs have lost their owners by the
-- migration.

CREATE OR REPLACE FUNCTION holdfast.standing(run_id text, fence bigint, owner text, due bigint, holds boolean, turn bigint, previous text, cause text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN owner IS NULL OR (previous IS NULL AND cause IS NULL) THEN holdfast.standing(run_id, fence, owner, due, holds, turn)
    ELSE substring(sha256(convert_to(run_id || chr(31) || fence || chr(31) || owner || chr(31) || coalesce(due::text, chr(30)) || chr(31)
    || CASE WHEN holds THEN '1' ELSE '0' END || chr(31) || turn || chr(31) || coalesce(previous, chr(30)) || chr(31) || coalesce(cause, chr(30)), 'UTF8')) FROM 1 FOR 16) END
$$;

UPDATE holdfast.run SET previous = NULL, cause = NULL WHERE previous IS NOT NULL OR cause IS NOT NULL;
