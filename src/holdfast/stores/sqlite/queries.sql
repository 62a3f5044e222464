-- Every statement the store runs, by name. One transaction is BEGIN IMMEDIATE, some of these, COMMIT. A step or an end of the only run that is driven
-- here is one statement and a transaction of its own.

-- name: begin
BEGIN IMMEDIATE;
-- name: commit
COMMIT;
-- name: rollback
ROLLBACK;
-- name: begin_read
-- A snapshot for verbs that read several tables.
BEGIN;

-- A step --------------------------------------------------------------------------------------------

-- name: lone_ways
-- A plain step or a plain end of the only run that is driven here is one statement, which is its own transaction: an INSERT into one of these views,
-- which store nothing. The triggers do what `steps_log` with `steps_run` or `ends_run` do for many; the next free id of the log is the newest by
-- construction, and `placed` passes it to the connection. Views and triggers are temporary, so that they are not in the file.
CREATE TEMP VIEW IF NOT EXISTS lone_step (run, seq, prev, hash, data, since, version, step, head, fence, followed) AS SELECT 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11;
CREATE TEMP TRIGGER IF NOT EXISTS lone_step_written INSTEAD OF INSERT ON lone_step
BEGIN
  INSERT INTO log (run, seq, prev, hash, data) VALUES (new.run, new.seq, new.prev, new.hash, new.data);
  UPDATE run SET seq = new.seq, tip = placed(last_insert_rowid()), since = new.since, version = new.version, step = new.step, head = new.head
  WHERE id = new.run AND fence = new.fence AND tip = new.prev AND (SELECT hash FROM log WHERE log.id = tip) = new.followed AND owner IS NOT NULL;
  SELECT raise(ABORT, 'refused') WHERE changes() <> 1;
END;
CREATE TEMP VIEW IF NOT EXISTS lone_end (run, seq, prev, hash, data, since, version, step, head, status, doc, fence, followed, ended)
AS SELECT 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14;
CREATE TEMP TRIGGER IF NOT EXISTS lone_end_written INSTEAD OF INSERT ON lone_end
BEGIN
  INSERT INTO log (run, seq, prev, hash, data) VALUES (new.run, new.seq, new.prev, new.hash, new.data);
  UPDATE run SET seq = new.seq, since = new.since, version = new.version, step = new.step, head = new.head, owner = NULL, due = NULL, holds = 0, status = new.status,
                 doc = ifnull(new.doc, doc), ended = new.ended, tip = placed(last_insert_rowid()), seal = standing(run_id, fence, NULL, NULL, 0, turn)
  WHERE id = new.run AND fence = new.fence AND tip = new.prev AND (SELECT hash FROM log WHERE log.id = tip) = new.followed AND owner IS NOT NULL
    AND status <> 'completed' AND status <> 'failed' AND status <> 'canceled' AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.run = new.run AND taken IS NULL);
  SELECT raise(ABORT, 'refused') WHERE changes() <> 1;
  INSERT OR REPLACE INTO tail (run, log) SELECT id, tip FROM run WHERE id = new.run;
END;
-- name: lone_step
INSERT INTO lone_step VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: lone_end
INSERT INTO lone_end VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: step_log
-- A row whose number is the next free one.
INSERT INTO log (run, seq, prev, hash, data) VALUES (?, ?, ?, ?, ?);
-- name: steps_log
INSERT INTO log (id, run, seq, prev, hash, data) VALUES (?, ?, ?, ?, ?, ?);
-- name: steps_run
-- The compare-and-set of a step: id, fence, and the tip by its number and its hash must all match, and the run must have an owner.
UPDATE run SET seq = ?, tip = ?, since = ?, version = ?, step = ?, head = ?
WHERE id = ? AND fence = ? AND tip = ? AND (SELECT hash FROM log WHERE log.id = tip) = ? AND owner IS NOT NULL;
-- name: ends_run
-- The compare-and-set of a plain end: as of a step, and the inbox must be read. A null doc leaves the cold part as it is.
UPDATE run SET seq = ?1, since = ?2, version = ?3, step = ?4, head = ?5, owner = NULL, due = NULL, holds = 0, status = ?6, doc = ifnull(?7, doc), ended = ?12, tip = ?13,
               seal = standing(run_id, fence, NULL, NULL, 0, turn)
WHERE id = ?8 AND fence = ?9 AND tip = ?10 AND (SELECT hash FROM log WHERE log.id = tip) = ?11 AND owner IS NOT NULL
  AND status <> 'completed' AND status <> 'failed' AND status <> 'canceled' AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.run = ?8 AND taken IS NULL);
-- name: tail_put
-- Where a run's log ends now, stored apart from the row, which cannot vouch for that itself.
INSERT OR REPLACE INTO tail (run, log) VALUES (?, ?);
-- name: tail_drop
DELETE FROM tail WHERE run = ?;
-- name: tail_get
SELECT log FROM tail WHERE run = ?;
-- name: last_log
SELECT ifnull(max(id), 0) FROM log;
-- name: birth_look
-- What a birth needs to know: the last run's number, the newest row's, the store's incarnation, whether the worker that takes it is known, who holds
-- its lane or is due in it, and how its thread ends, if that is asked.
SELECT (SELECT ifnull(max(id), 0) FROM run), (SELECT ifnull(max(id), 0) FROM log), (SELECT value FROM meta WHERE key = 'incarnation'), EXISTS (SELECT 1 FROM worker WHERE owner = ?1),
       EXISTS (SELECT 1 FROM run WHERE tenant_id = ?2 AND session_key = ?3 AND lane = ?4 AND holds = 1)
       OR EXISTS (SELECT 1 FROM run WHERE tenant_id = ?2 AND session_key = ?3 AND lane = ?4 AND due IS NOT NULL AND due <= ?5),
       ended.run_id, ended.version, ended.fence
FROM (SELECT 1) LEFT JOIN (
  SELECT run_id, version, fence FROM run INDEXED BY run_thread_turn
  WHERE thread_id = ?6 AND tenant_id = ?2 AND status IN ('completed', 'failed', 'canceled') ORDER BY turn DESC LIMIT 1
) ended;

-- Any other commit ----------------------------------------------------------------------------------

-- name: run_state
SELECT r.id, r.tip, r.fence, r.owner, r.holds, r.turn, r.status, l.hash, EXISTS (SELECT 1 FROM inbox WHERE run = r.id AND taken IS NULL),
       EXISTS (SELECT 1 FROM tail WHERE run = r.id AND log > r.tip), r.doc
FROM run r LEFT JOIN log l ON l.id = r.tip AND l.run = r.id WHERE r.run_id = ?;
-- name: thread_end
-- The newest ended run of a thread, by its turn.
SELECT run_id, version, fence FROM run INDEXED BY run_thread_turn
WHERE thread_id = ? AND tenant_id = ? AND status IN ('completed', 'failed', 'canceled') ORDER BY turn DESC LIMIT 1;
-- name: thread_next
SELECT min(turn) FROM run INDEXED BY run_thread_turn WHERE thread_id = ? AND tenant_id = ? AND run_id > ?;
-- name: run_insert
INSERT INTO run (seq, tip, since, version, step, head, fence, owner, due, holds, turn, whole, status, priority, fingerprint, doc,
                 run_id, tenant_id, skill_id, thread_id, session_key, lane, queue, parent_run_id, lineage_root, ended, seal)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, standing(?17, ?7, ?8, ?9, ?10, ?11));
-- name: runs_insert
-- Births of a group, with numbers assigned before. A lane that is held is refused by its index.
INSERT INTO run (seq, tip, since, version, step, head, fence, owner, due, holds, turn, whole, status, priority, fingerprint, doc,
                 run_id, tenant_id, skill_id, thread_id, session_key, lane, queue, parent_run_id, lineage_root, id, seal)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26,
        standing(?17, ?7, ?8, ?9, ?10, ?11));
-- name: run_update
-- The row was read in this transaction, so nothing needs comparing again. A null doc leaves the cold part as it is.
UPDATE run SET seq = ?1, tip = ?2, since = ?3, version = ?4, step = ?5, head = ?6, fence = ?7, owner = ?8, due = ?9, holds = ?10, behind = 0, turn = ?11, whole = ?12,
               status = ?13, priority = ?14, fingerprint = ?15, doc = ifnull(?16, doc), ended = ?18, seal = standing(run_id, ?7, ?8, ?9, ?10, ?11)
WHERE id = ?17;
-- name: whole_insert
INSERT INTO whole (run, seq, log, data) VALUES (?, ?, ?, ?);
-- name: carry_insert
INSERT INTO carry (source, run) SELECT id, ? FROM run WHERE run_id = ?;
-- name: carry_again
INSERT INTO carry (source, run) SELECT id, ? FROM run WHERE run_id = ? ON CONFLICT DO NOTHING;
-- name: predecessors
SELECT s.run_id FROM carry c JOIN run s ON s.id = c.source WHERE c.run = ?;
-- name: inbox_take
UPDATE inbox SET taken = ? WHERE run = ? AND key = ? AND taken IS NULL;
-- name: inbox_unread
SELECT EXISTS (SELECT 1 FROM inbox WHERE run = ? AND taken IS NULL);
-- name: inbox_untaken_keys
SELECT key FROM inbox WHERE run = ? AND taken IS NULL;
-- name: effects_under_way
SELECT effect_id FROM effect WHERE key = ? AND status IN ('attempted', 'unknown');
-- name: claim_put
-- Executed only if there is no claim, or one that is free again.
INSERT INTO claim (kind, scope, key, run_id, digest, expires_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET run_id = excluded.run_id, digest = excluded.digest, expires_at = excluded.expires_at;
-- name: claim_any
-- Also a claim that has expired: it has a voucher until it is taken again or its run is pruned. With the status of its run, if that is here.
SELECT c.run_id, c.digest, c.expires_at, r.status FROM claim c LEFT JOIN run r ON r.run_id = c.run_id WHERE c.kind = ? AND c.scope = ? AND c.key = ?;
-- name: keys_lost
-- Keys under which an effect was attempted, but no record is left.
SELECT c.run_id, c.key FROM claim c WHERE c.kind = 'effect' AND NOT EXISTS (SELECT 1 FROM effect e WHERE e.key = c.key) ORDER BY c.key LIMIT 100;
-- name: keys_free
DELETE FROM claim WHERE kind = 'effect' AND NOT EXISTS (SELECT 1 FROM effect e WHERE e.key = claim.key);
-- name: claims_all
SELECT kind, scope, key, run_id, digest, expires_at FROM claim ORDER BY kind, scope, key;
-- name: effect_upsert
INSERT INTO effect (effect_id, run_id, lineage_root, key, status, data, placed) VALUES (?, ?, ?, ?, ?, ?, (SELECT ifnull(max(id), 0) + 1 FROM effect))
ON CONFLICT (effect_id) DO UPDATE SET status = excluded.status, data = excluded.data;
-- name: effect_stands
SELECT EXISTS (SELECT 1 FROM effect WHERE effect_id = ? AND status = ?);
-- name: intent_upsert
INSERT INTO intent (intent_id, run_id, tenant_id, type, target, order_key, created_at, state, due, owner, lease_until, settled_at, attempts, carries, data, placed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
  (SELECT ifnull(max(id), 0) + 1 FROM intent))
ON CONFLICT (intent_id) DO UPDATE SET state = excluded.state, due = excluded.due, owner = excluded.owner, lease_until = excluded.lease_until,
  settled_at = excluded.settled_at, attempts = excluded.attempts, carries = excluded.carries, data = excluded.data;
-- name: ledger_insert
INSERT INTO ledger (id, run_id, topic, key, at, data, step_id, json) VALUES (?, ?, ?, ?, ?, ?, ?, ?);
-- name: ledger_last
SELECT ifnull(max(id), 0) FROM ledger;

-- name: blob_insert
INSERT INTO blob (sha256, size, created_at, data) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;
-- name: blob_use
INSERT INTO blob_use (run_id, sha256) SELECT ?, sha256 FROM blob WHERE sha256 = ? ON CONFLICT DO NOTHING;
-- name: blob_used
SELECT EXISTS (SELECT 1 FROM blob_use WHERE run_id = ? AND sha256 = ?);
-- name: blob_there
SELECT 1 FROM blob WHERE sha256 = ?;
-- name: blob_get
SELECT data FROM blob WHERE sha256 = ?;

-- What vouches for the records beside the log -------------------------------------------------------

-- name: vouch_put
INSERT INTO vouch (run, kind, id, seal, under, mark) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark;
-- name: vouch_new
INSERT INTO vouch (run, kind, id, seal, under, mark) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;
-- name: vouch_get
SELECT run, kind, id, seal, under, mark FROM vouch WHERE run = ? AND kind = ? AND id = ?;
-- name: vouch_of_run
SELECT run, kind, id, seal, under, mark FROM vouch WHERE run = ? AND kind = ? ORDER BY id;
-- name: vouch_between
SELECT run, kind, id, seal, under, mark FROM vouch WHERE run = ? AND kind = ? AND id > ? AND id <= ? ORDER BY id;
-- name: vouch_under
SELECT run, kind, id, seal, under, mark FROM vouch WHERE under = ? AND kind = ? AND under <> '' AND kind <> 'shelf' ORDER BY id;
-- name: vouch_under_any
SELECT run, kind, id, seal, under, mark FROM vouch WHERE under IN (SELECT value FROM json_each(?)) AND kind = ? AND under <> '' AND kind <> 'shelf' ORDER BY id;
-- name: vouch_untaken
SELECT run, kind, id, seal, under, mark FROM vouch INDEXED BY vouch_untaken WHERE run = ? AND kind = 'inbox' AND mark IS NULL ORDER BY id;
-- name: vouch_taken
UPDATE vouch SET mark = ? WHERE run = ? AND kind = 'inbox' AND id = ? AND mark IS NULL;
-- name: vouch_runless
-- Vouchers of runs that are not here: pruned runs leave the records that others share.
SELECT run, kind, id, seal, under, mark FROM vouch v WHERE run <> '' AND NOT EXISTS (SELECT 1 FROM run r WHERE r.run_id = v.run) ORDER BY run, kind, id;
-- name: vouch_drop
DELETE FROM vouch WHERE run = ? AND kind = ? AND id = ?;
-- name: place_effects
-- Records count at the place where they are now.
UPDATE effect SET placed = id WHERE placed IS NOT id;
-- name: place_inbox
UPDATE inbox SET placed = id WHERE placed IS NOT id;
-- name: place_intents
UPDATE intent SET placed = id WHERE placed IS NOT id;
-- name: place_schedules
UPDATE schedule SET placed = id WHERE placed IS NOT id;
-- name: vouch_many
-- Whether a run has more records beside its log than are checked in the event loop.
SELECT count(*) > 64 FROM (SELECT 1 FROM vouch WHERE run = ? LIMIT 65);
-- name: vouch_forget
DELETE FROM vouch;
-- name: roll
-- How many records of a kind there must be, and the sum of a digest of their ids.
SELECT kind, n, sum FROM roll;
-- name: roll_add
UPDATE roll SET n = n + 1, sum = sum + weigh(kind, ?2) WHERE kind = ?1;
-- name: roll_drop
UPDATE roll SET n = n - 1, sum = sum - weigh(kind, ?2) WHERE kind = ?1;
-- name: roll_forget
DELETE FROM roll;
-- name: roll_anew
INSERT INTO roll (kind, n, sum) VALUES (?, ?, ?);
-- name: tokens_known
-- All links that have a record or a voucher.
SELECT lower(hex(hash)) FROM token UNION SELECT id FROM vouch WHERE kind = 'token';
-- name: vouch_prune
DELETE FROM vouch WHERE run = ? AND kind <> 'effect';

-- Inbox ---------------------------------------------------------------------------------------------

-- name: inbox_insert
INSERT INTO inbox (run, key, put_at, command, placed) VALUES (?, ?, ?, ?, (SELECT ifnull(max(id), 0) + 1 FROM inbox)) ON CONFLICT (run, key) DO NOTHING;
-- name: inbox_get
SELECT key, command, put_at, iif(ifnull(placed, id) = id, taken, -1) FROM inbox WHERE run = ? AND key = ?;
-- name: inbox_wake
-- A run at rest becomes claimable in the transaction that puts something into its inbox (§10.16), unless it is interrupted (§10.6).
UPDATE run SET due = min(ifnull(due, ?1), ?1), seal = standing(run_id, fence, owner, min(ifnull(due, ?1), ?1), holds, turn)
WHERE id = ?2 AND owner IS NULL AND status <> 'completed' AND status <> 'failed' AND status <> 'canceled' AND NOT (due IS NULL AND status IN ('running', 'replaying'));
-- name: inbox_untaken
SELECT key, command, put_at, iif(ifnull(placed, id) = id, taken, -1) FROM inbox WHERE run = ? AND taken IS NULL ORDER BY id;
-- name: inbox_all
SELECT key, command, put_at, iif(ifnull(placed, id) = id, taken, -1) FROM inbox WHERE run = ? ORDER BY id;
-- name: inbox_kept
SELECT r.run_id, i.key, i.put_at, i.command, i.taken FROM inbox i JOIN run r ON r.id = i.run ORDER BY i.id;

-- Claims --------------------------------------------------------------------------------------------

-- name: next_queue
SELECT CAST(min(queue) AS BLOB) FROM run WHERE due IS NOT NULL AND owner IS NULL AND behind = 0 AND queue > CAST(? AS TEXT);
-- name: next_priority
-- Priorities are walked from the highest down, so that the due runs of each are one range of the index.
SELECT max(priority) FROM run WHERE due IS NOT NULL AND owner IS NULL AND behind = 0 AND queue = ? AND priority < ?;
-- name: next_tenant
-- Names are read and given as bytes: otherwise the search would never get past a name that is not a text.
SELECT CAST(min(tenant_id) AS BLOB) FROM run WHERE due IS NOT NULL AND owner IS NULL AND behind = 0 AND queue = ? AND priority = ? AND tenant_id > CAST(? AS TEXT);
-- name: claim_due
-- One range of due runs (timers, or runs due at once, which are stored below zero); within a range, the run that has waited longest comes first.
-- A run whose row lags behind its log is left: nothing can be written to it before it is repaired.
SELECT r.id, r.run_id, r.fence, r.owner, r.priority, r.due, r.holds, r.turn, r.queue, r.tenant_id
FROM run r
WHERE r.queue = ?1 AND r.priority = ?2 AND r.tenant_id = ?7 AND r.due > ?8 AND r.due <= ?9 AND r.due IS NOT NULL AND r.owner IS NULL AND r.behind = 0
  AND NOT EXISTS (SELECT 1 FROM tail a WHERE a.run = r.id AND a.log > r.tip)
  AND (?4 IS NULL OR r.skill_id IN (SELECT value FROM json_each(?4)))
  AND (?6 IS NULL OR r.fingerprint IN (SELECT value FROM json_each(?6))
    OR '*' || CASE instr(r.fingerprint, '@') WHEN 0 THEN '' ELSE substr(r.fingerprint, instr(r.fingerprint, '@')) END IN (SELECT value FROM json_each(?6)))
  AND (r.holds = 1 OR NOT EXISTS (
        SELECT 1 FROM run h WHERE h.tenant_id = r.tenant_id AND h.session_key = r.session_key AND h.lane = r.lane AND h.holds = 1
      ) AND NOT EXISTS (
        SELECT 1 FROM run p WHERE p.tenant_id = r.tenant_id AND p.session_key = r.session_key AND p.lane = r.lane
          AND p.turn < r.turn AND p.due IS NOT NULL AND p.due <= ?3
      ))
ORDER BY r.due, r.turn LIMIT ?5;
-- name: claim_orphans
-- Runs of an owner that is proven dead or whose lease has expired.
SELECT r.id, r.run_id, r.fence, r.owner, r.priority, ifnull(r.due, 0), NULL, r.turn, r.queue, r.tenant_id
FROM run r
WHERE r.owner = ?1 AND (?2 IS NULL OR r.queue IN (SELECT value FROM json_each(?2)))
  AND NOT EXISTS (SELECT 1 FROM tail a WHERE a.run = r.id AND a.log > r.tip)
  AND (?3 IS NULL OR r.skill_id IN (SELECT value FROM json_each(?3)))
  AND (?5 IS NULL OR r.fingerprint IN (SELECT value FROM json_each(?5))
    OR '*' || CASE instr(r.fingerprint, '@') WHEN 0 THEN '' ELSE substr(r.fingerprint, instr(r.fingerprint, '@')) END IN (SELECT value FROM json_each(?5)))
ORDER BY r.priority DESC, r.due LIMIT ?4;
-- name: claim_one
SELECT r.id, r.fence, r.owner, r.status, r.tenant_id, r.session_key, r.lane, r.holds, r.turn, r.queue, EXISTS (SELECT 1 FROM tail a WHERE a.run = r.id AND a.log > r.tip)
FROM run r WHERE r.run_id = ?;
-- name: lane_holder
SELECT run_id FROM run WHERE tenant_id = ? AND session_key = ? AND lane = ? AND holds = 1 AND id <> ?;
-- name: lane_blocker
-- The run that holds a lane, or else the first that is due in it before this turn. One compound query would cost five times as much.
SELECT (SELECT run_id FROM run WHERE tenant_id = ?1 AND session_key = ?2 AND lane = ?3 AND holds = 1 AND id <> ?4),
       (SELECT run_id FROM run WHERE tenant_id = ?1 AND session_key = ?2 AND lane = ?3 AND turn < ?5 AND due IS NOT NULL AND due <= ?6 AND id <> ?4
        ORDER BY turn LIMIT 1);
-- name: take_due
-- Due runs at rest are taken a hundred at a time, so no column is set whose index would be written needlessly.
UPDATE run SET owner = ?1, fence = fence + 1, holds = 1, seal = standing(run_id, fence + 1, ?1, due, 1, turn) WHERE id = ?2 AND fence = ?3;
-- name: take_due_holder
UPDATE run SET owner = ?1, fence = fence + 1, seal = standing(run_id, fence + 1, ?1, due, holds, turn) WHERE id = ?2 AND fence = ?3;
-- name: take
UPDATE run SET owner = ?1, fence = fence + 1, holds = 1, behind = 0, due = min(ifnull(due, ?2), ?2), seal = standing(run_id, fence + 1, ?1, min(ifnull(due, ?2), ?2), 1, turn)
WHERE id = ?3 AND fence = ?4;
-- name: behind_first
-- How many of the first due runs of a line stand behind a holder of their lane that is not about to go on.
SELECT count(*) FROM (
  SELECT tenant_id, session_key, lane, holds FROM run INDEXED BY run_due
  WHERE queue = ?1 AND priority = ?2 AND tenant_id = ?3 AND due <= ?4 AND due IS NOT NULL AND owner IS NULL AND behind = 0 ORDER BY due LIMIT ?5
) r WHERE r.holds = 0 AND EXISTS (
  SELECT 1 FROM run h INDEXED BY run_lane_holder WHERE h.tenant_id = r.tenant_id AND h.session_key = r.session_key AND h.lane = r.lane AND h.holds = 1
    AND (h.owner IS NOT NULL OR h.due IS NULL OR h.due > ?4));
-- name: behind_set
UPDATE run SET behind = 1 WHERE id IN (
  SELECT r.id FROM (
    SELECT id, tenant_id, session_key, lane, holds FROM run INDEXED BY run_due
    WHERE queue = ?1 AND priority = ?2 AND tenant_id = ?3 AND due <= ?4 AND due IS NOT NULL AND owner IS NULL AND behind = 0 ORDER BY due LIMIT ?5
  ) r WHERE r.holds = 0 AND EXISTS (
    SELECT 1 FROM run h INDEXED BY run_lane_holder WHERE h.tenant_id = r.tenant_id AND h.session_key = r.session_key AND h.lane = r.lane AND h.holds = 1
      AND (h.owner IS NOT NULL OR h.due IS NULL OR h.due > ?4))
  LIMIT ?6);
-- name: behind_lanes
-- Of some lanes with marked runs, from one on: the run whose mark is not valid, which is the holder itself, or the first marked run if nobody holds
-- the lane. One comparison of three columns would read all of a lane.
WITH RECURSIVE lane (id, n) AS (
  SELECT coalesce(
    (SELECT id FROM run INDEXED BY run_behind WHERE behind <> 0 AND tenant_id = ?1 AND session_key = ?2 AND lane > ?3 ORDER BY lane, turn LIMIT 1),
    (SELECT id FROM run INDEXED BY run_behind WHERE behind <> 0 AND tenant_id = ?1 AND session_key > ?2 ORDER BY session_key, lane, turn LIMIT 1),
    (SELECT id FROM run INDEXED BY run_behind WHERE behind <> 0 AND tenant_id > ?1 ORDER BY tenant_id, session_key, lane, turn LIMIT 1)), 1
  UNION ALL
  SELECT coalesce(
    (SELECT b.id FROM run b INDEXED BY run_behind WHERE b.behind <> 0 AND b.tenant_id = r.tenant_id AND b.session_key = r.session_key AND b.lane > r.lane
     ORDER BY b.lane, b.turn LIMIT 1),
    (SELECT b.id FROM run b INDEXED BY run_behind WHERE b.behind <> 0 AND b.tenant_id = r.tenant_id AND b.session_key > r.session_key
     ORDER BY b.session_key, b.lane, b.turn LIMIT 1),
    (SELECT b.id FROM run b INDEXED BY run_behind WHERE b.behind <> 0 AND b.tenant_id > r.tenant_id ORDER BY b.tenant_id, b.session_key, b.lane, b.turn LIMIT 1)),
    l.n + 1
  FROM lane l JOIN run r ON r.id = l.id WHERE l.n < ?4
)
SELECT r.tenant_id, r.session_key, r.lane, CASE WHEN h.id IS NULL THEN r.id WHEN h.behind <> 0 THEN h.id END
FROM lane l JOIN run r ON r.id = l.id
LEFT JOIN run h INDEXED BY run_lane_holder ON h.tenant_id = r.tenant_id AND h.session_key = r.session_key AND h.lane = r.lane AND h.holds = 1
ORDER BY l.n;
-- name: behind_clear
UPDATE run SET behind = 0 WHERE id = ?;

-- Workers -------------------------------------------------------------------------------------------

-- name: worker_insert
INSERT INTO worker (owner, started_at, expires_at, boot, ticks, host, pid) VALUES (?, ?, ?, ?, ?, ?, ?);
-- name: worker_renew
-- The row is written whole: what its owner says about itself counts.
UPDATE worker SET started_at = ?2, expires_at = ?3, boot = ?4, ticks = ?5, host = ?6, pid = ?7 WHERE owner = ?1;
-- name: worker_delete
DELETE FROM worker WHERE owner = ?;
-- name: worker_delete_idle
DELETE FROM worker WHERE owner = ?1 AND NOT EXISTS (SELECT 1 FROM run WHERE owner = ?1);
-- name: workers
SELECT owner, started_at, expires_at, boot, ticks, host, pid FROM worker ORDER BY started_at LIMIT 10000;
-- name: workers_holding
SELECT owner, started_at, expires_at, boot, ticks, host, pid FROM worker w WHERE EXISTS (SELECT 1 FROM run r WHERE r.owner = w.owner) ORDER BY started_at LIMIT 10000;
-- name: owners_lost
-- Owners of runs of whom there is no row: it was lost.
SELECT DISTINCT owner FROM run r INDEXED BY run_owner WHERE owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.owner = r.owner) LIMIT 1000;
-- name: worker
SELECT owner, started_at, expires_at, boot, ticks, host, pid FROM worker WHERE owner = ?;
-- name: offer_put
INSERT INTO offer (owner, data) VALUES (?, ?) ON CONFLICT (owner) DO UPDATE SET data = excluded.data;
-- name: offer_get
SELECT data FROM offer WHERE owner = ?;
-- name: offers_all
SELECT owner, data FROM offer ORDER BY owner;
-- name: offers_forget
DELETE FROM offer WHERE owner NOT IN (SELECT owner FROM worker);
-- name: vouch_offers_forget
DELETE FROM vouch WHERE run = '' AND kind = 'offer' AND id NOT IN (SELECT owner FROM worker);
-- name: worker_runs
SELECT count(*) FROM run WHERE owner = ?;
-- name: hand_back
-- The fence changes too, so that nothing its old owner is still about to write can be written.
UPDATE run SET owner = NULL, fence = fence + 1, due = ?1, seal = standing(run_id, fence + 1, NULL, ?1, holds, turn) WHERE owner = ?2;

-- Limits --------------------------------------------------------------------------------------------

-- name: rules
SELECT name, data FROM rule ORDER BY name;
-- name: rule_any
SELECT EXISTS (SELECT 1 FROM rule);
-- name: rule_put
INSERT INTO rule (name, data) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET data = excluded.data;
-- name: buckets
SELECT name, full_at FROM bucket;
-- name: bucket_put
INSERT INTO bucket (name, full_at) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET full_at = excluded.full_at;
-- name: held
SELECT owner, queue, tenant_id, count(*) FROM run INDEXED BY run_owner WHERE owner IS NOT NULL GROUP BY owner, queue, tenant_id;
-- name: calls
SELECT owner, name, count(*) FROM call INDEXED BY call_owner WHERE owner IS NOT NULL GROUP BY owner, name;
-- name: calls_all
SELECT place, name, owner, run_id, since FROM call ORDER BY place, name;
-- name: call_get
SELECT owner, since FROM call WHERE place = ? LIMIT 1;
-- name: call_put
INSERT INTO call (place, name, owner, run_id, since) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (place, name) DO UPDATE SET owner = excluded.owner, run_id = excluded.run_id, since = excluded.since;
-- name: call_left
DELETE FROM call WHERE place = ? AND owner = ? RETURNING place, name;
-- name: calls_left
DELETE FROM call WHERE owner = ? RETURNING place, name;
-- name: call_drop
DELETE FROM call WHERE place = ? AND owner IS NULL RETURNING place, name;
-- name: line
-- The runs that have waited longest for a limit and are not due yet.
SELECT r.id FROM call c JOIN run r ON r.run_id = c.run_id
WHERE c.name = ? AND c.owner IS NULL AND r.owner IS NULL AND r.due > ? ORDER BY c.since LIMIT ?;
-- name: asleep
-- A run at rest that is not due yet.
SELECT id FROM run WHERE run_id = ? AND owner IS NULL AND due > ?;
-- name: wake
UPDATE run SET due = ?1, seal = standing(run_id, fence, owner, ?1, holds, turn) WHERE id = ?2;
-- name: waiting_in
-- How many runs of a tenant wait in a queue and have not begun.
SELECT count(*) FROM run INDEXED BY run_due
WHERE due IS NOT NULL AND owner IS NULL AND behind = 0 AND queue = ? AND priority = ? AND tenant_id = ? AND status = 'pending';
-- name: waiting_behind
SELECT count(*) FROM run INDEXED BY run_behind WHERE behind <> 0 AND tenant_id = ? AND queue = ? AND status = 'pending';
-- name: backlog
SELECT r.queue, r.tenant_id, r.skill_id, r.fingerprint, count(*), sum(r.holds = 0 AND (EXISTS (
    SELECT 1 FROM run h WHERE h.tenant_id = r.tenant_id AND h.session_key = r.session_key AND h.lane = r.lane AND h.holds = 1
  ) OR EXISTS (
    SELECT 1 FROM run p WHERE p.tenant_id = r.tenant_id AND p.session_key = r.session_key AND p.lane = r.lane
      AND p.turn < r.turn AND p.due IS NOT NULL AND p.due <= ?1))),
  min(CASE WHEN r.due < 0 THEN r.due + 4611686018427387904 ELSE r.due END)
FROM (SELECT queue, tenant_id, skill_id, fingerprint, session_key, lane, holds, turn, due FROM run INDEXED BY run_due
        WHERE due IS NOT NULL AND owner IS NULL AND behind = 0 AND due <= ?1
      UNION ALL
      SELECT queue, tenant_id, skill_id, fingerprint, session_key, lane, holds, turn, due FROM run INDEXED BY run_behind
        WHERE behind <> 0 AND owner IS NULL AND due <= ?1) r
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;

-- Reads ---------------------------------------------------------------------------------------------

-- name: run_load
-- A run with its newest log row, and what else there is to read of it: most runs have no whole checkpoint, nothing in the inbox and no chunks. The
-- last column is whether the log goes on after the row's tip. Plain steps do not write to the table tail, so later ones are searched among the next
-- thousand log rows.
SELECT r.run_id, r.doc, r.status, r.version, r.step, r.head, r.fence, r.owner, r.due, r.id, r.tip, r.since, r.whole, l.seq, l.hash, l.data, l.prev,
       EXISTS (SELECT 1 FROM whole w WHERE w.run = r.id),
       EXISTS (SELECT 1 FROM inbox i WHERE i.run = r.id AND i.taken IS NULL)
         OR EXISTS (SELECT 1 FROM vouch v INDEXED BY vouch_untaken WHERE v.run = r.run_id AND v.kind = 'inbox' AND v.mark IS NULL),
       EXISTS (SELECT 1 FROM chunk c WHERE c.run = r.id AND c.gone IS NULL),
       EXISTS (SELECT 1 FROM tail a WHERE a.run = r.id AND a.log > r.tip)
         OR (r.status IN ('running', 'replaying') AND EXISTS (
           SELECT 1 FROM (SELECT n.run FROM log n WHERE n.id > r.tip ORDER BY n.id LIMIT 1000) WHERE run = r.id))
FROM run r LEFT JOIN log l ON l.id = r.tip AND l.run = r.id WHERE r.run_id = ?;
-- name: run_get
SELECT run_id, doc, status, version, step, head, fence, owner, due, EXISTS (SELECT 1 FROM tail WHERE tail.run = run.id AND log > tip) FROM run WHERE run_id = ?;
-- name: whole_newest
SELECT seq, log, data FROM whole WHERE run = ? ORDER BY seq DESC LIMIT 1;
-- name: whole_after
-- Skip pointers of forward paging.
SELECT log FROM whole WHERE run = ? AND seq > ? ORDER BY seq LIMIT 1 OFFSET ?;
-- name: log_back
-- The chain from a row back to, but without, another; newest first.
WITH RECURSIVE chain (id, prev) AS (
  SELECT id, prev FROM log WHERE id = ?1 AND id <> ?2 AND seq > ?3
  UNION ALL
  SELECT l.id, l.prev FROM chain c JOIN log l ON l.id = c.prev WHERE c.prev <> ?2 AND c.prev < c.id AND l.seq > ?3
)
SELECT l.seq, l.data, l.hash FROM chain c JOIN log l ON l.id = c.id;
-- name: log_page
-- The oldest rows of such a chain, up to a number. The join is in this order whatever the limit: the other order would scan the whole log.
WITH RECURSIVE chain (id, prev) AS (
  SELECT id, prev FROM log WHERE id = ?1 AND id <> ?2 AND seq > ?3
  UNION ALL
  SELECT l.id, l.prev FROM chain c JOIN log l ON l.id = c.prev WHERE c.prev <> ?2 AND c.prev < c.id AND l.seq > ?3
)
SELECT l.seq, l.data, l.hash FROM (SELECT id FROM chain ORDER BY id LIMIT ?4) c CROSS JOIN log l ON l.id = c.id ORDER BY l.id;
-- name: heads
-- The newest whole checkpoints of many runs.
SELECT r.run_id, w.data FROM run r LEFT JOIN whole w ON w.run = r.id AND w.seq = (SELECT max(n.seq) FROM whole n WHERE n.run = r.id)
WHERE r.run_id IN (SELECT value FROM json_each(?));
-- name: heads_back
-- The chains of many runs since their newest whole checkpoints.
WITH RECURSIVE chain (run_id, stop, id, prev) AS (
  SELECT r.run_id, coalesce((SELECT w.log FROM whole w WHERE w.run = r.id ORDER BY w.seq DESC LIMIT 1), 0) AS stop, l.id, l.prev
  FROM run r JOIN log l ON l.id = r.tip WHERE r.run_id IN (SELECT value FROM json_each(?))
  UNION ALL
  SELECT c.run_id, c.stop, l.id, l.prev FROM chain c JOIN log l ON l.id = c.prev WHERE c.id <> c.stop AND c.prev <> c.stop AND c.prev < c.id
)
SELECT c.run_id, l.seq, l.data, l.hash FROM chain c JOIN log l ON l.id = c.id WHERE c.id <> c.stop ORDER BY c.id;
-- name: run_tip
SELECT id, tip FROM run WHERE run_id = ?;
-- name: effects_of_run
SELECT effect_id, run_id, lineage_root, key, iif(ifnull(placed, id) = id, status, NULL), data FROM effect WHERE run_id = ? ORDER BY id;
-- name: effects_of_key
SELECT effect_id, run_id, lineage_root, key, iif(ifnull(placed, id) = id, status, NULL), data FROM effect WHERE key = ? ORDER BY id;
-- name: effects_of_lineage
SELECT effect_id, run_id, lineage_root, key, iif(ifnull(placed, id) = id, status, NULL), data FROM effect WHERE lineage_root = ? ORDER BY id;
-- name: effects_open
-- By the partial index of open attempts.
SELECT effect_id, run_id, lineage_root, key, iif(ifnull(placed, id) = id, status, NULL), data FROM effect INDEXED BY effect_open WHERE status IN ('attempted', 'unknown') ORDER BY id;
-- name: effects_all
SELECT effect_id, run_id, lineage_root, key, iif(ifnull(placed, id) = id, status, NULL), data FROM effect ORDER BY id;
-- name: effects_newest
SELECT effect_id, run_id, lineage_root, key, iif(ifnull(placed, id) = id, status, NULL), data FROM effect e
WHERE (?1 IS NULL OR EXISTS (SELECT 1 FROM run r WHERE r.run_id = e.run_id AND r.tenant_id = ?1))
  AND (?2 IS NULL OR status IN (SELECT value FROM json_each(?2))) ORDER BY id DESC LIMIT ?3;
-- name: effects_newest_open
-- By the partial index of open attempts.
SELECT effect_id, run_id, lineage_root, key, iif(ifnull(placed, id) = id, status, NULL), data FROM effect e INDEXED BY effect_open WHERE status IN ('attempted', 'unknown')
  AND (?1 IS NULL OR EXISTS (SELECT 1 FROM run r WHERE r.run_id = e.run_id AND r.tenant_id = ?1))
  AND status IN (SELECT value FROM json_each(?2)) ORDER BY id DESC LIMIT ?3;
-- name: tally_runs
SELECT status, count(*) FROM run INDEXED BY run_status GROUP BY status;
-- name: tally_runs_of
SELECT status, count(*) FROM run WHERE tenant_id = ? GROUP BY status;
-- name: tally_effects
SELECT status, count(*) FROM effect e WHERE (?1 IS NULL OR EXISTS (SELECT 1 FROM run r WHERE r.run_id = e.run_id AND r.tenant_id = ?1)) GROUP BY status;
-- name: effects_runless
SELECT effect_id, run_id, lineage_root, key, iif(ifnull(placed, id) = id, status, NULL), data FROM effect e WHERE NOT EXISTS (SELECT 1 FROM run r WHERE r.run_id = e.run_id) ORDER BY id;
-- Outbox --------------------------------------------------------------------------------------------

-- name: intents
SELECT data, tenant_id, state, due, owner, lease_until, settled_at, type, run_id, intent_id, target, order_key, created_at, iif(ifnull(placed, id) = id, attempts, NULL), carries FROM intent
-- name: intents_sending
SELECT data, tenant_id, state, due, owner, lease_until, settled_at, type, run_id, intent_id, target, order_key, created_at, iif(ifnull(placed, id) = id, attempts, NULL), carries, ticks FROM intent WHERE state = 'sending' ORDER BY id LIMIT 10000;
-- name: next_lane
-- The lane after (type, tenant, target, order key). One comparison of three columns would read all intents of the lane at which it begins.
SELECT * FROM (SELECT tenant_id, target, order_key FROM intent
  WHERE state = 'queued' AND type = ?1 AND tenant_id = ?2 AND target = ?3 AND order_key > ?4 ORDER BY order_key LIMIT 1)
UNION ALL SELECT * FROM (SELECT tenant_id, target, order_key FROM intent
  WHERE state = 'queued' AND type = ?1 AND tenant_id = ?2 AND target > ?3 ORDER BY target, order_key LIMIT 1)
UNION ALL SELECT * FROM (SELECT tenant_id, target, order_key FROM intent
  WHERE state = 'queued' AND type = ?1 AND tenant_id > ?2 ORDER BY tenant_id, target, order_key LIMIT 1)
LIMIT 1;
-- name: next_lane_first
SELECT tenant_id, target, order_key FROM intent WHERE state = 'queued' AND type = ? ORDER BY tenant_id, target, order_key LIMIT 1;
-- name: lane_due
SELECT data, tenant_id, state, due, owner, lease_until, settled_at, type, run_id, intent_id, target, order_key, created_at, iif(ifnull(placed, id) = id, attempts, NULL), carries FROM intent
WHERE state = 'queued' AND type = ? AND tenant_id = ? AND target = ? AND order_key = '' AND due <= ? ORDER BY due, id LIMIT ?;
-- name: lane_head
-- Under one order key only the oldest open intent is free, if it is due (§9.4).
SELECT i.data, i.tenant_id, i.state, i.due, i.owner, i.lease_until, i.settled_at, i.type, i.run_id, i.intent_id, i.target, i.order_key, i.created_at, iif(ifnull(i.placed, i.id) = i.id, i.attempts, NULL), i.carries FROM intent i
WHERE i.id = (SELECT e.id FROM intent e WHERE e.tenant_id = ?1 AND e.type = ?2 AND e.order_key = ?3 AND e.order_key <> ''
                AND e.state IN ('queued', 'sending', 'unknown') ORDER BY e.id LIMIT 1)
  AND i.state = 'queued' AND i.target = ?4 AND i.due <= ?5;
-- name: intents_of_run_due
SELECT i.data, i.tenant_id, i.state, i.due, i.owner, i.lease_until, i.settled_at, i.type, i.run_id, i.intent_id, i.target, i.order_key, i.created_at, iif(ifnull(i.placed, i.id) = i.id, i.attempts, NULL), i.carries FROM intent i
WHERE i.run_id = ?1 AND i.state = 'queued' AND i.due <= ?2
  AND (i.order_key = '' OR i.id = (
    SELECT e.id FROM intent e WHERE e.tenant_id = i.tenant_id AND e.type = i.type AND e.order_key = i.order_key AND e.order_key <> ''
      AND e.state IN ('queued', 'sending', 'unknown') ORDER BY e.id LIMIT 1))
ORDER BY i.id LIMIT ?3;
-- name: intents_named
SELECT data, tenant_id, state, due, owner, lease_until, settled_at, type, run_id, intent_id, target, order_key, created_at, iif(ifnull(placed, id) = id, attempts, NULL), carries FROM intent WHERE intent_id IN (SELECT value FROM json_each(?));
-- name: intent_take
UPDATE intent SET ticks = ?, state = ?, due = ?, owner = ?, lease_until = ?, settled_at = ?, attempts = ?, carries = ?, data = ? WHERE intent_id = ?;
-- name: intent_keep
UPDATE intent SET state = ?, due = ?, owner = ?, lease_until = ?, settled_at = ?, attempts = ?, carries = ?, data = ? WHERE intent_id = ?;
-- name: intents_renew
UPDATE intent SET lease_until = ?, ticks = ? WHERE state = 'sending' AND owner = ?;
-- name: intents_to_drop
SELECT data, tenant_id, state, due, owner, lease_until, settled_at, type, run_id, intent_id, target, order_key, created_at, iif(ifnull(placed, id) = id, attempts, NULL), carries FROM intent
WHERE settled_at < ? AND settled_at IS NOT NULL AND carries = 1 AND state IN ('sent', 'abandoned') ORDER BY settled_at LIMIT ?;
-- name: intents_held
SELECT intent_id, data, owner, lease_until, ticks FROM intent WHERE state = 'sending' AND run_id = ifnull(?, run_id);
-- name: intent_free
UPDATE intent SET lease_until = NULL, ticks = NULL WHERE intent_id = ?;
-- name: intent_counts
SELECT type, state, count(*), min(created_at) FROM intent GROUP BY type, state ORDER BY type, state;
-- name: ledger
SELECT run_id, topic, key, data, at, step_id, id FROM ledger

-- name: ledger_shown
SELECT id, json FROM ledger WHERE run_id = ?;

-- The store as a whole ------------------------------------------------------------------------------

-- name: meta_get
SELECT value FROM meta WHERE key = ?;
-- name: meta_wrote
-- Counts a write transaction that leaves no row in the log, and returns the store's incarnation.
INSERT INTO meta (key, value) VALUES ('writes', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1
RETURNING value, (SELECT m.value FROM meta m WHERE m.key = 'incarnation');
-- name: meta_set
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;
-- name: log_last
SELECT id, hash FROM log ORDER BY id DESC LIMIT 1;
-- name: log_hash
SELECT hash FROM log WHERE id = ?;
-- name: move_fences
-- A new incarnation: every earlier fence is refused from now on, and every run is at rest (§1.9, X-02).
UPDATE run SET fence = (?1 << 32) | (fence & 4294967295), due = CASE WHEN owner IS NULL THEN due ELSE ?2 END, owner = NULL,
  seal = standing(run_id, (?1 << 32) | (fence & 4294967295), NULL, CASE WHEN owner IS NULL THEN due ELSE ?2 END, holds, turn);
-- name: forget_workers
DELETE FROM worker;
-- name: vouch_forget_workers
DELETE FROM vouch WHERE run = '' AND kind = 'worker';
-- name: chain_page
SELECT l.id, l.run, l.seq, l.prev, l.hash, l.data FROM log l WHERE l.id > ? ORDER BY l.id LIMIT ?;
-- name: tips_page
SELECT r.id, r.run_id, r.tip, r.seq FROM run r WHERE r.id > ? ORDER BY r.id LIMIT ?;

-- Upkeep --------------------------------------------------------------------------------------------

-- name: run_ids
SELECT run_id FROM run WHERE run_id > ? ORDER BY run_id LIMIT ?;
-- name: run_raw
SELECT id, seq, tip, since, version, step, head, fence, owner, due, holds, turn, whole, run_id, status, tenant_id, skill_id, fingerprint,
  thread_id, session_key, lane, queue, priority, parent_run_id, lineage_root, doc, seal, ended
FROM run WHERE run_id = ?;
-- name: log_end
SELECT seq, hash FROM log WHERE id = ? AND run = ?;
-- name: log_end_doubted
-- Whether a run's log may go on after the row's tip, because the table tail says so or because of its status, and how much was written since.
SELECT t.log > r.tip OR r.status IN ('running', 'replaying'), (SELECT ifnull(max(id), 0) FROM log) - r.tip FROM run r LEFT JOIN tail t ON t.run = r.id WHERE r.run_id = ?;
-- name: log_beyond
-- The newest row of a run's log after the row's tip: a scan of all that was written since.
SELECT (SELECT max(l.id) FROM log l WHERE l.id > r.tip AND l.run = r.id) FROM run r WHERE r.run_id = ?;
-- name: log_orphans
-- Runs of which only the log is left; the key 0 belongs to no run (the last row of a pruned run).
SELECT run, max(id) FROM log WHERE run <> 0 AND run NOT IN (SELECT id FROM run) GROUP BY run;
-- name: log_first
WITH RECURSIVE chain (id, prev) AS (
  SELECT id, prev FROM log WHERE id = ?1
  UNION ALL
  SELECT l.id, l.prev FROM chain c JOIN log l ON l.id = c.prev WHERE c.prev < c.id
)
SELECT l.seq, l.data, l.hash FROM chain c JOIN log l ON l.id = c.id WHERE c.prev = 0;
-- name: whole_next
SELECT seq, data FROM whole WHERE run = ? AND seq > ? ORDER BY seq LIMIT 1;
-- name: carries
SELECT b.run_id, s.run_id FROM carry c JOIN run b ON b.id = c.run JOIN run s ON s.id = c.source
WHERE NOT EXISTS (SELECT 1 FROM whole w WHERE w.run = c.run AND w.seq = 0);
-- name: origin_insert
-- What a run carries from its thread, as a checkpoint before all others; loading from it reads the whole log.
INSERT INTO whole (run, seq, log, data) SELECT id, 0, 0, ? FROM run WHERE run_id = ? ON CONFLICT DO NOTHING;
-- name: run_delete
DELETE FROM run WHERE id = ?;
-- name: run_adopt
INSERT INTO run (id, seq, tip, since, version, step, head, fence, owner, due, holds, turn, whole, run_id, status, tenant_id, skill_id, fingerprint,
  thread_id, session_key, lane, queue, priority, parent_run_id, lineage_root, doc, seal, ended)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: run_adopted
UPDATE run SET tip = ?1, since = ?2, whole = ?3, due = ?4, seal = standing(run_id, fence, owner, ?4, holds, turn) WHERE id = ?5;
-- name: inbox_adopt
INSERT INTO inbox (run, key, put_at, taken, command, placed) VALUES (?, ?, ?, ?, ?, (SELECT ifnull(max(id), 0) + 1 FROM inbox));
-- name: claim_adopt
-- A key that is taken here already keeps its claim.
INSERT INTO claim (kind, scope, key, run_id, digest, expires_at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;
-- name: claims_of_run
SELECT kind, scope, key, digest, expires_at FROM claim WHERE run_id = ? AND kind <> 'effect' ORDER BY kind, scope, key;
-- name: claim_row
SELECT kind, scope, key, run_id, digest, expires_at FROM claim WHERE kind = ? AND scope = ? AND key = ?;
-- name: ended_before
-- Runs that ended before that time, from one on.
SELECT ended, id, lineage_root FROM run INDEXED BY run_ended WHERE ended < ?1 AND (ended, id) > (?2, ?3) ORDER BY ended, id LIMIT ?4;
-- name: ended_unknown
-- Runs that have ended, but without a column that says when.
SELECT id, lineage_root FROM run INDEXED BY run_end_unknown
WHERE ended IS NULL AND (status = 'completed' OR status = 'failed' OR status = 'canceled') AND id > ?1 ORDER BY id LIMIT ?2;
-- name: family
-- The runs of lineages, and of the lineages that are deleted or kept together with them: those of parents and children, and those that carry a thread
-- on from a run of theirs.
WITH RECURSIVE family (root) AS (
  SELECT value FROM json_each(?1)
  UNION
  SELECT o.lineage_root FROM family f CROSS JOIN run m ON m.lineage_root = f.root CROSS JOIN run o ON o.run_id = m.parent_run_id
  UNION
  SELECT o.lineage_root FROM family f CROSS JOIN run m ON m.lineage_root = f.root CROSS JOIN run o ON o.parent_run_id = m.run_id
  UNION
  SELECT o.lineage_root FROM family f CROSS JOIN run m ON m.lineage_root = f.root CROSS JOIN carry c ON c.source = m.id CROSS JOIN run o ON o.id = c.run
  WHERE ?2 AND NOT EXISTS (SELECT 1 FROM whole w WHERE w.run = c.run AND w.seq = 0)
)
SELECT r.id, r.run_id, r.lineage_root, r.parent_run_id, r.status, r.ended, CASE WHEN r.ended IS NULL THEN r.doc END
FROM family f CROSS JOIN run r ON r.lineage_root = f.root ORDER BY r.id;
-- name: carries_among
-- The newest first: the run that keeps a thread is at its end, and each run keeps the one before.
SELECT b.run_id, s.run_id FROM json_each(?) k CROSS JOIN carry c ON c.source = k.value CROSS JOIN run s ON s.id = c.source CROSS JOIN run b ON b.id = c.run
WHERE NOT EXISTS (SELECT 1 FROM whole w WHERE w.run = c.run AND w.seq = 0) ORDER BY b.id DESC;
-- name: open_among
-- Lineages with something that is not settled: an intent to be sent, or an effect with an unknown outcome.
SELECT r.lineage_root FROM json_each(?1) k CROSS JOIN run r ON r.id = k.value CROSS JOIN intent i ON i.run_id = r.run_id WHERE i.state IN ('queued', 'sending', 'unknown')
UNION
SELECT e.lineage_root FROM json_each(?2) k CROSS JOIN effect e INDEXED BY effect_lineage ON e.lineage_root = k.value WHERE e.status IN ('attempted', 'unknown');
-- name: log_among
-- The rows of runs, each found by the one that follows it: the log has no index by run, because every step would have to write it.
WITH RECURSIVE chain (id, prev, run) AS (
  SELECT l.id, l.prev, l.run FROM json_each(?1) k CROSS JOIN run r ON r.id = k.value CROSS JOIN log l ON l.id = r.tip AND l.run = r.id
  UNION ALL
  SELECT l.id, l.prev, l.run FROM chain c CROSS JOIN log l ON l.id = c.prev AND l.run = c.run WHERE c.prev < c.id
)
SELECT id, prev, run FROM chain;
-- name: log_scan
-- The same by a scan of the whole log, for runs whose chain is broken.
SELECT id FROM log WHERE run IN (SELECT value FROM json_each(?));
-- name: prune_log
DELETE FROM log WHERE id = ?;
-- name: empty_log
-- The newest row of all keeps its id and its hash, for the anchor, and loses its content.
UPDATE log SET run = 0, prev = 0, data = x'' WHERE id = ?;
-- name: prune_emptied
DELETE FROM log WHERE id = ? AND run = 0;
-- name: prune_whole
DELETE FROM whole WHERE run = ?;
-- name: prune_carry
DELETE FROM carry WHERE source = ?1 OR run = ?1;
-- name: prune_inbox
DELETE FROM inbox WHERE run = ?;
-- name: prune_token
DELETE FROM token WHERE run = ? RETURNING lower(hex(hash));
-- name: prune_effect
DELETE FROM effect WHERE effect_id = ?;
-- name: blobs_of_run
SELECT sha256 FROM blob_use WHERE run_id = ?;
-- name: prune_blob_use
DELETE FROM blob_use WHERE run_id = ? AND sha256 = ?;
-- name: prune_blob
DELETE FROM blob WHERE sha256 = ?1 AND NOT EXISTS (SELECT 1 FROM blob_use WHERE sha256 = ?1);
-- name: prune_intent
DELETE FROM intent WHERE run_id = ?;
-- name: prune_call
DELETE FROM call WHERE run_id = ? RETURNING place, name;
-- name: prune_ledger
DELETE FROM ledger WHERE run_id = ?;
-- name: prune_claim
DELETE FROM claim WHERE kind = ? AND scope = ? AND key = ? AND run_id = ? RETURNING run_id;
-- name: claims_expired
-- Expired keys of runs that were pruned.
SELECT kind, scope, key, run_id, digest, expires_at FROM claim
WHERE expires_at <= ? AND kind <> 'effect' AND EXISTS (SELECT 1 FROM pruned WHERE pruned.run_id = claim.run_id) LIMIT ?;

-- People --------------------------------------------------------------------------------------------

-- name: marked
-- Runs of an owner whose inbox has items that were not taken.
SELECT DISTINCT r.run_id FROM inbox i INDEXED BY inbox_untaken JOIN run r ON r.id = i.run WHERE i.taken IS NULL AND r.owner = ? LIMIT 10000;
-- name: token_insert
INSERT INTO token (hash, run, wait_id, tenant_id, actor, created_at, expires_at) VALUES (?, (SELECT id FROM run WHERE run_id = ?), ?, ?, ?, ?, ?);
-- name: token_get
SELECT t.hash, r.run_id, t.wait_id, t.tenant_id, t.actor, t.created_at, t.expires_at, t.used_at, t.revoked_at
FROM token t JOIN run r ON r.id = t.run WHERE t.hash = ?;
-- name: token_mark
UPDATE token SET used_at = ?, revoked_at = ? WHERE hash = ?;
-- name: tokens_open
SELECT hash FROM token WHERE run = ? AND wait_id = ? AND revoked_at IS NULL AND used_at IS NULL;
-- name: tokens_of_run
SELECT t.hash, r.run_id, t.wait_id, t.tenant_id, t.actor, t.created_at, t.expires_at, t.used_at, t.revoked_at
FROM token t JOIN run r ON r.id = t.run WHERE t.run = ? ORDER BY t.hash;
-- name: tokens_kept
SELECT t.hash, r.run_id, t.wait_id, t.tenant_id, t.actor, t.created_at, t.expires_at, t.used_at, t.revoked_at
FROM token t JOIN run r ON r.id = t.run ORDER BY t.hash;

-- Schedules -----------------------------------------------------------------------------------------

-- name: schedule_get
SELECT schedule_id, tenant_id, iif(ifnull(placed, id) = id, due, -1), data FROM schedule WHERE schedule_id = ?;
-- name: schedule_put
INSERT INTO schedule (schedule_id, tenant_id, due, data, placed) VALUES (?, ?, ?, ?, (SELECT ifnull(max(id), 0) + 1 FROM schedule))
ON CONFLICT (schedule_id) DO UPDATE SET tenant_id = excluded.tenant_id, due = excluded.due, data = excluded.data;
-- name: schedule_delete
DELETE FROM schedule WHERE schedule_id = ?;
-- name: schedules
SELECT schedule_id, tenant_id, iif(ifnull(placed, id) = id, due, -1), data FROM schedule ORDER BY due NULLS LAST, id LIMIT 10000;
-- name: schedules_kept
SELECT schedule_id, tenant_id, iif(ifnull(placed, id) = id, due, -1), data FROM schedule ORDER BY id;
-- name: schedules_due
SELECT schedule_id, tenant_id, iif(ifnull(placed, id) = id, due, -1), data FROM schedule WHERE due IS NOT NULL AND due <= ? ORDER BY due, id LIMIT 10000;

-- Shelves -------------------------------------------------------------------------------------------

-- name: shelf_put
INSERT INTO shelf (name, key, data) VALUES (?, ?, ?) ON CONFLICT (name, key) DO UPDATE SET data = excluded.data;
-- name: shelf_add
-- Adds a row if there is neither a row nor a voucher: a lost row is not replaced before that was reported.
INSERT INTO shelf (name, key, data) SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM vouch WHERE run = '' AND kind = 'shelf' AND id = ?4)
ON CONFLICT DO NOTHING RETURNING key;
-- name: shelf_get
-- The row and its voucher, read at the same moment; NULLs if either is missing.
SELECT s.name, s.key, s.data, v.run, v.kind, v.id, v.seal, v.under, v.mark FROM (SELECT 1)
LEFT JOIN shelf s ON s.name = ?1 AND s.key = ?2 LEFT JOIN vouch v ON v.run = '' AND v.kind = 'shelf' AND v.id = ?3;
-- name: shelf_scan
SELECT name, key, data FROM shelf WHERE name = ?1 AND key >= ?2 AND key < ?3 ORDER BY key LIMIT ?4;
-- name: shelves_all
SELECT name, key, data FROM shelf ORDER BY name, key;
-- name: shelf_names
-- The names of shelves with rows: one look into the index for each.
WITH RECURSIVE n (name) AS (
  SELECT min(name) FROM shelf UNION ALL SELECT (SELECT min(name) FROM shelf WHERE name > n.name) FROM n WHERE n.name IS NOT NULL
)
SELECT name FROM n WHERE name IS NOT NULL;
-- name: shelf_drop
DELETE FROM shelf WHERE name = ?1 AND key >= ?2 AND key < ?3;
-- name: vouch_shelf
-- The vouchers of the rows of a shelf within a range.
SELECT run, kind, id, seal, under, mark FROM vouch WHERE run = '' AND kind = 'shelf' AND id >= ?2 AND id < ?3 AND +under = ?1 ORDER BY id;
-- name: vouch_shelf_drop
DELETE FROM vouch WHERE run = '' AND kind = 'shelf' AND id >= ?2 AND id < ?3 AND +under = ?1 RETURNING seal;
-- name: shelf_count
-- Counts rows before their vouchers are written: what these replace is subtracted.
INSERT INTO shelf_roll (name, n, sum)
SELECT ?1, ?2 - count(*), ?3 - ifnull(sum(heft(seal)), 0) FROM vouch WHERE run = '' AND kind = 'shelf' AND id IN (SELECT value FROM json_each(?4))
ON CONFLICT (name) DO UPDATE SET n = n + excluded.n, sum = sum + excluded.sum;
-- name: shelf_discount
UPDATE shelf_roll SET n = n - ?2, sum = sum - ?3 WHERE name = ?1;
-- name: shelf_roll
SELECT name, n, sum FROM shelf_roll;
-- name: shelf_roll_forget
DELETE FROM shelf_roll;
-- name: shelf_roll_anew
INSERT INTO shelf_roll (name, n, sum) SELECT under, count(*), sum(heft(seal)) FROM vouch WHERE run = '' AND kind = 'shelf' GROUP BY under;

-- Runs that were pruned -----------------------------------------------------------------------------

-- name: pruned_get
SELECT run_id, at, by FROM pruned WHERE run_id = ?;
-- name: pruned_put
INSERT INTO pruned (run_id, at, by) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET at = excluded.at, by = excluded.by;
-- name: pruned_all
SELECT run_id, at, by FROM pruned ORDER BY run_id;

-- Chunks --------------------------------------------------------------------------------------------

-- name: chunk_put
INSERT INTO chunk (run, turn, last, data) VALUES (?, ?, ?, ?);
-- name: chunk_cut
DELETE FROM chunk WHERE run = ? AND turn = ? AND last < ?;
-- name: chunk_gone
UPDATE chunk SET gone = ? WHERE run = ? AND turn = ? AND gone IS NULL;
-- name: chunk_sweep
DELETE FROM chunk WHERE gone < ?;
-- name: chunks
SELECT c.serial, c.data, c.gone IS NOT NULL FROM chunk c JOIN run r ON r.id = c.run WHERE r.run_id = ? AND c.serial > ? ORDER BY c.serial LIMIT ?;
-- name: chunks_newest
SELECT data FROM chunk WHERE serial IN (SELECT max(serial) FROM chunk WHERE run = ? AND gone IS NULL GROUP BY turn) ORDER BY serial;
-- name: run_fence
SELECT id, fence FROM run WHERE run_id = ?;
-- name: prune_chunk
DELETE FROM chunk WHERE run = ?;
-- name: indexes_and_triggers
SELECT name, sql FROM sqlite_schema WHERE type IN ('index', 'trigger') AND sql IS NOT NULL;
-- name: triggers_made
SELECT name, tbl_name FROM sqlite_schema WHERE type = 'trigger' ORDER BY name;
