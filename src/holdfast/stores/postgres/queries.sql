-- Every statement the store runs, by name. {now} is the database's clock at the statement, {expiry} when a worker's leases expire.
-- Run rows are locked in the order of their ids, before anything else; a statement after that sees what others have committed.
-- Rows may be given as arrays. A condition that is always true, `b + 0 = b`, makes the planner expect a single row: each row is then looked up by its
-- key, however small the tables are, and the plan for any number of rows is as good as the one for this number, so that the server keeps it.
-- A run is found by its name, in the only index that has all runs; the bucket beside it says in which partition it is. A row that is locked already
-- may be written by its place in its partition, `ctid`: it stays at that place while it is locked.

-- name: begin
BEGIN;
-- name: bounded
-- Limits how long a client that is cut off in the middle of a transaction keeps its locks: meanwhile others could not take its runs over.
SELECT set_config('idle_in_transaction_session_timeout', '2000', true);
-- name: bounded_by_index
-- As `bounded`, and rows are searched in the order of an index. Dead index entries of a queue are skipped by such a search from the second time on; a
-- bitmap reads all of them each time, until they are vacuumed.
SELECT set_config('idle_in_transaction_session_timeout', '2000', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true);
-- name: planned_once
-- The statements after this one are long, and good plans for them are the same for all values. So the server is told not to plan them anew at each
-- use, as it would do because of the estimated cost of a generic plan, and not to compile them because of that estimate. As the plans last, they must
-- not depend on how many runs there were when they were made: they use the order of an index, and go row by row. With few runs, the server would
-- prefer to scan all names beside those it looks for.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true),
  set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),
  set_config('enable_mergejoin', 'off', true), set_config('enable_hashjoin', 'off', true);
-- name: begin_snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
-- name: commit
COMMIT;

-- A step --------------------------------------------------------------------------------------------

-- name: step
-- A step alone: one statement, one round trip. The run's row is locked in share mode, so that its fence cannot change; the key of the log lets only
-- one row follow another; the hash identifies that row. The condition on the owner is written so that the index of owners is not used: while a
-- snapshot is held, that index has all former owners.
WITH held AS MATERIALIZED (
  SELECT bucket, id FROM holdfast.run WHERE bucket = %s AND run_id = %s AND fence = %s AND coalesce(owner, '') <> '' FOR SHARE
)
INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data)
SELECT held.bucket, held.id, before.n + 1, %s, %s, %s, %s, %s, %s, %b, %b
FROM held JOIN holdfast.log before ON before.bucket = held.bucket AND before.run = held.id AND before.n = %s AND before.hash = %b
ON CONFLICT DO NOTHING;
-- name: steps
-- Steps of many runs. Returns the hashes of those that were written; why the others were not is examined afterwards.
-- OFFSET 0 makes the row before a look-up by the whole key: a join used bucket and run only, which read the run's whole log.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(%b::bigint[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::text[], %b::text[],
    %b::bytea[], %b::bytea[], %b::bigint[], %b::bytea[]) AS t (b, run, fence, seq, since, whole, version, step, head, hash, data, n, after)
), held AS MATERIALIZED (
  SELECT r.bucket, r.id, g.* FROM given g JOIN holdfast.run r ON r.bucket = g.b AND r.run_id = g.run
  WHERE r.fence = g.fence AND coalesce(r.owner, '') <> '' ORDER BY r.bucket, r.id FOR SHARE OF r
)
INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data)
SELECT h.bucket, h.id, h.n + 1, h.seq, h.since, h.whole, h.version, h.step, h.head, h.hash, h.data FROM held h
CROSS JOIN LATERAL (SELECT 1 FROM holdfast.log l WHERE l.bucket = h.bucket AND l.run = h.id AND l.n = h.n AND l.hash = h.after OFFSET 0) before
ON CONFLICT DO NOTHING
RETURNING hash;

-- Commits that write nothing beside -------------------------------------------------------------------

-- name: tell
-- Comes before the statement whose changes it announces; like `lock_rows`, it gets one plan from its first use on. Others are notified once that
-- transaction is committed.
SELECT pg_notify(%s, %s), set_config('plan_cache_mode', 'force_generic_plan', true);
-- name: births
-- Runs that begin at once or wait to begin: one statement, one round trip. Returns the names of those that were written. A run is not written
-- if it exists already, is of another generation of the store, is taken by an unknown worker, or begins in a lane that is not free; the reason is
-- examined afterwards.
WITH n AS MATERIALIZED (
  SELECT *, nextval('holdfast.number') AS turn FROM unnest(%(bucket)b::bigint[], %(run)b::text[], %(fence)b::bigint[], %(owner)b::text[], %(due)b::bigint[],
    %(holds)b::bigint[], %(status)b::text[], %(tenant)b::text[], %(skill)b::text[], %(fingerprint)b::text[], %(thread)b::text[], %(session)b::text[], %(lane)b::text[],
    %(queue)b::text[], %(priority)b::bigint[], %(parent)b::text[], %(root)b::text[], %(ended)b::bigint[], %(doc)b::bytea[], %(seq)b::bigint[], %(since)b::bigint[],
    %(whole)b::bigint[], %(version)b::bigint[], %(step)b::text[], %(head)b::text[], %(hash)b::bytea[], %(data)b::bytea[])
    AS t (bucket, run_id, fence, owner, due, holds, status, tenant_id, skill_id, fingerprint, thread_id, session_key, lane, queue, priority, parent_run_id,
      lineage_root, ended, doc, seq, since, whole, version, step, head, hash, data)
  WHERE bucket + 0 = bucket
), known AS MATERIALIZED (
  SELECT owner FROM holdfast.worker WHERE owner = ANY(ARRAY(SELECT DISTINCT owner FROM n WHERE owner IS NOT NULL)) FOR KEY SHARE
), may AS MATERIALIZED (
  SELECT n.*, CASE WHEN n.due = -4611686018427387904 THEN {at_once} ELSE n.due END AS due_at FROM n
  WHERE n.fence = (SELECT value << 32 | 1 FROM holdfast.meta WHERE key = 'incarnation')
    AND (n.owner IS NULL OR n.owner = ANY(ARRAY(SELECT owner FROM known)))
    AND (n.holds = 0 OR (NOT EXISTS (
        SELECT 1 FROM holdfast.run h WHERE h.tenant_id = n.tenant_id AND h.session_key = n.session_key AND h.lane = n.lane AND h.holds OFFSET 0
      ) AND NOT EXISTS (
        SELECT 1 FROM holdfast.run p WHERE p.tenant_id = n.tenant_id AND p.session_key = n.session_key AND p.lane = n.lane AND p.due IS NOT NULL AND NOT p.holds AND p.due <= {now} OFFSET 0)))
), r AS (
  INSERT INTO holdfast.run (bucket, run_id, fence, owner, due, holds, turn, status, tenant_id, skill_id, fingerprint, thread_id, session_key, lane, queue,
    priority, parent_run_id, lineage_root, ended, seal)
  SELECT bucket, run_id, fence, owner, due_at, holds <> 0, turn, status, tenant_id, skill_id, fingerprint, thread_id, session_key, lane, queue,
    priority, parent_run_id, lineage_root, ended, holdfast.standing(run_id, fence, owner, due_at, holds <> 0, turn) FROM may
  ON CONFLICT (bucket, run_id) DO NOTHING
  RETURNING bucket, id, run_id
), d AS (
  INSERT INTO holdfast.doc (bucket, run, data) SELECT r.bucket, r.id, n.doc FROM n JOIN r ON r.run_id = n.run_id
), l AS (
  INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data)
  SELECT r.bucket, r.id, 1, n.seq, n.since, n.whole, n.version, n.step, n.head, n.hash, n.data FROM n JOIN r ON r.run_id = n.run_id
)
SELECT run_id FROM r;
-- name: lock_rows
-- Locks runs, so that what a later statement sees of them cannot change. One plan serves for all values: by default the server would first make five
-- others, each for one use, over each connection, and making one takes longer than using it.
SELECT FROM (SELECT set_config('plan_cache_mode', 'force_generic_plan', true)) once CROSS JOIN unnest(%(bucket)b::bigint[], %(run)b::text[]) AS x (b, run)
JOIN holdfast.run r ON r.bucket = x.b AND r.run_id = x.run
WHERE x.b + 0 = x.b ORDER BY r.bucket, r.id FOR NO KEY UPDATE OF r;
-- name: moves
-- Commits of runs that were locked in this transaction, under the fence and after the row that each names. When a run is due and whether it holds its
-- lane depends on its state, so each has a value for either case. Not written are the end of a run whose inbox is unread, and commits that release a
-- lane in which a run is marked as standing behind. Returns the names of those that were written; why the others were not is examined afterwards. The
-- condition on the owner is written as in `step`.
WITH g AS MATERIALIZED (
  SELECT * FROM unnest(%(bucket)b::bigint[], %(run)b::text[], %(fence)b::bigint[], %(keeps)b::bigint[], %(due)b::bigint[], %(due_unread)b::bigint[], %(holds)b::bigint[],
    %(holds_anew)b::bigint[], %(status)b::text[], %(priority)b::bigint[], %(fingerprint)b::text[], %(ended)b::bigint[], %(doc)b::bytea[], %(n)b::bigint[], %(after)b::bytea[],
    %(seq)b::bigint[], %(since)b::bigint[], %(whole)b::bigint[], %(version)b::bigint[], %(step)b::text[], %(head)b::text[], %(hash)b::bytea[], %(data)b::bytea[])
    AS t (bucket, run_id, fence, keeps, due, due_unread, holds, holds_anew, status, priority, fingerprint, ended, doc, n, after, seq, since, whole, version, step, head, hash, data)
  WHERE bucket + 0 = bucket
), may AS MATERIALIZED (
  SELECT g.*, f.place, CASE WHEN g.keeps <> 0 THEN f.owner END AS owner, f.held, CASE f.due WHEN -4611686018427387904 THEN {at_once} ELSE f.due END AS due_at
  FROM g CROSS JOIN LATERAL (
    SELECT r.ctid AS place, r.owner, h.held, CASE WHEN i.unread THEN g.due_unread ELSE g.due END AS due FROM holdfast.run r
    CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM holdfast.inbox i WHERE i.bucket = r.bucket AND i.run = r.id AND i.taken IS NULL OFFSET 0) AS unread) i
    CROSS JOIN LATERAL (SELECT CASE WHEN r.holds THEN g.holds <> 0 ELSE g.holds_anew <> 0 END AS held) h
    WHERE r.bucket = g.bucket AND r.run_id = g.run_id AND r.fence = g.fence AND coalesce(r.owner, '') <> '' AND r.status NOT IN ('completed', 'failed', 'canceled')
      AND NOT (i.unread AND g.status IN ('completed', 'failed', 'canceled'))
      AND (h.held OR NOT EXISTS (SELECT 1 FROM holdfast.run b WHERE b.tenant_id = r.tenant_id AND b.session_key = r.session_key AND b.lane = r.lane AND b.behind OFFSET 0))
      AND EXISTS (SELECT 1 FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id AND l.n = g.n AND l.hash = g.after OFFSET 0)
      AND NOT EXISTS (SELECT 1 FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id AND l.n = g.n + 1 OFFSET 0) OFFSET 0) f
), moved AS (
  UPDATE holdfast.run r SET owner = may.owner, due = may.due_at, holds = may.held, behind = false, status = may.status, priority = may.priority,
    fingerprint = may.fingerprint, ended = may.ended, previous = NULL, cause = NULL,
    seal = holdfast.standing(r.run_id, r.fence, may.owner, may.due_at, may.held, r.turn)
  FROM may WHERE r.bucket = may.bucket AND r.run_id = may.run_id AND r.ctid = may.place
  RETURNING r.run_id, r.bucket, r.id, may.doc, may.n + 1 AS n, may.seq, may.since, may.whole, may.version, may.step, may.head, may.hash, may.data
), d AS (
  INSERT INTO holdfast.doc (bucket, run, data) SELECT bucket, id, doc FROM moved WHERE doc IS NOT NULL {part_doc_anew}
), l AS (
  INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data)
  SELECT bucket, id, n, seq, since, whole, version, step, head, hash, data FROM moved
)
SELECT run_id FROM moved;

-- name: takes
-- First commits of runs that were found due, which replace their claims. The runs were locked in this transaction; each must have the fence before
-- the one that the commit names, and end with the row that it names. Not written is a run that is held, has anything in its inbox, has a lane that is
-- not free, or is taken by an unknown worker; nor any if a limit is stored. Returns the names of those that were written; why the others were not is
-- examined afterwards.
WITH g AS MATERIALIZED (
  SELECT * FROM unnest(%(bucket)b::bigint[], %(run)b::text[], %(fence)b::bigint[], %(owner)b::text[], %(due)b::bigint[], %(status)b::text[], %(priority)b::bigint[],
    %(fingerprint)b::text[], %(doc)b::bytea[], %(n)b::bigint[], %(after)b::bytea[],
    %(seq)b::bigint[], %(since)b::bigint[], %(whole)b::bigint[], %(version)b::bigint[], %(step)b::text[], %(head)b::text[], %(hash)b::bytea[], %(data)b::bytea[])
    AS t (bucket, run_id, fence, owner, due, status, priority, fingerprint, doc, n, after, seq, since, whole, version, step, head, hash, data)
  WHERE bucket + 0 = bucket
), known AS MATERIALIZED (
  SELECT owner FROM holdfast.worker WHERE owner = ANY(ARRAY(SELECT DISTINCT owner FROM g)) FOR KEY SHARE
), may AS MATERIALIZED (
  SELECT g.*, f.id, f.place, CASE g.due WHEN -4611686018427387904 THEN {at_once} ELSE g.due END AS due_at FROM g CROSS JOIN LATERAL (
    SELECT r.id, r.ctid AS place FROM holdfast.run r WHERE r.bucket = g.bucket AND r.run_id = g.run_id AND r.fence = g.fence - 1 AND r.owner IS NULL AND r.status = 'pending' AND NOT r.behind
      AND {part_lane} OFFSET 0) f
  WHERE g.owner = ANY(ARRAY(SELECT owner FROM known)) AND NOT EXISTS (SELECT 1 FROM holdfast.rule)
    AND NOT EXISTS (SELECT 1 FROM holdfast.inbox i WHERE i.bucket = g.bucket AND i.run = f.id AND i.taken IS NULL OFFSET 0)
    AND EXISTS (SELECT 1 FROM holdfast.log l WHERE l.bucket = g.bucket AND l.run = f.id AND l.n = g.n AND l.hash = g.after OFFSET 0)
    AND NOT EXISTS (SELECT 1 FROM holdfast.log l WHERE l.bucket = g.bucket AND l.run = f.id AND l.n = g.n + 1 OFFSET 0)
), taken AS (
  UPDATE holdfast.run r SET fence = may.fence, owner = may.owner, due = may.due_at, holds = true, status = may.status, priority = may.priority,
    fingerprint = may.fingerprint, previous = NULL, cause = NULL,
    seal = holdfast.standing(r.run_id, may.fence, may.owner, may.due_at, true, r.turn)
  FROM may WHERE r.bucket = may.bucket AND r.run_id = may.run_id AND r.ctid = may.place
  RETURNING r.run_id, r.bucket, r.id, may.doc, may.n + 1 AS n, may.seq, may.since, may.whole, may.version, may.step, may.head, may.hash, may.data
), d AS (
  INSERT INTO holdfast.doc (bucket, run, data) SELECT bucket, id, doc FROM taken WHERE doc IS NOT NULL {part_doc_anew}
), l AS (
  INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data)
  SELECT bucket, id, n, seq, since, whole, version, step, head, hash, data FROM taken
)
SELECT run_id FROM taken;

-- Any other commit: what it needs to know ------------------------------------------------------------

-- name: lock_runs
SELECT r.run_id, r.fence, r.owner, r.holds, r.turn, r.status
FROM unnest(%(b)s::smallint[], %(run)s::text[]) AS x (b, run) JOIN holdfast.run r ON r.bucket = x.b AND r.run_id = x.run
WHERE x.b + 0 = x.b ORDER BY r.bucket, r.id FOR NO KEY UPDATE OF r;
-- name: see_runs
-- The ends of the logs, whether the inbox has more than is being taken, whether runs are marked as standing behind in the lane, and the owners'
-- leases; `mine` is the row that follows the one that the commit names, if there is one. OFFSET 0 makes that a look-up by the whole key, as in
-- `steps`.
SELECT x.run, t.n, t.hash, mine.hash, w.boot, {expiry} - {now}, i.unread,
  EXISTS (SELECT 1 FROM holdfast.run b WHERE b.tenant_id = r.tenant_id AND b.session_key = r.session_key AND b.lane = r.lane AND b.behind OFFSET 0),
  ARRAY(SELECT i.key FROM holdfast.inbox i WHERE i.bucket = r.bucket AND i.run = r.id AND i.taken IS NULL AND x.took::jsonb ? i.key),
  ARRAY(SELECT v.id FROM holdfast.vouch v WHERE v.run = x.run AND v.kind = 'inbox' AND v.mark IS NULL AND x.took::jsonb ? v.id)
FROM unnest(%(b)s::smallint[], %(run)s::text[], %(n)s::bigint[], %(took)s::text[]) AS x (b, run, n, took)
JOIN holdfast.run r ON r.bucket = x.b AND r.run_id = x.run
LEFT JOIN LATERAL (SELECT l.n, l.hash FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id ORDER BY l.n DESC LIMIT 1) t ON true
LEFT JOIN LATERAL (SELECT l.hash FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id AND l.n = x.n OFFSET 0) mine ON true
LEFT JOIN holdfast.worker w ON w.owner = r.owner
CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM holdfast.inbox i
  WHERE i.bucket = r.bucket AND i.run = r.id AND i.taken IS NULL AND NOT x.took::jsonb ? i.key) AS unread) i
WHERE x.b + 0 = x.b;
-- name: see_now
SELECT {now}, (SELECT value FROM holdfast.meta WHERE key = 'incarnation');
-- name: see_limits
-- Whether any limit is stored.
SELECT 1 FROM holdfast.rule LIMIT 1;
-- name: see_takers
SELECT owner FROM holdfast.worker WHERE owner = ANY(%(owners)s::text[]) ORDER BY owner FOR KEY SHARE;
-- name: see_lanes
-- Who holds each lane, and who is first due in it behind the holder.
SELECT x.run,
  (SELECT h.run_id FROM holdfast.run h WHERE h.tenant_id = x.tenant AND h.session_key = x.session AND h.lane = x.lane AND h.holds AND h.run_id <> x.run LIMIT 1),
  p.run_id, p.turn
FROM unnest(%(run)s::text[], %(tenant)s::text[], %(session)s::text[], %(lane)s::text[]) AS x (run, tenant, session, lane)
LEFT JOIN LATERAL (
  SELECT r.run_id, r.turn FROM holdfast.run r
  WHERE r.tenant_id = x.tenant AND r.session_key = x.session AND r.lane = x.lane AND r.due IS NOT NULL AND NOT r.holds AND r.due <= {now} AND r.run_id <> x.run
  ORDER BY r.turn LIMIT 1) p ON true
WHERE x.run || '' = x.run;
-- name: see_predecessors
SELECT r.run_id FROM unnest(%(b)s::smallint[], %(run)s::text[]) AS x (b, run) JOIN holdfast.run r ON r.bucket = x.b AND r.run_id = x.run
WHERE x.b + 0 = x.b ORDER BY r.bucket, r.id FOR KEY SHARE OF r;
-- name: see_claims
-- Also claims that have expired: they have vouchers until they are taken again or their run is pruned. The vouchers are read in the same statement,
-- because between two statements another commit may write both.
SELECT x.kind, x.scope, x.key, c.run_id, c.digest, c.expires_at, v.run, v.kind, v.id, v.seal, v.under, v.mark
FROM unnest(%(kind)s::text[], %(scope)s::text[], %(key)s::text[], %(id)s::text[]) AS x (kind, scope, key, id)
LEFT JOIN holdfast.claim c ON c.kind = x.kind AND c.scope = x.scope AND c.key = x.key
LEFT JOIN holdfast.vouch v ON v.run = %(own)s AND v.kind = 'claim' AND v.id = x.id
WHERE x.key || '' = x.key;
-- name: see_statuses
-- The statuses of the runs that have expired keys.
SELECT r.run_id, r.status FROM unnest(%(b)s::smallint[], %(run)s::text[]) AS x (b, run) JOIN holdfast.run r ON r.bucket = x.b AND r.run_id = x.run WHERE x.b + 0 = x.b;
-- name: see_tokens
-- The open links of waits.
SELECT {token} FROM {tokens} WHERE t.run_id = ANY(%(runs)s::text[]) AND t.wait_id = ANY(%(waits)s::text[]) AND t.used_at IS NULL AND t.revoked_at IS NULL
ORDER BY t.hash FOR UPDATE OF t;
-- name: see_numbers
SELECT nextval('holdfast.number') FROM generate_series(1, %(count)s);
-- name: see_effects
-- By the key alone, as in `marked_of`: the index of unsettled effects has all former ones too.
SELECT e.key, e.effect_id FROM unnest(%(keys)s::text[]) AS x (key) CROSS JOIN LATERAL (
  SELECT f.key, f.effect_id FROM holdfast.effect f WHERE f.key = x.key AND coalesce(f.status, '') IN ('attempted', 'unknown') OFFSET 0) e
WHERE x.key || '' = x.key;
-- name: see_blobs
SELECT sha256 FROM holdfast.blob WHERE sha256 = ANY(%(shas)s::text[]) ORDER BY sha256 FOR KEY SHARE;
-- name: see_schedules
SELECT schedule_id, tenant_id, CASE WHEN placed = id THEN due ELSE -1 END, data FROM holdfast.schedule WHERE schedule_id = ANY(%(ids)s::text[]) ORDER BY schedule_id FOR UPDATE;

-- Any other commit: what it writes -------------------------------------------------------------------

-- name: run_insert
WITH n AS MATERIALIZED (SELECT nextval('holdfast.number') AS turn), r AS (
  INSERT INTO holdfast.run (bucket, run_id, fence, owner, due, holds, turn, status, tenant_id, skill_id, fingerprint, thread_id, session_key, lane, queue,
    priority, parent_run_id, lineage_root, ended, seal)
  SELECT %s, %s, %s, %s, %s, %s, n.turn, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, holdfast.standing(%s, %s, %s, %s, %s, n.turn) FROM n
  RETURNING bucket, id
), d AS (
  INSERT INTO holdfast.doc (bucket, run, data) SELECT bucket, id, %b FROM r
)
INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data)
SELECT bucket, id, 1, %s, %s, %s, %s, %s, %s, %b, %b FROM r;
-- name: runs_insert
-- Many runs at once, numbered in the order in which they are given.
WITH n AS MATERIALIZED (
  SELECT *, nextval('holdfast.number') AS turn FROM unnest(%b::bigint[], %b::text[], %b::bigint[], %b::text[], %b::bigint[], %b::bigint[], %b::text[],
    %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::text[], %b::text[], %b::bigint[], %b::bytea[],
    %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::bytea[], %b::bytea[])
    AS t (bucket, run_id, fence, owner, due, holds, status, tenant_id, skill_id, fingerprint, thread_id, session_key, lane, queue, priority, parent_run_id,
      lineage_root, ended, doc, seq, since, whole, version, step, head, hash, data)
  WHERE bucket + 0 = bucket
), r AS (
  INSERT INTO holdfast.run (bucket, run_id, fence, owner, due, holds, turn, status, tenant_id, skill_id, fingerprint, thread_id, session_key, lane, queue,
    priority, parent_run_id, lineage_root, ended, seal)
  SELECT bucket, run_id, fence, owner, due, holds <> 0, turn, status, tenant_id, skill_id, fingerprint, thread_id, session_key, lane, queue,
    priority, parent_run_id, lineage_root, ended, holdfast.standing(run_id, fence, owner, due, holds <> 0, turn) FROM n
  RETURNING bucket, id, run_id
), d AS (
  INSERT INTO holdfast.doc (bucket, run, data) SELECT r.bucket, r.id, n.doc FROM n JOIN r ON r.run_id = n.run_id
)
INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data)
SELECT r.bucket, r.id, 1, n.seq, n.since, n.whole, n.version, n.step, n.head, n.hash, n.data FROM n JOIN r ON r.run_id = n.run_id;
-- name: part_update
-- Writes rows of runs that were locked in this transaction, so that nothing needs comparing again, and the log row of each. A null doc leaves the
-- cold part as it is, a null turn the place. A run that its owner keeps and that is due at once keeps its due value.
r AS MATERIALIZED (
  SELECT n.*, s.id, s.place, d.due_at, {part_differs} AS differs FROM n CROSS JOIN LATERAL (
    SELECT s.*, s.ctid AS place FROM holdfast.run s WHERE s.bucket = n.bucket AND s.run_id = n.run_id OFFSET 0) s
  CROSS JOIN LATERAL (SELECT CASE WHEN s.owner = n.owner AND s.due <= n.due AND n.due < 0 THEN s.due ELSE n.due END AS due_at) d
), written AS (
  UPDATE holdfast.run s SET fence = r.fence, owner = r.owner, due = r.due_at, holds = r.holds <> 0, behind = false, turn = r.turn, status = r.status, priority = r.priority,
    fingerprint = r.fingerprint, ended = r.ended, previous = NULL, cause = NULL,
    seal = holdfast.standing(s.run_id, r.fence, r.owner, r.due_at, r.holds <> 0, r.turn)
  FROM r WHERE r.differs AND s.bucket = r.bucket AND s.run_id = r.run_id AND s.ctid = r.place
), d AS (
  INSERT INTO holdfast.doc (bucket, run, data) SELECT bucket, id, doc FROM r WHERE doc IS NOT NULL {part_doc_anew}
)
INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data)
SELECT bucket, id, n, seq, since, whole, version, step, head, hash, data FROM r;
-- name: part_doc_anew
-- The cold part of an existing run; a lost one is written again.
ON CONFLICT (run, bucket) DO UPDATE SET data = excluded.data
-- name: part_differs
-- Whether the run's row differs from what is to be written. If it does not, it is not written: while a snapshot is held, each write leaves a dead
-- version, and every search for the run passes through them all.
(s.fence <> n.fence OR s.owner IS DISTINCT FROM n.owner OR s.due IS DISTINCT FROM d.due_at OR s.holds <> (n.holds <> 0) OR s.behind OR s.turn <> n.turn OR s.status <> n.status
    OR s.priority <> n.priority OR s.fingerprint <> n.fingerprint OR s.ended IS DISTINCT FROM n.ended OR s.previous IS NOT NULL OR s.cause IS NOT NULL)
-- name: run_update
WITH n AS MATERIALIZED (
  SELECT coalesce(t.kept, nextval('holdfast.number')) AS turn, t.* FROM (SELECT %s::bigint AS kept, %s::bigint AS fence, %s::text AS owner, %s::bigint AS due, %s::bigint AS holds,
    %s::text AS status, %s::integer AS priority, %s::text AS fingerprint, %s::bigint AS ended, %b::bytea AS doc, %s::smallint AS bucket, %s::text AS run_id, %s::bigint AS n,
    %s::bigint AS seq, %s::bigint AS since, %s::bigint AS whole, %s::bigint AS version, %s::text AS step, %s::text AS head, %b::bytea AS hash, %b::bytea AS data) t
), {part_update}
-- name: runs_update
-- Many runs at once.
WITH n AS MATERIALIZED (
  SELECT coalesce(t.kept, nextval('holdfast.number')) AS turn, t.* FROM unnest(%b::bigint[], %b::bigint[], %b::text[], %b::bigint[], %b::bigint[], %b::text[],
    %b::bigint[], %b::text[], %b::bigint[], %b::bytea[], %b::bigint[], %b::text[], %b::bigint[],
    %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::bytea[], %b::bytea[])
    AS t (kept, fence, owner, due, holds, status, priority, fingerprint, ended, doc, bucket, run_id, n, seq, since, whole, version, step, head, hash, data)
  WHERE t.bucket + 0 = t.bucket
), {part_update}
-- name: behind_next
-- In lanes that are released, removes the mark of the first run that stands behind. A run that is being written is skipped; it is found when the
-- lanes are checked.
UPDATE holdfast.run SET behind = false WHERE (bucket, run_id) IN (
  SELECT b.bucket, b.run_id FROM unnest(%(tenant)s::text[], %(session)s::text[], %(lane)s::text[]) AS x (tenant, session, lane) CROSS JOIN LATERAL (
    SELECT r.bucket, r.run_id FROM holdfast.run r WHERE r.tenant_id = x.tenant AND r.session_key = x.session AND r.lane = x.lane AND r.behind
    ORDER BY r.turn LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) b);
-- name: whole_insert
INSERT INTO holdfast.whole (bucket, run, seq, n, data) SELECT bucket, id, %s, %s, %b FROM holdfast.run WHERE bucket = %s AND run_id = %s;
-- name: carry_insert
INSERT INTO holdfast.carry (source, run) VALUES (%s, %s) ON CONFLICT DO NOTHING;
-- name: inbox_take
-- Takes all of them, or causes an error that aborts the transaction.
WITH took AS (
  UPDATE holdfast.inbox SET taken = %(seq)s WHERE (bucket, run) = (SELECT bucket, id FROM holdfast.run WHERE bucket = %(b)s AND run_id = %(run)s)
    AND key = ANY(%(keys)s::text[]) AND taken IS NULL RETURNING 1
), marked AS (
  UPDATE holdfast.vouch SET mark = %(seq)s WHERE run = %(run)s AND kind = 'inbox' AND id = ANY(%(keys)s::text[]) AND mark IS NULL
)
SELECT 1 / (count(*) = %(count)s)::int FROM took;
-- name: claim_insert
-- An expired key is free again; a key that was taken since the read causes an error that aborts the transaction.
WITH claimed AS (
  INSERT INTO holdfast.claim AS c (kind, scope, key, run_id, digest, expires_at) VALUES (%(kind)s, %(scope)s, %(key)s, %(run)s, %(digest)s, %(until)s)
  ON CONFLICT (kind, scope, key) DO UPDATE SET run_id = excluded.run_id, digest = excluded.digest, expires_at = excluded.expires_at
  WHERE c.expires_at <= {now} RETURNING 1
)
SELECT 1 / count(*) FROM claimed;
-- name: effect_upsert
INSERT INTO holdfast.effect (effect_id, run_id, lineage_root, key, status, data) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (key, effect_id) DO UPDATE SET status = excluded.status, data = excluded.data;
-- name: intent_upsert
INSERT INTO holdfast.intent (intent_id, run_id, tenant_id, type, target, order_key, created_at, state, due, owner, lease_until, settled_at, attempts, carries, data)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (intent_id) DO UPDATE SET state = excluded.state, due = excluded.due, owner = excluded.owner, lease_until = excluded.lease_until,
  settled_at = excluded.settled_at, attempts = excluded.attempts, carries = excluded.carries, data = excluded.data;
-- name: ledger_insert
INSERT INTO holdfast.ledger (id, run_id, topic, key, at, data, step_id, json) VALUES (%s, %s, %s, %s, %s, %s, %s, %s);
-- name: blob_insert
INSERT INTO holdfast.blob (sha256, data) VALUES (%s, %b) ON CONFLICT DO NOTHING;
-- name: blob_use
-- The blob's row is locked against prunes; a missing blob causes an error that aborts the transaction.
WITH b AS MATERIALIZED (SELECT sha256 FROM holdfast.blob WHERE sha256 = %s FOR KEY SHARE), u AS (
  INSERT INTO holdfast.blob_use (run_id, sha256) SELECT %s, sha256 FROM b ON CONFLICT DO NOTHING)
SELECT 1 / count(*) FROM b;
-- name: schedule_put
INSERT INTO holdfast.schedule (schedule_id, tenant_id, due, data) VALUES (%s, %s, %s, %s)
ON CONFLICT (schedule_id) DO UPDATE SET tenant_id = excluded.tenant_id, due = excluded.due, data = excluded.data;
-- name: schedule_insert
WITH added AS (
  INSERT INTO holdfast.schedule (schedule_id, tenant_id, due, data) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING 1
)
SELECT 1 / count(*) FROM added;

-- What vouches for the records beside the log -------------------------------------------------------

-- name: vouch_put
INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark)
SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::bytea[], %b::text[], %b::bigint[])
ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark;
-- name: vouch_of_run
SELECT run, kind, id, seal, under, mark FROM holdfast.vouch WHERE run = %s AND kind = %s;
-- name: vouch_all_of_run
SELECT run, kind, id, seal, under, mark FROM holdfast.vouch WHERE run = %s;
-- name: vouch_some
SELECT run, kind, id, seal, under, mark FROM holdfast.vouch WHERE run = %s AND kind = %s AND id = ANY(%s::text[]);
-- name: vouch_between
SELECT run, kind, id, seal, under, mark FROM holdfast.vouch WHERE run = %s AND kind = %s AND id > %s AND id <= %s;
-- name: vouch_under
SELECT run, kind, id, seal, under, mark FROM holdfast.vouch WHERE under = ANY(%s::text[]) AND kind = %s AND under <> '' AND kind <> 'shelf';
-- name: vouch_shelf
-- The vouchers of the rows that a scan returns: a range of the primary key. If the scan ends at its limit, so does this range.
SELECT run, kind, id, seal, under, mark FROM holdfast.vouch WHERE run = '' AND kind = 'shelf' AND under || '' = %(name)s
  AND id >= %(id)s AND id < %(id_end)s AND id <= coalesce((
    SELECT %(name)s::text || chr(31) || key FROM holdfast.shelf WHERE name = %(name)s AND key >= %(first)s AND key < %(end)s
    ORDER BY key OFFSET %(limit)s::bigint - 1 LIMIT 1), %(id_end)s) ORDER BY id;
-- name: vouch_untaken
SELECT run, kind, id, seal, under, mark FROM holdfast.vouch WHERE run = %s AND kind = 'inbox' AND mark IS NULL;
-- name: vouch_drop
DELETE FROM holdfast.vouch WHERE run = %s AND kind = %s AND id = ANY(%s::text[]);
-- name: place_anew
-- Records count at the place where they are now.
WITH e AS (UPDATE holdfast.effect SET placed = id WHERE placed IS DISTINCT FROM id),
  i AS (UPDATE holdfast.inbox SET placed = id WHERE placed IS DISTINCT FROM id),
  o AS (UPDATE holdfast.intent SET placed = id WHERE placed IS DISTINCT FROM id)
UPDATE holdfast.schedule SET placed = id WHERE placed IS DISTINCT FROM id;
-- name: vouch_forget
DELETE FROM holdfast.vouch;
-- name: roll
-- How many records of a kind there must be, and the sum of a digest of their ids.
SELECT kind, sum(n)::bigint, sum(sum)::bigint FROM holdfast.roll GROUP BY kind;
-- name: roll_add
INSERT INTO holdfast.roll (kind, shard, n, sum) VALUES (%(kind)s, mod(pg_backend_pid(), 64), 1, holdfast.weigh(%(kind)s, %(id)s))
ON CONFLICT (kind, shard) DO UPDATE SET n = roll.n + excluded.n, sum = roll.sum + excluded.sum;
-- name: roll_found
-- The same of the records and vouchers that exist: a record that is lost while its voucher remains is reported through the voucher.
SELECT kind, count(*), sum(holdfast.weigh(kind, id))::bigint FROM (
  SELECT 'schedule' AS kind, schedule_id AS id FROM holdfast.schedule UNION SELECT 'limit', name FROM holdfast.rule
  UNION SELECT 'token', encode(hash, 'hex') FROM holdfast.token UNION SELECT 'pruned', run_id FROM holdfast.pruned
  UNION SELECT kind, id FROM holdfast.vouch WHERE kind IN ('schedule', 'limit', 'token', 'pruned')) known GROUP BY kind;
-- name: roll_anew
WITH gone AS (DELETE FROM holdfast.roll WHERE shard <> 0)
INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT k.kind, 0, count(v.id), coalesce(sum(holdfast.weigh(k.kind, v.id)), 0)
FROM unnest(%s::text[]) AS k(kind) LEFT JOIN holdfast.vouch v ON v.kind = k.kind GROUP BY k.kind
ON CONFLICT (kind, shard) DO UPDATE SET n = excluded.n, sum = excluded.sum;
-- name: uses_runless
-- The large results that effects of pruned runs need, as recorded.
SELECT u.run_id, u.sha256 FROM holdfast.blob_use u WHERE NOT EXISTS (SELECT 1 FROM holdfast.run r WHERE r.run_id = u.run_id);
-- name: use_again
INSERT INTO holdfast.blob_use (run_id, sha256) SELECT %s, b.sha256 FROM holdfast.blob b WHERE b.sha256 = %s ON CONFLICT DO NOTHING;
-- name: needs
SELECT c.source, NULL FROM holdfast.carry c JOIN holdfast.run s ON s.run_id = c.source WHERE c.run = %(run)s
UNION ALL SELECT NULL, u.sha256 FROM holdfast.blob_use u WHERE u.run_id = %(run)s;
-- name: vouch_runless
-- Vouchers of runs that are not here: pruned runs leave the records that others share.
SELECT v.run, v.kind, v.id, v.seal, v.under, v.mark FROM holdfast.vouch v WHERE v.run <> '' AND NOT EXISTS (SELECT 1 FROM holdfast.run r WHERE r.run_id = v.run);
-- name: effects_runless
SELECT {effect} FROM {effects} WHERE NOT EXISTS (SELECT 1 FROM holdfast.run r WHERE r.run_id = e.run_id);
-- name: claims_page
SELECT kind, scope, key, run_id, digest, expires_at FROM holdfast.claim WHERE (kind, scope, key) > (%s, %s, %s) ORDER BY kind, scope, key LIMIT 1000;
-- name: claims_all
SELECT kind, scope, key, run_id, digest, expires_at FROM holdfast.claim;
-- name: keys_lost
-- Keys under which an effect was attempted, but no record is left.
SELECT c.run_id, c.key FROM holdfast.claim c WHERE c.kind = 'effect' AND NOT EXISTS (SELECT 1 FROM holdfast.effect e WHERE e.key = c.key) ORDER BY c.key LIMIT 100;
-- name: keys_free
DELETE FROM holdfast.claim c WHERE c.kind = 'effect' AND NOT EXISTS (SELECT 1 FROM holdfast.effect e WHERE e.key = c.key);
-- name: claims_lost
-- Vouchers of claims that do not exist.
SELECT v.run, v.kind, v.id, v.seal, v.under, v.mark FROM holdfast.vouch v WHERE v.run = '' AND v.kind = 'claim'
  AND NOT EXISTS (SELECT 1 FROM holdfast.claim c WHERE c.kind || chr(31) || c.scope || chr(31) || c.key = v.id) LIMIT 100;
-- name: schedules_all
SELECT schedule_id, tenant_id, CASE WHEN placed = id THEN due ELSE -1 END, data FROM holdfast.schedule;
-- name: shelves_all
SELECT name, key, data FROM holdfast.shelf;
-- name: workers_all
SELECT owner, started_at, ttl, boot, host, pid, expires_at - {now} FROM holdfast.worker;
-- name: offers_all
SELECT owner, data FROM holdfast.offer;
-- name: pruned_get
SELECT run_id, at, by FROM holdfast.pruned WHERE run_id = ANY(%s::text[]) ORDER BY run_id;
-- name: pruned_put
-- A run that came back and is pruned again is not counted twice.
WITH put AS (
  INSERT INTO holdfast.pruned (run_id, at, by) SELECT x, %s, %s FROM unnest(%s::text[]) AS x ON CONFLICT (run_id) DO UPDATE SET at = excluded.at, by = excluded.by
  RETURNING run_id, xmax = 0 AS new)
INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT 'pruned', mod(pg_backend_pid(), 64), count(*), sum(holdfast.weigh('pruned', run_id)) FROM put WHERE new HAVING count(*) > 0
ON CONFLICT (kind, shard) DO UPDATE SET n = roll.n + excluded.n, sum = roll.sum + excluded.sum;
-- name: pruned_all
SELECT run_id, at, by FROM holdfast.pruned;
-- name: tokens_of_run
SELECT {token} FROM {tokens} WHERE t.run_id = %s;
-- name: ledger_of_run
SELECT run_id, topic, key, data, at, step_id, id, json::text FROM holdfast.ledger WHERE run_id = %s;
-- name: inbox_kept
-- Every inbox item with its run, to vouch for all records anew.
SELECT r.run_id, i.key, i.put_at, i.command, i.taken FROM holdfast.inbox i JOIN holdfast.run r ON r.bucket = i.bucket AND r.id = i.run;
-- name: ledger_kept
SELECT run_id, topic, key, data, at, step_id, id FROM holdfast.ledger;
-- name: tokens_kept
SELECT {token} FROM {tokens};

-- Shelves -------------------------------------------------------------------------------------------

-- name: shelf_put
-- Rows and their vouchers, in one statement: a transaction of its own, in one round trip. Of the keys in ``once`` it returns those that are taken, by
-- a row or by the voucher of a lost row. It looks nothing up, because a plan with a look-up is not kept, but made anew each time.
WITH put AS (
  INSERT INTO holdfast.shelf (name, key, data) SELECT %(name)s, x.key, x.data FROM unnest(%(keys)s::text[], %(data)b::bytea[]) AS x (key, data)
  ON CONFLICT (name, key) DO UPDATE SET data = excluded.data WHERE shelf.key <> ALL(%(once)s::text[]) RETURNING key
), vouched AS (
  INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark)
  SELECT '', 'shelf', %(name)s::text || chr(31) || x.key, x.seal, %(name)s, NULL FROM unnest(%(keys)s::text[], %(seals)b::bytea[]) AS x (key, seal)
  WHERE x.key = ANY(ARRAY(SELECT key FROM put))
  ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark, was = vouch.seal
  WHERE vouch.id <> ALL(ARRAY(SELECT %(name)s::text || chr(31) || k FROM unnest(%(once)s::text[]) AS k)) RETURNING id, seal, was
), counted AS (
  INSERT INTO holdfast.shelf_roll (name, shard, n, sum)
  SELECT %(name)s, mod(pg_backend_pid(), 64), count(*) - count(was), sum(holdfast.heft(seal)) - coalesce(sum(holdfast.heft(was)), 0) FROM vouched HAVING count(*) > 0
  ON CONFLICT (name, shard) DO UPDATE SET n = shelf_roll.n + excluded.n, sum = shelf_roll.sum + excluded.sum
)
SELECT k FROM unnest(%(once)s::text[]) AS k WHERE %(name)s::text || chr(31) || k <> ALL(ARRAY(SELECT id FROM vouched));
-- name: shelf_some
SELECT key, data FROM holdfast.shelf WHERE name = %s AND key = ANY(%s::text[]);
-- name: shelf_new
-- Returns the existing row, if there is one; it is locked, so that it is the newest.
WITH put AS (
  INSERT INTO holdfast.shelf (name, key, data) VALUES (%(name)s, %(key)s, %(data)b) ON CONFLICT DO NOTHING RETURNING 1
), vouched AS (
  INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT '', 'shelf', %(id)s, %(seal)b, %(name)s, NULL FROM put
  ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark, was = vouch.seal RETURNING seal, was
), counted AS (
  INSERT INTO holdfast.shelf_roll (name, shard, n, sum)
  SELECT %(name)s, mod(pg_backend_pid(), 64), count(*) - count(was), sum(holdfast.heft(seal)) - coalesce(sum(holdfast.heft(was)), 0) FROM vouched HAVING count(*) > 0
  ON CONFLICT (name, shard) DO UPDATE SET n = shelf_roll.n + excluded.n, sum = shelf_roll.sum + excluded.sum
)
SELECT 1 FROM put;
-- name: shelf_get
SELECT name, key, data FROM holdfast.shelf WHERE name = %s AND key = %s;
-- name: shelf_scan
SELECT name, key, data FROM holdfast.shelf WHERE name = %(name)s AND key >= %(first)s AND key < %(end)s ORDER BY key LIMIT %(limit)s;
-- name: shelf_names
-- The names of shelves with rows: one look into the index for each.
WITH RECURSIVE n (name) AS (
  (SELECT name FROM holdfast.shelf ORDER BY name LIMIT 1)
  UNION ALL SELECT (SELECT s.name FROM holdfast.shelf s WHERE s.name > n.name ORDER BY s.name LIMIT 1) FROM n WHERE n.name IS NOT NULL
)
SELECT name FROM n WHERE name IS NOT NULL;
-- name: shelf_unvouch
-- Deletes the vouchers of rows that this transaction deletes, and counts them no longer.
WITH gone AS (DELETE FROM holdfast.vouch WHERE run = '' AND kind = 'shelf' AND id = ANY(%(ids)s::text[]) RETURNING seal)
INSERT INTO holdfast.shelf_roll (name, shard, n, sum) SELECT %(name)s, mod(pg_backend_pid(), 64), -count(*), -sum(holdfast.heft(seal)) FROM gone HAVING count(*) > 0
ON CONFLICT (name, shard) DO UPDATE SET n = shelf_roll.n + excluded.n, sum = shelf_roll.sum + excluded.sum;
-- name: shelf_roll
-- How many rows a shelf must have, and the sum of a number from each voucher.
SELECT name, sum(n)::bigint, sum(sum)::bigint FROM holdfast.shelf_roll GROUP BY name;
-- name: shelf_roll_forget
DELETE FROM holdfast.shelf_roll;
-- name: shelf_roll_anew
INSERT INTO holdfast.shelf_roll (name, shard, n, sum)
SELECT under, 0, count(*), sum(holdfast.heft(seal)) FROM holdfast.vouch WHERE run = '' AND kind = 'shelf' GROUP BY under;
-- name: shelf_drop
DELETE FROM holdfast.shelf WHERE name = %(name)s AND key >= %(first)s AND key < %(end)s RETURNING key;

-- Inbox ---------------------------------------------------------------------------------------------

-- name: lock_run
SELECT owner, status FROM holdfast.run WHERE bucket = %s AND run_id = %s FOR NO KEY UPDATE;
-- name: put
-- A run at rest becomes claimable in the transaction that puts something into its inbox, unless it is interrupted. Its row was locked before, so a
-- rest that is being committed is finished, and is seen. Returns the item that was there already, if any, with its voucher; or a row of nulls if
-- there was one and it is lost: then nothing is put in its place. The run is found first, in a query of its own, here and wherever its inbox is read:
-- without statistics, a join would begin with the inboxes of the whole bucket. The condition on the owner is written so that the run is not searched
-- for in the index of runs without an owner, by status: all of it would be read.
WITH put AS (
  INSERT INTO holdfast.inbox (bucket, run, key, put_at, command)
  SELECT bucket, id, %(key)s, %(at)s, %(command)b FROM holdfast.run WHERE bucket = %(b)s AND run_id = %(run)s
    AND NOT EXISTS (SELECT 1 FROM holdfast.vouch WHERE run = %(run)s AND kind = 'inbox' AND id = %(key)s)
  ON CONFLICT DO NOTHING RETURNING 1
), vouched AS (
  INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT %(run)s, 'inbox', %(key)s, %(seal)b, '', NULL FROM put ON CONFLICT DO NOTHING
), woken AS (
  UPDATE holdfast.run r SET due = least(r.due, n.once), seal = holdfast.standing(r.run_id, r.fence, r.owner, least(r.due, n.once), r.holds, r.turn)
  FROM (SELECT {at_once} AS once) n
  WHERE r.bucket = %(b)s AND r.run_id = %(run)s AND EXISTS (SELECT 1 FROM put) AND coalesce(r.owner, '') = '' AND r.status NOT IN ('completed', 'failed', 'canceled')
    AND NOT (r.due IS NULL AND r.status IN ('running', 'replaying')) RETURNING 1
)
SELECT i.key, i.command, i.put_at, CASE WHEN i.placed = i.id THEN i.taken ELSE -1 END, v.seal, v.mark FROM holdfast.inbox i
LEFT JOIN holdfast.vouch v ON v.run = %(run)s AND v.kind = 'inbox' AND v.id = i.key
WHERE (i.bucket, i.run) = (SELECT bucket, id FROM holdfast.run WHERE bucket = %(b)s AND run_id = %(run)s) AND i.key = %(key)s AND NOT EXISTS (SELECT 1 FROM put)
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL FROM holdfast.vouch v WHERE v.run = %(run)s AND v.kind = 'inbox' AND v.id = %(key)s AND NOT EXISTS (
  SELECT 1 FROM holdfast.inbox i WHERE (i.bucket, i.run) = (SELECT bucket, id FROM holdfast.run WHERE bucket = %(b)s AND run_id = %(run)s) AND i.key = %(key)s);
-- name: inbox_of
SELECT i.key, i.command, i.put_at, CASE WHEN i.placed = i.id THEN i.taken ELSE -1 END FROM holdfast.inbox i
WHERE (i.bucket, i.run) = (SELECT bucket, id FROM holdfast.run WHERE bucket = %(b)s AND run_id = %(run)s) AND (%(taken)s OR i.taken IS NULL) ORDER BY i.id;
-- name: inbox_get
SELECT i.key, i.command, i.put_at, CASE WHEN i.placed = i.id THEN i.taken ELSE -1 END, v.seal, v.mark FROM holdfast.inbox i
LEFT JOIN holdfast.vouch v ON v.run = %(run)s AND v.kind = 'inbox' AND v.id = i.key
WHERE (i.bucket, i.run) = (SELECT bucket, id FROM holdfast.run WHERE bucket = %(b)s AND run_id = %(run)s) AND i.key = %(key)s;
-- name: marked
-- Runs of an owner whose inbox has items that were not taken.
SELECT r.run_id FROM holdfast.run r WHERE r.owner = %s
  AND EXISTS (SELECT 1 FROM holdfast.inbox i WHERE i.bucket = r.bucket AND i.run = r.id AND i.taken IS NULL) LIMIT 10000;
-- name: marked_of
-- As `marked`, for the runs that are known to be driven here. `coalesce` prevents the use of the index of owners, also as a list of all owned runs:
-- while a snapshot is held, that index has all runs that were ever driven.
SELECT r.run_id FROM unnest(%(b)s::smallint[], %(run)s::text[]) AS x (b, run) CROSS JOIN LATERAL (
  SELECT f.bucket, f.id, f.run_id FROM holdfast.run f WHERE f.bucket = x.b AND f.run_id = x.run AND coalesce(f.owner, '') = %(owner)s OFFSET 0) r
WHERE x.b + 0 = x.b AND EXISTS (SELECT 1 FROM holdfast.inbox i WHERE i.bucket = r.bucket AND i.run = r.id AND i.taken IS NULL OFFSET 0) LIMIT 10000;

-- Claims --------------------------------------------------------------------------------------------

-- name: part_lines
-- Which owners are gone, which lines have runs to come, and whether nothing has to be counted: no limit is stored, and one tenant waits in each queue
-- and priority.
{part_gone}, {part_line}, simple AS MATERIALIZED (
  SELECT 1 WHERE %(simple)s::boolean AND NOT EXISTS (SELECT 1 FROM holdfast.rule) AND NOT EXISTS (
    SELECT 1 FROM (SELECT l.*, count(*) OVER (PARTITION BY l.queue, l.priority) AS among FROM line l WHERE %(queues)s::text[] IS NULL OR l.queue = ANY(%(queues)s::text[])) l
    WHERE l.n >= %(most_lines)s::bigint OR (l.among > 1 AND {part_live})
    GROUP BY l.queue, l.priority HAVING count(*) > 1 OR max(l.n) >= %(most_lines)s::bigint)
)
-- name: part_line
-- The queues, priorities and tenants with runs to come, from the last to the first: the lines that the claimer knows, with where each begins, and the
-- lines found above, between and below them, each after the one before. `n` is 0 for known lines: they may have no runs now. A search from the end of
-- a line meets the newest run first, which is not claimed yet: the entries of claimed runs come before it while a snapshot is held.
-- What is between two lines is several ranges of the index, each with its own ends, because a search does not stop at the end of a comparison of
-- rows.
line AS (
  (SELECT k.queue, k.priority::integer AS priority, k.tenant_id, k.begins, k.times, k.to_queue, k.to_priority, k.to_tenant, 0 AS n
   FROM unnest(%(in_queue)s::text[], %(in_priority)s::bigint[], %(in_tenant)s::text[], %(in_begins)s::bigint[], %(in_times)s::bigint[],
     (%(in_queue)s::text[])[2:], (%(in_priority)s::bigint[])[2:], (%(in_tenant)s::text[])[2:]) k (queue, priority, tenant_id, begins, times, to_queue, to_priority, to_tenant)
   WHERE k.to_queue IS NOT NULL)
  UNION ALL
  (SELECT f.queue, f.priority, f.tenant_id, -4611686018427387904, -1, b.queue, b.priority, b.tenant_id, 1
   FROM (SELECT (%(in_queue)s::text[])[1] AS queue, (%(in_priority)s::bigint[])[1] AS priority, (%(in_tenant)s::text[])[1] AS tenant_id) b CROSS JOIN LATERAL (
     ({part_coming} AND r.queue > b.queue ORDER BY r.queue DESC, r.priority DESC, r.tenant_id DESC LIMIT 1) UNION ALL
     ({part_coming} AND r.queue = b.queue AND r.priority > b.priority ORDER BY r.priority DESC, r.tenant_id DESC LIMIT 1) UNION ALL
     ({part_coming} AND r.queue = b.queue AND r.priority = b.priority AND r.tenant_id > b.tenant_id ORDER BY r.tenant_id DESC LIMIT 1) LIMIT 1) f)
  UNION ALL
  SELECT f.queue, f.priority, f.tenant_id, -4611686018427387904, -1, l.to_queue, l.to_priority, l.to_tenant, l.n + 1 FROM line l CROSS JOIN LATERAL (
    ({part_coming} AND r.queue = l.queue AND r.priority = l.priority AND r.tenant_id < l.tenant_id
        AND r.tenant_id > CASE WHEN (l.queue, l.priority) = (l.to_queue, l.to_priority) THEN l.to_tenant ELSE '' END ORDER BY r.tenant_id DESC LIMIT 1) UNION ALL
    ({part_coming} AND (l.queue, l.priority) <> (l.to_queue, l.to_priority) AND r.queue = l.queue AND r.priority < l.priority
        AND r.priority > CASE WHEN l.queue = l.to_queue THEN l.to_priority ELSE -2147483649 END ORDER BY r.priority DESC, r.tenant_id DESC LIMIT 1) UNION ALL
    ({part_coming} AND l.queue <> l.to_queue AND r.queue < l.queue AND r.queue > l.to_queue ORDER BY r.queue DESC, r.priority DESC, r.tenant_id DESC LIMIT 1) UNION ALL
    ({part_coming} AND l.queue <> l.to_queue AND l.to_queue <> '' AND r.queue = l.to_queue AND r.priority > l.to_priority ORDER BY r.priority DESC, r.tenant_id DESC LIMIT 1) UNION ALL
    ({part_coming} AND (l.queue, l.priority) <> (l.to_queue, l.to_priority) AND l.to_queue <> '' AND r.queue = l.to_queue AND r.priority = l.to_priority
        AND r.tenant_id > l.to_tenant ORDER BY r.tenant_id DESC LIMIT 1) LIMIT 1) f
  WHERE l.n < %(most_lines)s::bigint
)
-- name: part_coming
SELECT r.queue, r.priority, r.tenant_id FROM holdfast.run r WHERE r.due IS NOT NULL AND r.owner IS NULL AND NOT r.behind
-- name: part_live
-- Whether a line has runs to come.
(l.n > 0 OR EXISTS (
        SELECT 1 FROM holdfast.run r WHERE {part_of_line}
          AND r.due > -4611686018427387904 + l.begins AND r.due < 0 OFFSET 0
      ) OR EXISTS (
        SELECT 1 FROM holdfast.run r WHERE {part_of_line}
          AND r.due > l.times OFFSET 0))
-- name: part_due
-- The oldest due runs of each line; of equal priorities first those of the queue in which the oldest waited at the last look. OFFSET 0 keeps each
-- EXISTS a look-up in its index: otherwise the statistics of a quiet time make it a join, or a hash, that reads the queue.
{part_kind}, due AS MATERIALIZED (
  SELECT c.* FROM (SELECT queue, priority, tenant_id, begins, times FROM line WHERE EXISTS (SELECT 1 FROM simple)
    AND (%(queues)s::text[] IS NULL OR queue = ANY(%(queues)s::text[])) ORDER BY priority DESC, least(begins, times), queue) l
  CROSS JOIN LATERAL (SELECT d.bucket, d.run_id, d.place, d.id FROM kind k CROSS JOIN LATERAL (
    SELECT r.bucket, r.run_id, r.ctid AS place, r.id, r.due, r.turn FROM holdfast.run r
    WHERE r.queue = l.queue AND r.priority = l.priority AND r.tenant_id = l.tenant_id AND r.due IS NOT NULL AND r.due <= k.until
      AND r.due > {part_after}
      AND r.owner IS NULL AND NOT r.behind
      AND {part_fits}
      AND {part_lane}
    ORDER BY r.due, r.turn LIMIT %(limit)s::bigint
-- name: part_after
-- Where the search of a line begins for one kind of due: where the line is known to begin, unless the clock has gone back before that.
CASE WHEN NOT k.ahead AND k.origin + CASE WHEN k.origin = 0 THEN l.times ELSE l.begins END < k.until
      THEN greatest(k.after, k.origin + CASE WHEN k.origin = 0 THEN l.times ELSE l.begins END) ELSE k.after END
-- name: claim
-- The runs of owners that are proven dead or whose lease has expired, then the due runs. Priorities are walked from the highest down, so that the due
-- runs of each are one range of the index for each kind (`due_ranges` in stores/apply); the run that has waited longest comes first.
-- A run is left if its lane is held or has another run due before it. A run is skipped if another claim is taking it, or if it was written since the
-- statement began: its row is then at another place.
-- The claimer's own row is locked once there is something to take, so that nobody deletes it meanwhile: a claim that finds nothing writes nothing.
-- The runs of each owner that is gone are searched by the owner's name: a join with all owners could read the whole table if none is gone.
WITH RECURSIVE {part_lines}, orphans AS MATERIALIZED (
  SELECT o.bucket, o.run_id, o.place, gone.owner, gone.cause FROM gone CROSS JOIN LATERAL (
    SELECT r.bucket, r.run_id, r.ctid AS place, r.priority, r.due, r.turn FROM holdfast.run r
    WHERE r.owner = gone.owner AND EXISTS (SELECT 1 FROM simple) AND (%(queues)s::text[] IS NULL OR r.queue = ANY(%(queues)s::text[]))
      AND {part_fits}
    ORDER BY r.priority DESC, r.due, r.turn LIMIT %(limit)s::bigint FOR NO KEY UPDATE SKIP LOCKED) o
  ORDER BY o.priority DESC, o.due, o.turn LIMIT %(limit)s::bigint
), {part_due} FOR NO KEY UPDATE OF r SKIP LOCKED) d
    ORDER BY CASE WHEN k.ahead THEN 0 ELSE d.due - k.origin END, d.turn LIMIT %(limit)s::bigint
  ) c LIMIT greatest(%(limit)s::bigint - (SELECT count(*) FROM orphans), 0)
), me AS MATERIALIZED (
  SELECT owner FROM holdfast.worker WHERE owner = %(owner)s AND (EXISTS (SELECT 1 FROM orphans) OR EXISTS (SELECT 1 FROM due)) FOR KEY SHARE
), taken_over AS (
  UPDATE holdfast.run r SET owner = %(owner)s, fence = r.fence + 1, holds = true, due = least(r.due, n.once),
    previous = o.owner, cause = o.cause, seal = holdfast.standing(r.run_id, r.fence + 1, %(owner)s, least(r.due, n.once), true, r.turn, o.owner, o.cause)
  FROM orphans o, (SELECT {at_once} AS once) n WHERE r.bucket = o.bucket AND r.run_id = o.run_id AND r.ctid = o.place AND EXISTS (SELECT 1 FROM me)
  RETURNING r.run_id, r.fence, r.previous, r.cause, r.priority, r.due, r.turn
), {part_taken}
SELECT * FROM taken_over UNION ALL SELECT * FROM taken UNION ALL {part_nothing};
-- name: claim_single
-- As `claim`, for the usual case: a single line has runs to come, no owner is gone and nothing has to be counted. Most of what `claim` searches for
-- does not exist then, and starting so many searches takes longer than performing them. In any other case it takes nothing, and says so as `claim`
-- does.
WITH {part_gone}, line AS MATERIALIZED (
  SELECT k.* FROM unnest(%(in_queue)s::text[], %(in_priority)s::bigint[], %(in_tenant)s::text[], %(in_begins)s::bigint[], %(in_times)s::bigint[]) k (queue, priority, tenant_id, begins, times)
  WHERE k.begins IS NOT NULL
  UNION ALL (SELECT f.*, -4611686018427387904, -1 FROM ({part_coming} AND cardinality(%(in_begins)s::bigint[]) = 0
    ORDER BY r.queue DESC, r.priority DESC, r.tenant_id DESC LIMIT 1) f)
), simple AS MATERIALIZED (
  SELECT 1 WHERE %(simple)s::boolean AND NOT EXISTS (SELECT 1 FROM holdfast.rule) AND NOT EXISTS (SELECT 1 FROM gone) AND NOT EXISTS (
    SELECT 1 FROM line l CROSS JOIN LATERAL (
      ({part_coming} AND (r.queue, r.priority, r.tenant_id) > (l.queue, l.priority, l.tenant_id) ORDER BY r.queue, r.priority, r.tenant_id LIMIT 1) UNION ALL
      ({part_coming} AND (r.queue, r.priority, r.tenant_id) < (l.queue, l.priority, l.tenant_id) ORDER BY r.queue DESC, r.priority DESC, r.tenant_id DESC LIMIT 1)) other)
), {part_due} FOR NO KEY UPDATE OF r SKIP LOCKED) d
    ORDER BY CASE WHEN k.ahead THEN 0 ELSE d.due - k.origin END, d.turn LIMIT %(limit)s::bigint
  ) c LIMIT %(limit)s::bigint
), me AS MATERIALIZED (
  SELECT owner FROM holdfast.worker WHERE owner = %(owner)s AND EXISTS (SELECT 1 FROM due) FOR KEY SHARE
), {part_taken}
SELECT * FROM taken UNION ALL {part_nothing};
-- name: lone
-- What `claim` would take, up to two runs, without locks: how many they are, whether an owner that is gone has any, whether `claim` takes none
-- itself, how many workers are alive, and `claimers`. If it is a single run that is as its birth left it: that run, with its log row.
WITH RECURSIVE {part_lines}, {part_due}) d
    ORDER BY CASE WHEN k.ahead THEN 0 ELSE d.due - k.origin END, d.turn LIMIT %(limit)s::bigint
  ) c LIMIT %(limit)s::bigint
), orphan AS MATERIALIZED (
  SELECT 1 FROM gone CROSS JOIN LATERAL (SELECT 1 FROM holdfast.run r WHERE r.owner = gone.owner LIMIT 1) o LIMIT 1
), c AS MATERIALIZED (
  SELECT (SELECT count(*) FROM due) AS n, EXISTS (SELECT 1 FROM orphan) AS orphans, NOT EXISTS (SELECT 1 FROM simple) AS bounded,
    (SELECT count(*) FROM (SELECT 1 FROM holdfast.worker w WHERE {expiry} > {now} LIMIT %(most)s::bigint) w) AS workers,
    ARRAY(SELECT ARRAY[w.owner, w.boot] FROM holdfast.worker w WHERE w.boot = %(boot)s OR w.owner = %(owner)s ORDER BY w.owner LIMIT 10000) AS known
)
SELECT c.n, c.orphans, c.bounded, c.workers, c.known, l.* FROM c LEFT JOIN LATERAL (
  SELECT {born} FROM due JOIN holdfast.run r ON r.bucket = due.bucket AND r.run_id = due.run_id JOIN holdfast.log t ON t.bucket = r.bucket AND t.run = r.id AND t.n = 1
  WHERE c.n = 1 AND NOT c.orphans AND {part_unbegun}) l ON true;
-- name: part_taken
-- The rows of the due runs are locked, and are at the places where they were seen.
taken AS (
  UPDATE holdfast.run r SET owner = %(owner)s, fence = r.fence + 1, holds = true, previous = NULL, cause = NULL,
    seal = holdfast.standing(r.run_id, r.fence + 1, %(owner)s, r.due, true, r.turn) FROM due
  WHERE r.bucket = due.bucket AND r.run_id = due.run_id AND r.ctid = due.place AND EXISTS (SELECT 1 FROM me)
  RETURNING r.run_id, r.fence, r.previous, r.cause, r.priority, r.due, r.turn
)
-- name: part_nothing
SELECT NULL, 0, NULL, NULL, 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM simple)
-- name: part_lane
-- The run holds its lane; or nobody holds the lane, and no run is due in it before this one. OFFSET 0 keeps each EXISTS a look-up.
(r.holds OR (NOT EXISTS (
          SELECT 1 FROM holdfast.run h WHERE h.tenant_id = r.tenant_id AND h.session_key = r.session_key AND h.lane = r.lane AND h.holds OFFSET 0
        ) AND NOT EXISTS (
          SELECT 1 FROM holdfast.run p WHERE p.tenant_id = r.tenant_id AND p.session_key = r.session_key AND p.lane = r.lane
            AND p.turn < r.turn AND p.due IS NOT NULL AND NOT p.holds AND p.due <= {now} OFFSET 0)))
-- name: part_gone
-- The owners whose runs may be taken over.
gone AS MATERIALIZED (
  SELECT w.owner, CASE WHEN w.owner = ANY(%(dead)s::text[]) THEN 'owner_dead' ELSE 'expired' END AS cause FROM holdfast.worker w
  WHERE w.owner <> %(owner)s AND (w.owner = ANY(%(dead)s::text[]) OR {expiry} <= {now})
)
-- name: part_kind
-- Due at once and stamped by a clock ahead, due at once, and due since a time: each is one range of the index.
kind AS MATERIALIZED (
  SELECT k.* FROM (SELECT {now} AS at, -4611686018427387904 AS once) n CROSS JOIN LATERAL (VALUES
    (once + at, -1::bigint, once, true), (2 * once, once + at, once, false), (-1, at, 0, false)) k (after, until, origin, ahead)
)
-- name: part_of_line
r.queue = l.queue AND r.priority = l.priority AND r.tenant_id = l.tenant_id AND r.due IS NOT NULL AND r.owner IS NULL AND NOT r.behind
-- name: part_fits
-- The claimer has the run's skill, in the shape in which the run was begun.
(%(skills)s::text[] IS NULL OR r.skill_id = ANY(%(skills)s::text[]))
      AND (%(shapes)s::text[] IS NULL OR r.fingerprint = ANY(%(shapes)s::text[]) OR '*' || coalesce(substring(r.fingerprint from '@.*'), '') = ANY(%(shapes)s::text[]))
-- name: part_unbegun
-- The run is as its birth left it.
r.status = 'pending' AND NOT EXISTS (SELECT 1 FROM holdfast.log m WHERE m.bucket = r.bucket AND m.run = r.id AND m.n = 2 OFFSET 0)
    AND NOT EXISTS (SELECT 1 FROM holdfast.whole w WHERE w.bucket = r.bucket AND w.run = r.id OFFSET 0)
    AND NOT EXISTS (SELECT 1 FROM holdfast.inbox i WHERE i.bucket = r.bucket AND i.run = r.id AND i.taken IS NULL OFFSET 0)
    AND NOT EXISTS (SELECT 1 FROM holdfast.vouch v WHERE v.run = r.run_id AND v.kind = 'inbox' AND v.mark IS NULL OFFSET 0)
    AND NOT EXISTS (SELECT 1 FROM holdfast.chunk k WHERE k.run_id = r.run_id OFFSET 0)
-- name: named
-- The run that a notification has named, if it is as its birth left it, and a claim would take it. The condition on the owner is written so that the
-- index of due runs is not used.
SELECT {born} FROM holdfast.run r JOIN holdfast.log t ON t.bucket = r.bucket AND t.run = r.id AND t.n = 1
WHERE r.bucket = %(b)s AND r.run_id = %(run)s AND coalesce(r.owner, '') = '' AND NOT r.behind AND r.due <= {now}
  AND (%(queues)s::text[] IS NULL OR r.queue = ANY(%(queues)s::text[])) AND {part_fits}
  AND NOT EXISTS (SELECT 1 FROM holdfast.rule) AND {part_lane} AND {part_unbegun};
-- name: ground
-- The lines with runs to come, and the oldest value in each of what is due at once and at a time: lower entries are only of runs that were due
-- before, and they stay in the index while a snapshot is held. Locks nothing.
WITH RECURSIVE {part_line}
SELECT l.queue, l.priority, l.tenant_id, n.at,
  (SELECT r.due - n.once FROM holdfast.run r WHERE {part_of_line}
    AND r.due > n.once + CASE WHEN l.begins < n.at THEN l.begins ELSE n.once END AND r.due < 0 ORDER BY r.due LIMIT 1),
  (SELECT r.due FROM holdfast.run r WHERE {part_of_line}
    AND r.due > CASE WHEN l.times < n.at THEN l.times ELSE -1 END ORDER BY r.due LIMIT 1)
FROM (SELECT {now} AS at, -4611686018427387904 AS once) n, (SELECT * FROM line LIMIT %(found_lines)s::bigint) l
ORDER BY l.queue DESC, l.priority DESC, l.tenant_id DESC;
-- name: crowds
-- Lines in which many of the runs that are due first stand behind the holder of their lane: every claim would examine them.
WITH RECURSIVE {part_line}
SELECT l.queue, l.priority, l.tenant_id FROM (SELECT * FROM line WHERE %(queues)s::text[] IS NULL OR queue = ANY(%(queues)s::text[]) LIMIT %(lines)s::bigint) l
WHERE %(crowd)s::bigint <= (SELECT count(*) FROM (
  SELECT r.tenant_id, r.session_key, r.lane, r.holds FROM holdfast.run r
  WHERE {part_of_line}
    AND r.due <= {now} AND r.due > l.begins - 4611686018427387904
  ORDER BY r.due LIMIT %(few)s::bigint) f
  WHERE NOT f.holds AND EXISTS (SELECT 1 FROM holdfast.run h WHERE h.tenant_id = f.tenant_id AND h.session_key = f.session_key AND h.lane = f.lane AND h.holds OFFSET 0));
-- name: behind_lost
-- Checks lanes with marked runs, from one on. In a lane that nobody holds, removes the mark of the first run: its holder was written by other means,
-- or that run was just being written. Also removes the mark of a holder. Returns the last lane.
WITH RECURSIVE lane AS (
  (SELECT r.tenant_id, r.session_key, r.lane, 1 AS n FROM holdfast.run r
   WHERE r.behind AND (r.tenant_id, r.session_key, r.lane) > (%(lane_tenant)s::text, %(lane_session)s::text, %(lane)s::text) ORDER BY r.tenant_id, r.session_key, r.lane LIMIT 1)
  UNION ALL
  SELECT f.tenant_id, f.session_key, f.lane, l.n + 1 FROM lane l CROSS JOIN LATERAL (
    SELECT r.tenant_id, r.session_key, r.lane FROM holdfast.run r
    WHERE r.behind AND (r.tenant_id, r.session_key, r.lane) > (l.tenant_id, l.session_key, l.lane) ORDER BY r.tenant_id, r.session_key, r.lane LIMIT 1) f
  WHERE l.n < %(lanes)s::bigint
), gone AS (
  UPDATE holdfast.run SET behind = false WHERE (bucket, run_id) IN (
    SELECT b.bucket, b.run_id FROM lane l CROSS JOIN LATERAL (
      SELECT r.bucket, r.run_id FROM holdfast.run r WHERE r.tenant_id = l.tenant_id AND r.session_key = l.session_key AND r.lane = l.lane AND r.behind
      ORDER BY r.turn LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) b
    WHERE NOT EXISTS (SELECT 1 FROM holdfast.run h WHERE h.tenant_id = l.tenant_id AND h.session_key = l.session_key AND h.lane = l.lane AND h.holds OFFSET 0))
), holder AS (
  UPDATE holdfast.run SET behind = false WHERE (bucket, run_id) IN (
    SELECT h.bucket, h.run_id FROM lane l CROSS JOIN LATERAL (
      SELECT r.bucket, r.run_id, r.behind FROM holdfast.run r WHERE r.tenant_id = l.tenant_id AND r.session_key = l.session_key AND r.lane = l.lane AND r.holds
      LIMIT 1) h WHERE h.behind)
)
SELECT tenant_id, session_key, lane FROM lane ORDER BY n DESC LIMIT 1;
-- name: behind_set
-- Marks due runs of a line. The holders of their lanes are locked in share mode, so that a commit that releases a lane sees which runs were marked.
-- Waits for no lock.
WITH among AS MATERIALIZED (
  SELECT r.bucket, r.run_id, r.tenant_id, r.session_key, r.lane FROM holdfast.run r
  WHERE r.queue = %(queue)s AND r.priority = %(priority)s AND r.tenant_id = %(tenant)s AND r.due IS NOT NULL AND r.due <= {now} AND r.owner IS NULL AND NOT r.behind
    AND r.due > %(begins)s::bigint - 4611686018427387904
  ORDER BY r.due, r.turn LIMIT %(among)s::bigint
), held AS MATERIALIZED (
  SELECT h.tenant_id, h.session_key, h.lane FROM (SELECT DISTINCT tenant_id, session_key, lane FROM among) l CROSS JOIN LATERAL (
    SELECT r.tenant_id, r.session_key, r.lane FROM holdfast.run r
    WHERE r.tenant_id = l.tenant_id AND r.session_key = l.session_key AND r.lane = l.lane AND r.holds AND (r.owner IS NOT NULL OR r.due IS NULL OR r.due > {now})
    LIMIT 1 FOR SHARE SKIP LOCKED) h
), few AS MATERIALIZED (
  SELECT r.bucket, r.run_id FROM held h JOIN among a ON a.tenant_id = h.tenant_id AND a.session_key = h.session_key AND a.lane = h.lane
  JOIN holdfast.run r ON r.bucket = a.bucket AND r.run_id = a.run_id
  WHERE NOT r.holds AND r.due IS NOT NULL AND coalesce(r.owner, '') = '' AND NOT r.behind LIMIT %(marked)s::bigint FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE holdfast.run r SET behind = true FROM few WHERE r.bucket = few.bucket AND r.run_id = few.run_id RETURNING 1;
-- name: limits_lock
-- Serializes transactions that decide by what is in use; the lock ends with the transaction.
SELECT pg_advisory_xact_lock(4854);
-- name: due_lines
-- The queues, priorities and tenants with runs to come.
WITH RECURSIVE {part_line}
SELECT l.queue, l.priority, l.tenant_id, l.begins, l.times FROM line l WHERE (%(queues)s::text[] IS NULL OR l.queue = ANY(%(queues)s::text[])) AND {part_live};
-- name: due_orphans
-- The runs of owners that are proven dead or whose lease has expired, searched as in `claim`.
WITH {part_gone}
SELECT o.run_id, o.queue, o.tenant_id, o.priority, coalesce(o.due, 0), o.turn, gone.owner, gone.cause FROM gone CROSS JOIN LATERAL (
  SELECT r.run_id, r.queue, r.tenant_id, r.priority, r.due, r.turn FROM holdfast.run r
  WHERE r.owner = gone.owner AND (%(queues)s::text[] IS NULL OR r.queue = ANY(%(queues)s::text[])) AND {part_fits}
  ORDER BY r.priority DESC, r.due, r.turn LIMIT %(limit)s::bigint FOR NO KEY UPDATE SKIP LOCKED) o
ORDER BY o.priority DESC, o.due, o.turn LIMIT %(limit)s::bigint;
-- name: due_in
-- The oldest due runs of each of these lines.
WITH {part_kind}
SELECT c.* FROM unnest(%(of_queues)s::text[], %(of_priorities)s::integer[], %(of_tenants)s::text[], %(of_begins)s::bigint[], %(of_times)s::bigint[]) l (queue, priority, tenant_id, begins, times)
CROSS JOIN kind k CROSS JOIN LATERAL (
  SELECT r.run_id, r.queue, r.tenant_id, r.priority, r.due, r.turn, NULL::text, NULL::text FROM holdfast.run r
  WHERE r.queue = l.queue AND r.priority = l.priority AND r.tenant_id = l.tenant_id AND r.due IS NOT NULL AND r.due > {part_after} AND r.due <= k.until
    AND r.owner IS NULL AND NOT r.behind AND {part_fits}
    AND {part_lane}
  ORDER BY r.due, r.turn LIMIT %(limit)s::bigint FOR NO KEY UPDATE OF r SKIP LOCKED) c;
-- name: take_chosen
UPDATE holdfast.run r SET owner = %(owner)s, fence = r.fence + 1, holds = true, due = least(r.due, n.once), previous = c.previous, cause = c.cause,
  seal = holdfast.standing(r.run_id, r.fence + 1, %(owner)s, least(r.due, n.once), true, r.turn, c.previous, c.cause)
FROM unnest(%(b)s::smallint[], %(run)s::text[], %(previous)s::text[], %(cause)s::text[]) c (bucket, run_id, previous, cause), (SELECT {at_once} AS once) n
WHERE r.bucket = c.bucket AND r.run_id = c.run_id
RETURNING r.run_id, r.fence, r.previous, r.cause, r.priority, r.due, r.turn;
-- name: claimers
SELECT owner, boot FROM holdfast.worker WHERE boot = %(boot)s OR owner = %(owner)s ORDER BY owner LIMIT 10000;
-- name: claim_one
SELECT r.fence, r.owner, r.holds, r.turn, r.status, r.tenant_id, r.session_key, r.lane, r.queue FROM holdfast.run r
WHERE r.bucket = %s AND r.run_id = %s FOR NO KEY UPDATE;
-- name: see_owner
SELECT w.boot, {expiry} - {now} FROM holdfast.run r LEFT JOIN holdfast.worker w ON w.owner = r.owner WHERE r.bucket = %(b)s AND r.run_id = %(run)s;
-- name: take
UPDATE holdfast.run SET owner = %(owner)s, fence = fence + 1, holds = true, behind = false, due = least(due, n.once), previous = %(previous)s, cause = %(cause)s,
  seal = holdfast.standing(run_id, fence + 1, %(owner)s, least(due, n.once), true, turn, %(previous)s, %(cause)s) FROM (SELECT {at_once} AS once) n
WHERE bucket = %(b)s AND run_id = %(run)s;
-- name: held
-- The runs that an owner holds, by which a claim whose answer was lost is found again. If these columns of a row were altered, only the fact that it
-- had an earlier owner is used.
SELECT run_id, fence, CASE WHEN t.sound THEN previous ELSE '' END, CASE WHEN t.sound THEN cause ELSE 'expired' END
FROM holdfast.run r, LATERAL (SELECT r.seal = holdfast.standing(r.run_id, r.fence, r.owner, r.due, r.holds, r.turn, r.previous, r.cause) AS sound) t
WHERE owner = %s ORDER BY bucket, id LIMIT 10000;

-- Workers -------------------------------------------------------------------------------------------

-- name: worker_insert
-- Gives the owners of runs of whom there is no row: it was lost, or an older release let go of it too early.
WITH w AS (
  INSERT INTO holdfast.worker (owner, started_at, expires_at, ttl, boot, host, pid) VALUES (%(owner)s, %(started)s, {now} + %(ttl)s::bigint, %(ttl)s::bigint, %(boot)s, %(host)s, %(pid)s) RETURNING owner
), vouched AS (
  INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT '', 'worker', owner, %(seal)b, '', NULL FROM w ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark
)
SELECT DISTINCT r.owner FROM holdfast.run r WHERE r.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast.worker w WHERE w.owner = r.owner) LIMIT 1000;
-- name: worker_keep
WITH w AS (
  INSERT INTO holdfast.worker (owner, started_at, expires_at, ttl, boot, host, pid) VALUES (%(owner)s, %(started)s, {now} + %(ttl)s::bigint, %(ttl)s::bigint, %(boot)s, %(host)s, %(pid)s) ON CONFLICT DO NOTHING RETURNING owner
)
INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT '', 'worker', owner, %(seal)b, '', NULL FROM w ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark;
-- name: worker_known
SELECT boot, pid FROM holdfast.worker WHERE owner = %s;
-- name: worker_renew
-- The row is written whole: what its owner says about itself counts.
WITH w AS (
  UPDATE holdfast.worker SET started_at = %(started)s, expires_at = {now} + %(ttl)s::bigint, ttl = %(ttl)s::bigint, boot = %(boot)s, host = %(host)s,
    pid = %(pid)s WHERE owner = %(owner)s RETURNING owner, expires_at
), vouched AS (INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT '', 'worker', owner, %(seal)b, '', NULL FROM w ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark)
SELECT expires_at, {now} FROM w;
-- name: worker_row
SELECT owner, started_at, ttl, boot, host, pid FROM holdfast.worker WHERE owner = %s;
-- name: worker_delete
WITH vouched AS (DELETE FROM holdfast.vouch WHERE run = '' AND kind = 'worker' AND id = %(owner)s)
DELETE FROM holdfast.worker WHERE owner = %(owner)s;
-- name: worker_lock
-- A transaction that takes anything for an owner locks the owner's row in share mode: this statement waits for it, and after this one nothing more is
-- taken.
SELECT FROM holdfast.worker WHERE owner = %s FOR UPDATE;
-- name: workers_idle
-- Owners that are gone for good and hold nothing. An owner for whom something is being taken is skipped: it is found once that is committed. The
-- others take nothing any more.
SELECT w.owner FROM holdfast.worker w WHERE w.owner <> %(owner)s AND (w.owner = ANY(%(dead)s::text[]) OR {expiry} <= {now} - 3600000000)
  AND NOT EXISTS (SELECT 1 FROM holdfast.run r WHERE r.owner = w.owner) LIMIT 1000 FOR UPDATE OF w SKIP LOCKED;
-- name: workers_delete
WITH gone AS (
  DELETE FROM holdfast.worker w WHERE w.owner = ANY(%s::text[]) AND NOT EXISTS (SELECT 1 FROM holdfast.run r WHERE r.owner = w.owner) RETURNING owner
), vouched AS (DELETE FROM holdfast.vouch v USING gone WHERE v.run = '' AND v.kind = 'worker' AND v.id = gone.owner)
SELECT owner FROM gone;
-- name: offer_put
WITH o AS (
  INSERT INTO holdfast.offer (owner, data) VALUES (%(owner)s, %(data)s) ON CONFLICT (owner) DO UPDATE SET data = excluded.data RETURNING owner
)
INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT '', 'offer', owner, %(seal)b, '', NULL FROM o ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark;
-- name: offers_forget
WITH gone AS (DELETE FROM holdfast.offer WHERE owner NOT IN (SELECT owner FROM holdfast.worker) RETURNING owner)
DELETE FROM holdfast.vouch v USING gone WHERE v.run = '' AND v.kind = 'offer' AND v.id = gone.owner;
-- name: workers
SELECT w.owner, w.started_at, {expiry}, w.boot, 0, o.data, v.seal
FROM holdfast.worker w LEFT JOIN holdfast.offer o ON o.owner = w.owner LEFT JOIN holdfast.vouch v ON v.run = '' AND v.kind = 'offer' AND v.id = o.owner
ORDER BY w.started_at, w.owner LIMIT 10000;
-- name: workers_counted
-- As `workers`, with how many runs each holds.
SELECT w.owner, w.started_at, {expiry}, w.boot, (SELECT count(*) FROM holdfast.run r WHERE r.owner = w.owner), o.data, v.seal
FROM holdfast.worker w LEFT JOIN holdfast.offer o ON o.owner = w.owner LEFT JOIN holdfast.vouch v ON v.run = '' AND v.kind = 'offer' AND v.id = o.owner
ORDER BY w.started_at, w.owner LIMIT 10000;
-- name: lock_owned
SELECT id FROM holdfast.run WHERE owner = %s ORDER BY bucket, id FOR NO KEY UPDATE;
-- name: hand_back
-- The fence changes too, so that nothing its old owner is still about to write can be written.
UPDATE holdfast.run SET owner = NULL, fence = fence + 1, due = n.once, seal = holdfast.standing(run_id, fence + 1, NULL, n.once, holds, turn)
FROM (SELECT {at_once} AS once) n WHERE owner = %(owner)s;

-- name: release_one
-- The same for one run whose log accepts no commit. It is due when somebody may have repaired it.
UPDATE holdfast.run SET owner = NULL, fence = fence + 1, due = %(due)s::bigint, seal = holdfast.standing(run_id, fence + 1, NULL, %(due)s::bigint, holds, turn)
WHERE bucket = %(b)s AND run_id = %(run)s AND owner = %(owner)s AND fence = %(fence)s;

-- Limits --------------------------------------------------------------------------------------------

-- name: rules
SELECT name, data FROM holdfast.rule ORDER BY name COLLATE "C";
-- name: rule_lock
SELECT name, data FROM holdfast.rule WHERE name = %s FOR UPDATE;
-- name: rule_put
INSERT INTO holdfast.rule (name, data) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET data = excluded.data;
-- name: buckets
SELECT name, full_at FROM holdfast.bucket;
-- name: bucket_put
INSERT INTO holdfast.bucket (name, full_at) SELECT * FROM unnest(%(names)s::text[], %(full_at)s::bigint[])
ON CONFLICT (name) DO UPDATE SET full_at = excluded.full_at;
-- name: holders
-- How many runs each owner holds, with what decides whether the owner is lost.
SELECT h.owner, h.queue, h.tenant_id, h.n, w.boot, {expiry} - {now} FROM (
  SELECT owner, queue, tenant_id, count(*) AS n FROM holdfast.run WHERE owner IS NOT NULL GROUP BY owner, queue, tenant_id
) h LEFT JOIN holdfast.worker w ON w.owner = h.owner;
-- name: calls
SELECT c.owner, c.name, c.n, w.boot, {expiry} - {now} FROM (
  SELECT owner, name, count(*) AS n FROM holdfast.call WHERE owner IS NOT NULL GROUP BY owner, name
) c LEFT JOIN holdfast.worker w ON w.owner = c.owner;
-- name: calls_all
SELECT place, name, owner, run_id, since FROM holdfast.call;
-- name: call_get
SELECT owner, since FROM holdfast.call WHERE place = %s LIMIT 1;
-- name: call_put
INSERT INTO holdfast.call (place, name, owner, run_id, since) SELECT %(place)s, n, %(owner)s, %(run)s, %(now)s FROM unnest(%(names)s::text[]) n
ON CONFLICT (place, name) DO UPDATE SET owner = excluded.owner, run_id = excluded.run_id, since = excluded.since;
-- name: call_drop
WITH gone AS (DELETE FROM holdfast.call WHERE place = %s AND owner IS NULL RETURNING place, name)
DELETE FROM holdfast.vouch v USING gone g WHERE v.run = '' AND v.kind = 'call' AND v.id = g.place || chr(31) || g.name;
-- name: calls_lost
WITH gone AS (DELETE FROM holdfast.call c WHERE c.owner = ANY(%(lost)s::text[]) RETURNING place, name)
DELETE FROM holdfast.vouch v USING gone g WHERE v.run = '' AND v.kind = 'call' AND v.id = g.place || chr(31) || g.name;
-- name: calls_left
WITH gone AS (DELETE FROM holdfast.call WHERE owner = %(owner)s AND (%(places)s::text[] IS NULL OR place = ANY(%(places)s::text[])) RETURNING place, name),
unvouched AS (DELETE FROM holdfast.vouch v USING gone g WHERE v.run = '' AND v.kind = 'call' AND v.id = g.place || chr(31) || g.name)
SELECT name FROM gone;
-- name: wake_line
-- Makes the runs that have waited longest for a limit due at once.
UPDATE holdfast.run u SET due = n.once, seal = holdfast.standing(u.run_id, u.fence, u.owner, n.once, u.holds, u.turn)
FROM (SELECT {at_once} AS once) n WHERE (u.bucket, u.run_id) IN (
  SELECT r.bucket, r.run_id FROM holdfast.call c JOIN holdfast.run r ON r.run_id = c.run_id
  WHERE c.name = %(name)s AND c.owner IS NULL AND r.owner IS NULL AND r.due > {now} ORDER BY c.since LIMIT %(n)s FOR NO KEY UPDATE OF r SKIP LOCKED);
-- name: wake_run
-- Makes a run at rest that is not due yet due at once.
UPDATE holdfast.run u SET due = n.once, seal = holdfast.standing(u.run_id, u.fence, u.owner, n.once, u.holds, u.turn)
FROM (SELECT {at_once} AS once) n WHERE u.bucket = %(b)s AND u.run_id = %(run)s AND u.owner IS NULL AND u.due > {now} RETURNING u.run_id;
-- name: calls_settled
-- Waits for calls that are about to leave one of these limits: a run that came to rest meanwhile was not woken by them.
SELECT 1 FROM holdfast.call WHERE name = ANY(%s::text[]) AND owner IS NOT NULL FOR KEY SHARE;
-- name: queue_lock
SELECT pg_advisory_xact_lock(4855, hashtext(%(queue)s || chr(31) || %(tenant)s));
-- name: waiting_in
SELECT (SELECT count(*) FROM holdfast.run WHERE queue = %(queue)s AND tenant_id = %(tenant)s AND due IS NOT NULL AND owner IS NULL AND NOT behind AND status = 'pending')
  + (SELECT count(*) FROM holdfast.run WHERE queue = %(queue)s AND tenant_id = %(tenant)s AND due IS NOT NULL AND owner IS NULL AND behind AND status = 'pending');
-- name: backlog
SELECT r.queue, r.tenant_id, r.skill_id, r.fingerprint, count(*), count(*) FILTER (WHERE NOT r.holds AND (EXISTS (
    SELECT 1 FROM holdfast.run h WHERE h.tenant_id = r.tenant_id AND h.session_key = r.session_key AND h.lane = r.lane AND h.holds OFFSET 0
  ) OR EXISTS (
    SELECT 1 FROM holdfast.run p WHERE p.tenant_id = r.tenant_id AND p.session_key = r.session_key AND p.lane = r.lane
      AND p.turn < r.turn AND p.due IS NOT NULL AND NOT p.holds AND p.due <= {now} OFFSET 0))),
  min(CASE WHEN r.due < 0 THEN r.due + 4611686018427387904 ELSE r.due END)
FROM (SELECT * FROM holdfast.run WHERE due IS NOT NULL AND owner IS NULL AND NOT behind
  UNION ALL SELECT * FROM holdfast.run WHERE due IS NOT NULL AND owner IS NULL AND behind) r WHERE r.due <= {now} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;

-- Reads ---------------------------------------------------------------------------------------------

-- name: run_get
SELECT r.run_id, {doc}, r.status, t.version, t.step, t.head, r.fence, r.owner, r.due, {expiry}, w.boot
FROM holdfast.run r LEFT JOIN holdfast.worker w ON w.owner = r.owner
LEFT JOIN LATERAL (SELECT l.version, l.step, l.head FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id ORDER BY l.n DESC LIMIT 1) t ON true
WHERE r.bucket = %(b)s AND r.run_id = %(run)s;
-- name: ended
-- As `run_get`, with the end of the log. If the run has ended, and nothing beside its log would be loaded with it: one row for each row of the log.
SELECT r.run_id, CASE WHEN l.n IS NULL OR l.n = t.n THEN {doc} END, r.status, t.version, t.step, t.head, r.fence, r.owner, r.due, {expiry}, w.boot,
  t.seq, t.hash, t.n, t.since, t.whole, l.seq, l.data, l.hash
FROM holdfast.run r LEFT JOIN holdfast.worker w ON w.owner = r.owner
LEFT JOIN LATERAL (SELECT * FROM holdfast.log e WHERE e.bucket = r.bucket AND e.run = r.id ORDER BY e.n DESC LIMIT 1) t ON true
LEFT JOIN LATERAL (
  SELECT k.n, k.seq, k.data, k.hash FROM (SELECT 1 WHERE r.owner IS NULL AND r.status IN ('completed', 'failed', 'canceled')
    AND NOT EXISTS (SELECT 1 FROM holdfast.whole h WHERE h.bucket = r.bucket AND h.run = r.id OFFSET 0)
    AND NOT EXISTS (SELECT 1 FROM holdfast.inbox i WHERE i.bucket = r.bucket AND i.run = r.id AND i.taken IS NULL OFFSET 0)
    AND NOT EXISTS (SELECT 1 FROM holdfast.vouch v WHERE v.run = r.run_id AND v.kind = 'inbox' AND v.mark IS NULL OFFSET 0)
    AND NOT EXISTS (SELECT 1 FROM holdfast.chunk c WHERE c.run_id = r.run_id OFFSET 0) OFFSET 0) over
  CROSS JOIN LATERAL (SELECT * FROM holdfast.log x WHERE x.bucket = r.bucket AND x.run = r.id ORDER BY x.n OFFSET 0) k) l ON true
WHERE r.bucket = %(b)s AND r.run_id = %(run)s ORDER BY l.n;
-- name: runs
SELECT r.run_id, {doc}, r.status, t.version, t.step, t.head, r.fence, r.owner, r.due, {expiry}, w.boot
FROM {those} LEFT JOIN holdfast.worker w ON w.owner = r.owner
LEFT JOIN LATERAL (SELECT l.version, l.step, l.head FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id ORDER BY l.n DESC LIMIT 1) t ON true;
-- name: runs_due
-- Of these, the runs that hold no lane and are due, up to the turn of a run; a run that does not exist comes after all.
NOT r.holds AND r.due IS NOT NULL AND r.due <= {now}
AND r.turn <= coalesce((SELECT u.turn FROM holdfast.run u WHERE u.run_id = %(until)s LIMIT 1), 4611686018427387904);
-- name: load_tip
SELECT t.seq, t.hash, t.n, t.since, t.whole FROM holdfast.run r
CROSS JOIN LATERAL (SELECT * FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id ORDER BY l.n DESC LIMIT 1) t
WHERE r.bucket = %s AND r.run_id = %s;
-- name: load_whole
SELECT w.data FROM holdfast.whole w JOIN holdfast.run r ON r.bucket = w.bucket AND r.id = w.run
WHERE r.bucket = %s AND r.run_id = %s ORDER BY w.seq DESC LIMIT 1;
-- name: load_rows
SELECT l.seq, l.data, l.hash FROM holdfast.run r JOIN holdfast.log l ON l.bucket = r.bucket AND l.run = r.id
WHERE r.bucket = %s AND r.run_id = %s
  AND l.n > coalesce((SELECT max(w.n) FROM holdfast.whole w WHERE w.bucket = r.bucket AND w.run = r.id), 0) ORDER BY l.n;
-- name: heads
SELECT r.run_id, w.data FROM unnest(%(b)s::int[], %(run)s::text[]) a(bucket, run_id) JOIN holdfast.run r ON r.bucket = a.bucket AND r.run_id = a.run_id
LEFT JOIN LATERAL (SELECT w.data FROM holdfast.whole w WHERE w.bucket = r.bucket AND w.run = r.id ORDER BY w.seq DESC LIMIT 1) w ON true;
-- name: heads_rows
SELECT r.run_id, l.seq, l.data, l.hash FROM unnest(%(b)s::int[], %(run)s::text[]) a(bucket, run_id) JOIN holdfast.run r ON r.bucket = a.bucket AND r.run_id = a.run_id
CROSS JOIN LATERAL (SELECT l.n, l.seq, l.data, l.hash FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id
  AND l.n > coalesce((SELECT max(w.n) FROM holdfast.whole w WHERE w.bucket = r.bucket AND w.run = r.id), 0)) l ORDER BY r.run_id, l.n;
-- name: rows
SELECT l.seq, l.data, l.hash FROM holdfast.run r JOIN holdfast.log l ON l.bucket = r.bucket AND l.run = r.id
WHERE r.bucket = %(b)s AND r.run_id = %(run)s AND l.n >= coalesce((SELECT max(w.n) FROM holdfast.whole w
  WHERE w.bucket = r.bucket AND w.run = r.id AND w.seq <= %(after)s), 0) AND l.seq > %(after)s ORDER BY l.n LIMIT %(limit)s;
-- name: effects
SELECT {effect} FROM {effects} WHERE (%(key)s::text IS NULL OR e.key = %(key)s) AND (%(run)s::text IS NULL OR e.run_id = %(run)s)
  AND (%(root)s::text IS NULL OR e.lineage_root = %(root)s) ORDER BY e.id;
-- name: claim_of_key
-- Which run first attempted an effect under a key that runs share.
SELECT run_id FROM holdfast.claim WHERE kind = 'effect' AND scope = '' AND key = %s;
-- name: effects_newest
SELECT {effect} FROM {effects} WHERE (%(tenant)s::text IS NULL OR EXISTS (SELECT 1 FROM holdfast.run r WHERE r.run_id = e.run_id AND r.tenant_id = %(tenant)s))
  AND (%(statuses)s::text[] IS NULL OR e.status = ANY(%(statuses)s::text[])) ORDER BY e.id DESC LIMIT %(limit)s;
-- name: tally_runs
-- Runs without an owner and runs with one, each by its index.
SELECT status, sum(n)::bigint FROM (
  SELECT status, count(*) AS n FROM holdfast.run WHERE owner IS NULL AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s) GROUP BY status
  UNION ALL SELECT status, count(*) FROM holdfast.run WHERE owner IS NOT NULL AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s) GROUP BY status
) r GROUP BY status;
-- name: tally_effects
SELECT e.status, count(*) FROM holdfast.effect e
WHERE %(tenant)s::text IS NULL OR EXISTS (SELECT 1 FROM holdfast.run r WHERE r.run_id = e.run_id AND r.tenant_id = %(tenant)s) GROUP BY e.status;
-- name: effects_open
SELECT {effect} FROM {effects} WHERE e.status IN ('attempted', 'unknown') ORDER BY e.id;
-- name: effect_settle
WITH e AS (UPDATE holdfast.effect SET status = %(status)s, data = %(data)s WHERE key = %(key)s AND effect_id = %(id)s AND status = %(expected)s RETURNING 1),
  vouched AS (INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT %(run)s, 'effect', %(id)s, %(seal)b, %(key)s, NULL FROM e ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark)
SELECT 1 FROM e;
-- name: effect_get
SELECT data FROM holdfast.effect WHERE key = %s AND effect_id = %s;
-- name: blob_get
SELECT data FROM holdfast.blob WHERE sha256 = %s;
-- name: claimed
SELECT run_id, digest, expires_at, {now} FROM holdfast.claim WHERE kind = %(kind)s AND scope = %(scope)s AND key = %(key)s;

-- Outbox --------------------------------------------------------------------------------------------

-- name: intents
SELECT {intent} FROM {intents};
-- name: intents_senders
SELECT DISTINCT i.owner, w.boot FROM holdfast.intent i JOIN holdfast.worker w ON w.owner = i.owner WHERE i.state = 'sending';
-- name: intents_lost
SELECT {intent} FROM {intents}
WHERE i.state = 'sending' AND i.type = ANY(%(types)s::text[]) AND (%(run)s::text IS NULL OR i.run_id = %(run)s)
  AND (i.lease_until IS NULL OR i.lease_until <= {now} OR i.owner = ANY(%(dead)s::text[]) OR (i.owner = %(me)s::text AND i.intent_id <> ALL(%(held)s::text[])))
ORDER BY i.id LIMIT %(limit)s FOR UPDATE OF i SKIP LOCKED;
-- name: intents_due
-- Lane by lane; under one order key only the oldest open intent is free, if it is due.
WITH RECURSIVE lane AS (
  (SELECT type, tenant_id, target, order_key FROM holdfast.intent WHERE state = 'queued' ORDER BY type, tenant_id, target, order_key LIMIT 1)
  UNION ALL
  SELECT n.* FROM lane l CROSS JOIN LATERAL (
    SELECT i.type, i.tenant_id, i.target, i.order_key FROM holdfast.intent i
    WHERE i.state = 'queued' AND (i.type, i.tenant_id, i.target, i.order_key) > (l.type, l.tenant_id, l.target, l.order_key)
    ORDER BY i.type, i.tenant_id, i.target, i.order_key LIMIT 1) n
), lanes AS (SELECT * FROM lane WHERE type = ANY(%(types)s::text[]) LIMIT 10000)
SELECT c.* FROM lanes l CROSS JOIN LATERAL (
  SELECT {intent} FROM {intents}
  WHERE i.state = 'queued' AND i.type = l.type AND i.tenant_id = l.tenant_id AND i.target = l.target AND i.order_key = l.order_key AND i.due <= {now}
    AND (i.order_key = '' OR i.id = (SELECT e.id FROM holdfast.intent e WHERE e.tenant_id = l.tenant_id AND e.type = l.type AND e.order_key = l.order_key
      AND e.order_key <> '' AND e.state IN ('queued', 'sending', 'unknown') ORDER BY e.id LIMIT 1))
  ORDER BY i.due, i.id LIMIT %(limit)s FOR UPDATE OF i SKIP LOCKED) c;
-- name: intents_of_run_due
SELECT {intent} FROM {intents}
WHERE i.run_id = %(run)s AND i.state = 'queued' AND i.due <= {now} AND i.type = ANY(%(types)s::text[])
  AND (i.order_key = '' OR i.id = (SELECT e.id FROM holdfast.intent e WHERE e.tenant_id = i.tenant_id AND e.type = i.type AND e.order_key = i.order_key
    AND e.order_key <> '' AND e.state IN ('queued', 'sending', 'unknown') ORDER BY e.id LIMIT 1))
ORDER BY i.id LIMIT %(limit)s FOR UPDATE OF i SKIP LOCKED;
-- name: intent_lock
SELECT {intent} FROM {intents} WHERE i.intent_id = ANY(%s::text[]) ORDER BY i.intent_id FOR UPDATE OF i;
-- name: intent_keep
UPDATE holdfast.intent i SET state = k.state, due = k.due, owner = k.owner, lease_until = k.lease_until, settled_at = k.settled_at, attempts = k.attempts, carries = k.carries, data = k.data
FROM unnest(%b::text[], %b::bigint[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::boolean[], %b::bytea[], %b::text[])
  AS k (state, due, owner, lease_until, settled_at, attempts, carries, data, intent_id) WHERE i.intent_id = k.intent_id;
-- name: intents_settle
-- Stores the results of intents with their vouchers, if each intent is as its sender saw it. Returns how many were stored: all of them, or none.
WITH k AS (
  SELECT * FROM unnest(
    %(state)b::text[], %(due)b::bigint[], %(owner)b::text[], %(lease_until)b::bigint[], %(settled_at)b::bigint[], %(attempts)b::bigint[], %(carries)b::boolean[],
    %(data)b::bytea[], %(intent_id)b::text[], %(run)b::text[], %(seal)b::bytea[], %(was_state)b::text[], %(was_owner)b::text[], %(was_attempts)b::bigint[], %(was_seal)b::bytea[])
    AS k (state, due, owner, lease_until, settled_at, attempts, carries, data, intent_id, run, seal, was_state, was_owner, was_attempts, was_seal)
), stands AS MATERIALIZED (
  SELECT i.intent_id FROM k
  JOIN holdfast.vouch v ON v.run = k.run AND v.kind = 'intent' AND v.id = k.intent_id AND v.seal = k.was_seal
  JOIN holdfast.intent i ON i.intent_id = k.intent_id AND i.state = k.was_state AND i.owner = k.was_owner AND i.attempts = k.was_attempts
  ORDER BY i.intent_id FOR UPDATE OF i
), all_stand AS (
  SELECT 1 WHERE (SELECT count(*) FROM stands) = (SELECT count(*) FROM k)
), kept AS (
  UPDATE holdfast.intent i SET state = k.state, due = k.due, owner = k.owner, lease_until = k.lease_until, settled_at = k.settled_at, attempts = k.attempts,
    carries = k.carries, data = k.data
  FROM k WHERE i.intent_id = k.intent_id AND EXISTS (SELECT FROM all_stand) RETURNING i.intent_id
), vouched AS (
  UPDATE holdfast.vouch v SET seal = k.seal FROM k WHERE v.run = k.run AND v.kind = 'intent' AND v.id = k.intent_id AND EXISTS (SELECT FROM all_stand)
)
SELECT count(*) FROM kept;
-- name: intents_free
UPDATE holdfast.intent SET lease_until = NULL WHERE intent_id = ANY(%s::text[]);
-- name: intents_renew
UPDATE holdfast.intent SET lease_until = {now} + %(ttl)s::bigint WHERE state = 'sending' AND owner = %(owner)s;
-- name: intents_to_drop
SELECT {intent} FROM {intents}
WHERE i.settled_at < %s AND i.settled_at IS NOT NULL AND i.carries AND i.state IN ('sent', 'abandoned') ORDER BY i.settled_at LIMIT %s FOR UPDATE OF i SKIP LOCKED;
-- name: intent_counts
SELECT type, state, count(*), min(created_at) FROM holdfast.intent GROUP BY type, state ORDER BY type, state;
-- name: ledger
SELECT l.run_id, l.topic, l.key, l.data, l.at, l.step_id, l.id, v.seal FROM holdfast.ledger l
LEFT JOIN holdfast.vouch v ON v.run = l.run_id AND v.kind = 'ledger' AND v.id = lpad(l.id::text, 20, '0');

-- People and schedules ------------------------------------------------------------------------------

-- name: token_insert
WITH t AS (
  INSERT INTO holdfast.token (hash, run_id, wait_id, tenant_id, actor, created_at, expires_at)
  SELECT %(hash)s, run_id, %(wait)s, %(tenant)s, %(actor)s, %(created)s, %(expires)s FROM holdfast.run WHERE bucket = %(b)s AND run_id = %(run)s FOR KEY SHARE
  ON CONFLICT (hash) DO UPDATE SET hash = excluded.hash RETURNING xmax = 0 AS new
), counted AS (
  INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT 'token', mod(pg_backend_pid(), 64), 1, holdfast.weigh('token', %(id)s) FROM t WHERE new
  ON CONFLICT (kind, shard) DO UPDATE SET n = roll.n + excluded.n, sum = roll.sum + excluded.sum
), vouched AS (INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT %(run)s, 'token', %(id)s, %(seal)b, %(id)s, NULL FROM t ON CONFLICT DO NOTHING)
SELECT 1 FROM t;
-- name: token_get
SELECT {token} FROM {tokens} WHERE t.hash = %s;
-- name: token_lock
SELECT {token} FROM {tokens} WHERE t.hash = %s FOR UPDATE OF t;
-- name: token_mark
UPDATE holdfast.token SET used_at = %s, revoked_at = %s WHERE hash = %s;
-- name: schedule_lock
SELECT schedule_id, tenant_id, CASE WHEN placed = id THEN due ELSE -1 END, data FROM holdfast.schedule WHERE schedule_id = %s FOR UPDATE;
-- name: schedule_get
SELECT schedule_id, tenant_id, CASE WHEN placed = id THEN due ELSE -1 END, data FROM holdfast.schedule WHERE schedule_id = %s;
-- name: schedule_delete
WITH gone AS (DELETE FROM holdfast.schedule WHERE schedule_id = %(id)s RETURNING 1),
  counted AS (
    INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT 'schedule', mod(pg_backend_pid(), 64), -1, -holdfast.weigh('schedule', %(id)s) FROM gone
    ON CONFLICT (kind, shard) DO UPDATE SET n = roll.n + excluded.n, sum = roll.sum + excluded.sum),
  vouched AS (DELETE FROM holdfast.vouch WHERE run = '' AND kind = 'schedule' AND id = %(id)s)
SELECT 1 FROM gone;
-- name: schedules
SELECT s.schedule_id, s.tenant_id, CASE WHEN s.placed = s.id THEN s.due ELSE -1 END, s.data, v.seal FROM holdfast.schedule s
LEFT JOIN holdfast.vouch v ON v.run = '' AND v.kind = 'schedule' AND v.id = s.schedule_id
WHERE %(due)s::bigint IS NULL OR s.due <= %(due)s ORDER BY s.due NULLS LAST, s.id LIMIT 10000;

-- The store as a whole ------------------------------------------------------------------------------

-- name: is_there
SELECT to_regnamespace('holdfast') IS NOT NULL, to_regclass('holdfast.meta') IS NOT NULL;
-- name: make_schema
CREATE SCHEMA holdfast;
-- name: meta
SELECT key, value FROM holdfast.meta;
-- name: meta_lock
SELECT key, value FROM holdfast.meta ORDER BY key FOR UPDATE;
-- name: meta_set
INSERT INTO holdfast.meta (key, value) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value;
-- name: unhurried
-- For work on the rows of all runs, which may take long: if a limit of the role cancelled it, it would be rolled back and begun again each time.
SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;
-- name: one_maker
-- Only one process makes the schema at a time; the lock ends with the transaction.
SELECT pg_advisory_xact_lock(4853);
-- name: server
-- Which server this is, and on which history: any role may read both. The control file names the new timeline only some time after a promotion, at
-- the first checkpoint; the current write position names it at once. Also since when the server is up, where its newest checkpoint begins, where its
-- log is written, and up to where that log is on its disk. A start begins with a checkpoint after all that was on the disk before, unless the server
-- was reset to an older state of itself. Last comes the number of a table: a table that was restored from a dump has another.
SELECT (SELECT system_identifier FROM pg_control_system()),
  CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer END,
  pg_is_in_recovery(), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, holdfast_full.part, pg_backend_pid(),
  (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
  (SELECT redo_lsn - '0/0' FROM pg_control_checkpoint())::bigint,
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_insert_lsn() - '0/0')::bigint END,
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0')::bigint END, coalesce(to_regclass('holdfast.meta')::oid::bigint, 0)
FROM (SELECT sum(pg_stat_get_db_numbackends(oid))::float8 / current_setting('max_connections')::int AS part FROM pg_database) holdfast_full;
-- name: full
-- Which part of its connections a server has in use. Also ends sessions of clients that were cut off in the middle of a transaction: the server's own
-- limit for that does not count after a flush that follows the end of a message, as clients send it.
SELECT sum(pg_stat_get_db_numbackends(oid))::float8 / current_setting('max_connections')::int, (pg_current_wal_flush_lsn() - '0/0')::bigint,
  (SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE application_name = 'holdfast' AND usename = current_user AND datname = current_database() AND pid <> pg_backend_pid()
      AND (state LIKE 'idle in transaction%' OR (state = 'active' AND wait_event = 'ClientRead')) AND backend_xid IS NOT NULL AND state_change < clock_timestamp() - interval '2 seconds')
FROM pg_database;
-- name: news
-- A number that changes when anything is written, and again when others see it, without reading any table; the time; up to where the log is on the
-- disk; and the number of a table, as in `server`. A commit is in the log before it is seen, for as long as a sync takes: a process that looked in
-- between would not look again.
SELECT hashtextextended(pg_current_wal_insert_lsn()::text || ' ' || pg_current_snapshot()::text, 0), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
  (pg_current_wal_flush_lsn() - '0/0')::bigint, coalesce(to_regclass('holdfast.meta')::oid::bigint, 0);
-- name: move_fences
-- A new incarnation: every earlier fence is refused from now on, and every run is at rest.
UPDATE holdfast.run SET fence = (%(incarnation)s::bigint << 32) | (fence & 4294967295), due = CASE WHEN owner IS NULL THEN due ELSE n.once END, owner = NULL,
  seal = holdfast.standing(run_id, (%(incarnation)s::bigint << 32) | (fence & 4294967295), NULL, CASE WHEN owner IS NULL THEN due ELSE n.once END, holds, turn)
FROM (SELECT {at_once} AS once) n;
-- name: tails
-- Of the acknowledged commits given, the runs whose log row is missing, and with which row they end now.
SELECT x.run, (SELECT max(l.n) FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id)
FROM unnest(%(b)s::smallint[], %(run)s::text[], %(n)s::bigint[], %(hash)b::bytea[]) AS x (b, run, n, hash)
LEFT JOIN holdfast.run r ON r.bucket = x.b AND r.run_id = x.run
WHERE NOT EXISTS (SELECT 1 FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id AND l.n = x.n AND l.hash = x.hash);
-- name: effects_recorded
SELECT effect_id, status FROM holdfast.effect WHERE run_id = %s;
-- name: hold_back
-- Never due: they are taken only if asked for by name.
UPDATE holdfast.run r SET due = NULL, seal = holdfast.standing(r.run_id, r.fence, NULL, NULL, r.holds, r.turn)
FROM unnest(%(b)s::smallint[], %(run)s::text[]) AS x (b, run) WHERE r.bucket = x.b AND r.run_id = x.run AND r.owner IS NULL;
-- name: unspoken
-- Workers that may be alive and have not renewed their lease since then. Their latest renewals may be among what was lost, so none counts as gone
-- before one TTL after that.
SELECT 1 FROM holdfast.worker w WHERE w.expires_at - w.ttl < %(moved)s::bigint AND greatest(w.expires_at, %(moved)s::bigint + w.ttl) > {now} LIMIT 1;
-- name: forget_workers
WITH vouched AS (DELETE FROM holdfast.vouch WHERE run = '' AND kind = 'worker')
DELETE FROM holdfast.worker;
-- name: health
SELECT current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes'),
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
  (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()),
  (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'holdfast' AND n_dead_tup > 100000 AND n_dead_tup > n_live_tup),
  current_setting('autovacuum'),
  (SELECT format('the session %s of %s (%s, from %s, since %s)', pid, usename, coalesce(nullif(application_name, ''), 'no name'),
     coalesce(client_addr::text, 'this machine'), to_char(xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
   FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1);
-- name: chain_page
SELECT l.bucket, l.run, l.n, l.seq, l.hash, l.data FROM holdfast.log l
WHERE (l.bucket, l.run, l.n) > (%s, %s, %s) ORDER BY l.bucket, l.run, l.n LIMIT 500;
-- name: run_names
SELECT bucket, id, run_id FROM holdfast.run WHERE (bucket, id) IN (SELECT * FROM unnest(%s::smallint[], %s::bigint[]));
-- name: runs_without_log
SELECT r.run_id FROM holdfast.run r WHERE NOT EXISTS (SELECT 1 FROM holdfast.log l WHERE l.bucket = r.bucket AND l.run = r.id) LIMIT 100;

-- Upkeep --------------------------------------------------------------------------------------------

-- name: run_ids
SELECT run_id FROM holdfast.run WHERE run_id > %s ORDER BY run_id LIMIT %s;
-- name: log_orphans
-- Runs of which only the log is left, with its first row.
SELECT l.bucket, l.run, l.seq, l.data, l.hash FROM holdfast.log l
WHERE l.n = 1 AND NOT EXISTS (SELECT 1 FROM holdfast.run r WHERE r.bucket = l.bucket AND r.id = l.run) ORDER BY l.bucket, l.run LIMIT 10000;
-- name: run_raw
SELECT r.bucket, r.id, r.run_id, r.fence, r.owner, r.due, r.holds, r.turn, r.status, r.tenant_id, r.skill_id, r.fingerprint, r.thread_id, r.session_key,
  r.lane, r.queue, r.priority, r.parent_run_id, r.lineage_root, r.ended, {doc}, r.seal, r.previous, r.cause FROM holdfast.run r WHERE r.bucket = %s AND r.run_id = %s;
-- name: log_tip
SELECT seq, hash, n, since, whole, version, step, head FROM holdfast.log WHERE bucket = %s AND run = %s ORDER BY n DESC LIMIT 1;
-- name: log_rows
SELECT seq, data, hash FROM holdfast.log WHERE bucket = %s AND run = %s AND seq > %s ORDER BY n LIMIT %s;
-- name: whole_next
SELECT seq, data FROM holdfast.whole WHERE bucket = %s AND run = %s AND seq > %s ORDER BY seq LIMIT 1;
-- name: log_append
INSERT INTO holdfast.log (bucket, run, n, seq, since, whole, version, step, head, hash, data) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
-- name: run_put
INSERT INTO holdfast.run (bucket, id, run_id, fence, owner, due, holds, turn, status, tenant_id, skill_id, fingerprint, thread_id, session_key, lane, queue,
  priority, parent_run_id, lineage_root, ended, seal)
SELECT %s, %s, %s, %s, %s, %s, %s, n.turn, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, holdfast.standing(%s, %s, %s, %s, %s, n.turn)
FROM (SELECT coalesce(%s::bigint, nextval('holdfast.number')) AS turn) n;
-- name: doc_put
INSERT INTO holdfast.doc (bucket, run, data) VALUES (%s, %s, %b) {part_doc_anew};
-- name: next_number
SELECT nextval('holdfast.number');
-- name: run_delete
DELETE FROM holdfast.run WHERE bucket = %s AND run_id = %s;
-- name: thread_next
SELECT min(turn) FROM holdfast.run WHERE thread_id = %s AND thread_id <> run_id AND tenant_id = %s AND run_id > %s;
-- name: lane_holder
SELECT run_id FROM holdfast.run WHERE tenant_id = %s AND session_key = %s AND lane = %s AND holds AND run_id <> %s LIMIT 1;
-- name: inbox_unread
SELECT EXISTS (SELECT 1 FROM holdfast.inbox WHERE bucket = %s AND run = %s AND taken IS NULL);
-- name: inbox_adopt
INSERT INTO holdfast.inbox (bucket, run, key, put_at, taken, command) VALUES (%s, %s, %s, %s, %s, %s);
-- name: claim_adopt
-- A key that is taken here already keeps its claim.
WITH c AS (
  INSERT INTO holdfast.claim (kind, scope, key, run_id, digest, expires_at) VALUES (%(kind)s, %(scope)s, %(key)s, %(run)s, %(digest)s, %(until)s)
  ON CONFLICT DO NOTHING RETURNING 1
)
INSERT INTO holdfast.vouch (run, kind, id, seal, under, mark) SELECT '', 'claim', %(id)s, %(seal)b, %(run)s, NULL FROM c ON CONFLICT (run, kind, id) DO UPDATE SET seal = excluded.seal, under = excluded.under, mark = excluded.mark;
-- name: claims_of
SELECT kind, scope, key, digest, expires_at FROM holdfast.claim WHERE run_id = %s AND kind <> 'effect' ORDER BY kind, scope, key;
-- name: carries
SELECT b.run_id, s.run_id FROM holdfast.carry c JOIN holdfast.run b ON b.run_id = c.run JOIN holdfast.run s ON s.run_id = c.source
WHERE NOT EXISTS (SELECT 1 FROM holdfast.whole w WHERE w.bucket = b.bucket AND w.run = b.id AND w.seq = 0);
-- name: origin_insert
INSERT INTO holdfast.whole (bucket, run, seq, n, data) SELECT bucket, id, 0, 0, %s FROM holdfast.run WHERE bucket = %s AND run_id = %s ON CONFLICT DO NOTHING;
-- name: old_roots
-- Lineages with a run that ended before that time.
(SELECT DISTINCT lineage_root FROM holdfast.run WHERE ended < %(before)s AND lineage_root > %(after)s AND lineage_root <> run_id ORDER BY lineage_root LIMIT %(limit)s)
UNION (SELECT run_id FROM holdfast.run WHERE ended < %(before)s AND run_id > %(after)s AND lineage_root = run_id ORDER BY run_id LIMIT %(limit)s)
ORDER BY lineage_root LIMIT %(limit)s;
-- name: family
-- Lineages that are deleted or kept together with the given ones: those of parents and children, and those whose runs continue from the log of
-- theirs, or the other way round.
SELECT DISTINCT o.lineage_root FROM holdfast.run m JOIN holdfast.run o ON o.run_id = m.parent_run_id WHERE {m_of_roots}
UNION SELECT DISTINCT o.lineage_root FROM holdfast.run m JOIN holdfast.run o ON o.parent_run_id = m.run_id WHERE {m_of_roots}
UNION SELECT DISTINCT o.lineage_root FROM holdfast.run m JOIN holdfast.carry c ON c.source = m.run_id JOIN holdfast.run o ON o.run_id = c.run
  WHERE {m_of_roots};
-- name: members
SELECT run_id, lineage_root, parent_run_id, ended FROM holdfast.run r WHERE {r_of_roots} ORDER BY id;
-- name: lock_members
SELECT run_id FROM holdfast.run r WHERE {r_of_roots} ORDER BY bucket, id FOR UPDATE;
-- name: carries_among
SELECT b.run_id, s.run_id FROM holdfast.carry c JOIN holdfast.run b ON b.run_id = c.run JOIN holdfast.run s ON s.run_id = c.source
WHERE {s_of_roots} AND NOT EXISTS (SELECT 1 FROM holdfast.whole w WHERE w.bucket = b.bucket AND w.run = b.id AND w.seq = 0);
-- name: open_among
SELECT r.lineage_root FROM holdfast.run r JOIN holdfast.intent i ON i.run_id = r.run_id
WHERE {r_of_roots} AND i.state IN ('queued', 'sending', 'unknown')
UNION SELECT lineage_root FROM holdfast.effect WHERE lineage_root = ANY(%(roots)s::text[]) AND status IN ('attempted', 'unknown');
-- name: effects_among
SELECT run_id, data FROM holdfast.effect WHERE run_id = ANY(%(runs)s::text[]);
-- name: lock_blobs
SELECT b.sha256 FROM holdfast.blob b WHERE b.sha256 IN (SELECT sha256 FROM holdfast.blob_use WHERE run_id = ANY(%(runs)s::text[])) ORDER BY b.sha256 FOR UPDATE;
-- name: prune_uses
DELETE FROM holdfast.blob_use WHERE run_id = ANY(%(runs)s::text[]) AND NOT (run_id || ' ' || sha256 = ANY(%(kept)s::text[])) RETURNING sha256;
-- name: prune_blobs
DELETE FROM holdfast.blob b WHERE b.sha256 = ANY(%(shas)s::text[]) AND NOT EXISTS (SELECT 1 FROM holdfast.blob_use u WHERE u.sha256 = b.sha256);
-- name: prune_effects
WITH vouched AS (DELETE FROM holdfast.vouch WHERE run = ANY(%(runs)s::text[]) AND kind = 'effect' AND id = ANY(%(effects)s::text[]))
DELETE FROM holdfast.effect WHERE effect_id = ANY(%(effects)s::text[]);
-- name: prune_runs
WITH gone AS (DELETE FROM holdfast.run WHERE run_id = ANY(%(runs)s::text[]) RETURNING bucket, id),
  logs AS (DELETE FROM holdfast.log l USING gone WHERE l.bucket = gone.bucket AND l.run = gone.id),
  docs AS (DELETE FROM holdfast.doc d USING gone WHERE d.bucket = gone.bucket AND d.run = gone.id),
  wholes AS (DELETE FROM holdfast.whole w USING gone WHERE w.bucket = gone.bucket AND w.run = gone.id)
DELETE FROM holdfast.inbox i USING gone WHERE i.bucket = gone.bucket AND i.run = gone.id;
-- name: prune_beside
WITH calls AS (DELETE FROM holdfast.call WHERE run_id = ANY(%(runs)s::text[])),
  called AS (DELETE FROM holdfast.vouch WHERE under = ANY(%(runs)s::text[]) AND under <> '' AND kind = 'call'), tokens AS (DELETE FROM holdfast.token WHERE run_id = ANY(%(runs)s::text[]) RETURNING encode(hash, 'hex') AS id),
  counted AS (
    INSERT INTO holdfast.roll (kind, shard, n, sum) SELECT 'token', mod(pg_backend_pid(), 64), -count(*), -sum(holdfast.weigh('token', id)) FROM tokens HAVING count(*) > 0
    ON CONFLICT (kind, shard) DO UPDATE SET n = roll.n + excluded.n, sum = roll.sum + excluded.sum),
  intents AS (DELETE FROM holdfast.intent WHERE run_id = ANY(%(runs)s::text[])),
  rows AS (DELETE FROM holdfast.ledger WHERE run_id = ANY(%(runs)s::text[])),
  lasting AS (SELECT kind || chr(31) || scope || chr(31) || key AS id FROM holdfast.claim WHERE run_id = ANY(%(runs)s::text[]) AND kind <> 'effect' AND expires_at > %(now)s),
  claims AS (DELETE FROM holdfast.claim WHERE run_id = ANY(%(runs)s::text[]) AND kind <> 'effect' AND (expires_at IS NULL OR expires_at <= %(now)s)),
  chunks AS (DELETE FROM holdfast.chunk WHERE run_id = ANY(%(runs)s::text[])),
  vouched AS (DELETE FROM holdfast.vouch WHERE run = ANY(%(runs)s::text[]) AND kind <> 'effect'),
  vouched_claims AS (DELETE FROM holdfast.vouch WHERE under = ANY(%(runs)s::text[]) AND kind = 'claim' AND under <> '' AND NOT starts_with(id, 'effect' || chr(31))
    AND id NOT IN (SELECT id FROM lasting))
DELETE FROM holdfast.carry WHERE source = ANY(%(runs)s::text[]) OR run = ANY(%(runs)s::text[]);

-- name: prune_expired
-- Keys that have outlasted their pruned runs and have expired, with their vouchers.
WITH gone AS (
  DELETE FROM holdfast.claim c USING holdfast.pruned p WHERE p.run_id = c.run_id AND c.kind <> 'effect' AND c.expires_at <= %(now)s RETURNING c.kind, c.scope, c.key
)
DELETE FROM holdfast.vouch v USING gone WHERE v.run = '' AND v.kind = 'claim' AND v.id = gone.kind || chr(31) || gone.scope || chr(31) || gone.key;

-- Chunks --------------------------------------------------------------------------------------------

-- name: chunk_put
INSERT INTO holdfast.chunk (run_id, turn, last, data) VALUES (%s, %s, %s, %b);
-- name: chunk_cut
DELETE FROM holdfast.chunk WHERE run_id = %s AND turn = %s AND last < %s;
-- name: chunk_gone
UPDATE holdfast.chunk SET gone = {now} WHERE run_id = %(run)s AND turn = ANY(%(turns)s::text[]) AND gone IS NULL;
-- name: chunk_sweep
-- By the index of replaced chunks: the statistics do not tell how many there are, and for the third of the table that is assumed the server would
-- read all of it.
DELETE FROM holdfast.chunk WHERE serial = ANY(ARRAY(SELECT serial FROM holdfast.chunk WHERE gone < {now} - %(linger)s ORDER BY gone LIMIT 100));
-- name: chunk_fences
SELECT r.run_id, r.fence FROM unnest(%(b)s::smallint[], %(run)s::text[]) AS x (b, run)
JOIN holdfast.run r ON r.bucket = x.b AND r.run_id = x.run ORDER BY r.bucket, r.id FOR SHARE OF r;
-- name: chunks
SELECT serial, data, gone IS NOT NULL FROM holdfast.chunk WHERE run_id = %s AND serial > %s ORDER BY serial LIMIT %s;
-- name: chunks_newest
SELECT data FROM holdfast.chunk WHERE serial IN (
  SELECT max(serial) FROM holdfast.chunk WHERE run_id = %s AND gone IS NULL GROUP BY turn) ORDER BY serial;
-- name: triggers_there
-- And rules: Holdfast makes none of either. A trigger of a partitioned table is told once.
SELECT 'trigger', t.tgname, c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = to_regnamespace('holdfast') AND NOT t.tgisinternal AND t.tgparentid = 0
UNION ALL SELECT 'rule', r.rulename, c.relname FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
WHERE c.relnamespace = to_regnamespace('holdfast') AND c.relkind IN ('r', 'p') ORDER BY 1 DESC, 2, 3;
-- name: indexes_there
-- Indexes of partitions are found by the index of which they are parts.
SELECT c.relname, i.indisvalid AND i.indisready FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = to_regnamespace('holdfast') AND NOT c.relispartition;
