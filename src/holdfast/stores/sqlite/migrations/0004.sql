-- The outbox at work (§9): who sends an intent, what receiver it shares with others, and the number of its latest attempt, by which a
-- settlement is compared. What is not in columns is in `data`; columns take precedence.

ALTER TABLE intent ADD COLUMN tenant_id TEXT NOT NULL DEFAULT 'default';
ALTER TABLE intent ADD COLUMN type TEXT NOT NULL DEFAULT '';
ALTER TABLE intent ADD COLUMN target TEXT NOT NULL DEFAULT '';   -- the receiver, as far as that can be told
ALTER TABLE intent ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE intent ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE intent ADD COLUMN carries INTEGER NOT NULL DEFAULT 1; -- 0: its payload has been dropped (§9.7)
UPDATE intent SET
  tenant_id = ifnull((SELECT r.tenant_id FROM run r WHERE r.run_id = intent.run_id), 'default'),
  type = holdfast_field(data, 2), attempts = holdfast_field(data, 8), created_at = holdfast_field(data, 6);

DROP INDEX intent_queued;
DROP INDEX intent_order;
DROP INDEX intent_settled;
-- Lanes are walked one after the other, so that a receiver with a long queue does not hold up the others.
CREATE INDEX intent_queued ON intent (type, tenant_id, target, order_key, due, id) WHERE state = 'queued';
-- Under one order key the oldest open intent comes first, whatever the result of its attempts (§9.4).
CREATE INDEX intent_order ON intent (tenant_id, type, order_key, id) WHERE order_key <> '' AND state IN ('queued', 'sending', 'unknown');
CREATE INDEX intent_stuck ON intent (state, id) WHERE state IN ('unknown', 'dead');
CREATE INDEX intent_settled ON intent (settled_at) WHERE settled_at IS NOT NULL AND carries = 1 AND state IN ('sent', 'abandoned');

-- The ledger is for people (§9.6): SELECT topic, key, json FROM ledger.
ALTER TABLE ledger ADD COLUMN step_id TEXT NOT NULL DEFAULT '';
ALTER TABLE ledger ADD COLUMN json TEXT;
UPDATE ledger SET json = holdfast_json(data);
CREATE INDEX ledger_topic ON ledger (topic, key, id);
