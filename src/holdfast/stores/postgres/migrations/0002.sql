-- Vouchers for the records beside the log (§12.1, core/vouch.py): a digest of each, written with it and stored apart from it. An altered
-- record does not match its voucher; a lost record leaves its voucher. Existing records are taken as they are.
CREATE TABLE holdfast.vouch (
  run   text NOT NULL,               -- whose record; '' for the store's own (claims, schedules, shelves, workers)
  kind  text NOT NULL,
  id    text COLLATE "C" NOT NULL,
  under text NOT NULL,               -- by what it is looked for, where that is not the id: an effect's key, a claim's run, a token, an intent
  seal  bytea NOT NULL,
  mark  bigint,                      -- of an inbox item: seq of the commit that consumed it
  PRIMARY KEY (run, kind, id)
) {hash run};
CREATE INDEX vouch_under ON holdfast.vouch (under, kind) WHERE under <> '';
CREATE INDEX vouch_untaken ON holdfast.vouch (run, id) WHERE kind = 'inbox' AND mark IS NULL;

-- Rows of other packages (§19.2): named shelves of bytes under keys, in the order of their bytes.
CREATE TABLE holdfast.shelf (
  name text NOT NULL,
  key  text COLLATE "C" NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (name, key)
);

-- Tombstones of pruned runs: nothing is written to these runs, or imported in their place, as if they had never existed.
CREATE TABLE holdfast.pruned (
  run_id text PRIMARY KEY,
  at     bigint NOT NULL,
  by     text NOT NULL
);

{tuned}
