-- Vouchers for the records beside the log (§12.1, core/vouch.py): a digest of each, written with it and stored apart from it. An altered record does
-- not match its voucher; a lost record leaves its voucher. Existing records are taken as they are.

CREATE TABLE vouch (
  run   TEXT NOT NULL,             -- whose record; '' for the store's own (claims, schedules, shelves)
  kind  TEXT NOT NULL,
  id    TEXT NOT NULL,
  under TEXT NOT NULL,             -- by what it is looked for, where that is not the id: an effect's key, a claim's run, a token, an intent
  seal  BLOB NOT NULL,
  mark  INTEGER,                   -- of an inbox item: seq of the commit that consumed it
  PRIMARY KEY (run, kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX vouch_under ON vouch (under, kind) WHERE under <> '';
CREATE INDEX vouch_untaken ON vouch (run, id) WHERE kind = 'inbox' AND mark IS NULL;

INSERT INTO vouch SELECT run_id, 'effect', effect_id, key, seal('effect', run_id, effect_id, lineage_root, key, status, data), NULL FROM effect;
INSERT INTO vouch SELECT r.run_id, 'inbox', i.key, '', seal('inbox', r.run_id, i.key, i.put_at, i.command), i.taken FROM inbox i JOIN run r ON r.id = i.run;
INSERT INTO vouch SELECT '', 'claim', kind || char(31) || scope || char(31) || key, run_id,
  seal('claim', '', kind || char(31) || scope || char(31) || key, run_id, digest, expires_at), NULL FROM claim;
INSERT INTO vouch SELECT r.run_id, 'token', lower(hex(t.hash)), lower(hex(t.hash)),
  seal('token', r.run_id, lower(hex(t.hash)), t.wait_id, t.tenant_id, t.actor, t.created_at, t.expires_at, t.used_at, t.revoked_at), NULL
  FROM token t JOIN run r ON r.id = t.run;
INSERT INTO vouch SELECT run_id, 'intent', intent_id, intent_id,
  seal('intent', run_id, intent_id, tenant_id, type, target, order_key, created_at, state, due, owner, settled_at, attempts, carries, data), NULL FROM intent;
INSERT INTO vouch SELECT run_id, 'ledger', printf('%020d', id), '', seal('ledger', run_id, printf('%020d', id), topic, key, at, data, step_id), NULL FROM ledger;
INSERT INTO vouch SELECT '', 'schedule', schedule_id, '', seal('schedule', '', schedule_id, tenant_id, due, data), NULL FROM schedule;
