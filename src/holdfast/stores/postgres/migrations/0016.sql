-- A row of a shelf may be lost, or put back from an older copy, together with its voucher. So the store says for each shelf how many rows there must be,
-- and the sum of a number from each voucher, which covers the row's content. Each connection counts in a row of its own, so that no transaction waits
-- for another. A voucher that is replaced notes the one before, which the statement that replaces it subtracts: another look-up could see an older one.
CREATE OR REPLACE FUNCTION holdfast.heft(seal bytea) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT ('x' || encode(substring(seal FROM 1 FOR 4), 'hex'))::bit(32)::bigint
$$;
ALTER TABLE holdfast.vouch ADD COLUMN was bytea;
CREATE TABLE holdfast.shelf_roll (
  name  text NOT NULL,
  shard integer NOT NULL,
  n     bigint NOT NULL,
  sum   bigint NOT NULL,
  PRIMARY KEY (name, shard)
) WITH (fillfactor = 50);
INSERT INTO holdfast.shelf_roll (name, shard, n, sum) SELECT under, 0, count(*), sum(holdfast.heft(seal)) FROM holdfast.vouch WHERE run = '' AND kind = 'shelf' GROUP BY under;
