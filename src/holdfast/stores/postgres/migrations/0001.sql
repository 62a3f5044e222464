-- A tour of the schema. «{hash …}» is replaced when the schema is made: by nothing, or, in the partitioned profile, by PARTITION BY HASH.
--
-- A run's truth is its LOG: one append-only row per commit, with the commit's events, its checkpoint delta and its results in one
-- encoding (core/codec). Rows of a run count from 1 (`n`); the key (bucket, run, n) is the compare-and-set of every commit: two that
-- follow the same row cannot both be there. The hash chains the bytes.
--
-- A plain step only inserts: it locks the run's row in share mode, for the fence, and writes a log row that also carries the run's hot
-- columns (events folded, step, head). The RUN row is written by whatever changes more: a birth, a claim, a rest, an end, a put.
--
-- `bucket` is a function of the lane and the tail of every run id, so that a run is found in its partition by its id alone. Keys that
-- cross sessions (requests, inbound messages, slots, open effects) lie in `claim` and `effect`, by the hash of the key.
--
-- Integer keys inside, the text ids of the outside once each. Times are microseconds since 1970, UTC. No trigger, no session state.

CREATE TABLE holdfast.meta (
  key   text PRIMARY KEY,            -- schema, incarnation (31 random bits, the high bits of every fence), system, timeline
  value bigint NOT NULL
);

CREATE SEQUENCE holdfast.number;     -- row ids, and places in lanes: without a cache, so that the order is that of asking

-- Columns of fixed width that are never null come first: the server finds their values at a fixed place, and it compares every indexed column when it
-- writes a row anew. Their order has no other meaning; it is different in stores that were made earlier.
CREATE TABLE holdfast.run (
  id            bigint NOT NULL DEFAULT nextval('holdfast.number'),
  fence         bigint NOT NULL,     -- incarnation << 32 | counter
  turn          bigint NOT NULL,     -- place in its lane: of its submission or latest resurrection
  priority      integer NOT NULL,
  bucket        smallint NOT NULL,
  holds         boolean NOT NULL,    -- holds its lane
  behind        boolean NOT NULL DEFAULT false, -- stands behind the holder of its lane (0009)
  due           bigint,              -- when a worker is next needed; null: never by itself
  ended         bigint,              -- when it ended; null while it has not: what prune goes by
  run_id        text NOT NULL,
  owner         text,                -- null at rest and after the end
  queue         text NOT NULL,
  tenant_id     text NOT NULL,
  session_key   text NOT NULL,
  lane          text NOT NULL,
  status        text NOT NULL,
  skill_id      text NOT NULL,
  thread_id     text NOT NULL,
  lineage_root  text NOT NULL,
  parent_run_id text,
  fingerprint   text NOT NULL,
  previous      text,                -- whom the owner took it over from, and why: an answer that was lost is found again
  cause         text,
  doc           bytea NOT NULL,      -- the rest of it; lies beside since 0014
  PRIMARY KEY (bucket, id),
  UNIQUE (bucket, run_id)
) {hash bucket};

-- The indexes that claims use. Runs that wait for nothing but a person have due null and are in neither.
CREATE INDEX run_due ON holdfast.run (queue, priority DESC, due, turn) WHERE due IS NOT NULL AND owner IS NULL;
CREATE INDEX run_owner ON holdfast.run (owner) WHERE owner IS NOT NULL;
-- This index ensures that a lane has one holder at most.
CREATE UNIQUE INDEX run_lane_holder ON holdfast.run (tenant_id, session_key, lane{, bucket}) WHERE holds;
CREATE INDEX run_lane_queue ON holdfast.run (tenant_id, session_key, lane, turn) WHERE due IS NOT NULL;
-- Listings, newest first.
CREATE INDEX run_id ON holdfast.run (run_id);
CREATE INDEX run_thread ON holdfast.run (thread_id, run_id);
CREATE INDEX run_thread_turn ON holdfast.run (thread_id, turn);
CREATE INDEX run_session_open ON holdfast.run (session_key, run_id) WHERE status NOT IN ('completed', 'failed', 'canceled');
CREATE INDEX run_status ON holdfast.run (status, run_id);
CREATE INDEX run_parent ON holdfast.run (parent_run_id, run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX run_lineage ON holdfast.run (lineage_root, run_id);
CREATE INDEX run_ended ON holdfast.run (ended) WHERE ended IS NOT NULL;

CREATE TABLE holdfast.log (
  bucket  smallint NOT NULL,
  run     bigint NOT NULL,
  n       bigint NOT NULL,           -- the how-manieth row of its run
  seq     bigint NOT NULL,           -- number of the commit's last event
  since   bigint NOT NULL,           -- bytes logged since the newest whole checkpoint
  whole   bigint NOT NULL,           -- size of that one
  version bigint NOT NULL,           -- events folded
  step    text,
  head    text,
  hash    bytea NOT NULL,            -- H(hash of the row before, data)
  data    bytea NOT NULL,
  PRIMARY KEY (bucket, run, n)
) {hash bucket};

CREATE TABLE holdfast.whole (
  bucket smallint NOT NULL,
  run    bigint NOT NULL,
  seq    bigint NOT NULL,            -- of the commit that saved it; 0: an origin, which no commit saved
  n      bigint NOT NULL,
  data   bytea NOT NULL,
  PRIMARY KEY (bucket, run, seq)
) {hash bucket};

-- Whose log a run's first checkpoint carries its thread on from.
CREATE TABLE holdfast.carry (
  source text NOT NULL,
  run    text NOT NULL,
  PRIMARY KEY (source, run)
);
CREATE INDEX carry_run ON holdfast.carry (run);

CREATE TABLE holdfast.inbox (
  bucket  smallint NOT NULL,
  run     bigint NOT NULL,
  key     text NOT NULL,             -- a decision and its timeout share one: whoever comes first has it
  id      bigint NOT NULL DEFAULT nextval('holdfast.number'),
  put_at  bigint NOT NULL,
  taken   bigint,                    -- seq of the commit that consumed it
  command bytea NOT NULL,
  PRIMARY KEY (bucket, run, key)
) {hash bucket};
CREATE INDEX inbox_untaken ON holdfast.inbox (bucket, run, id) WHERE taken IS NULL;

CREATE TABLE holdfast.claim (
  kind       text NOT NULL,
  scope      text NOT NULL,
  key        text NOT NULL,
  run_id     text NOT NULL,
  digest     text NOT NULL,
  expires_at bigint,
  PRIMARY KEY (kind, scope, key)
) {hash key};
CREATE INDEX claim_run ON holdfast.claim (run_id);

CREATE TABLE holdfast.effect (
  id           bigint NOT NULL DEFAULT nextval('holdfast.number'),
  effect_id    text NOT NULL,
  run_id       text NOT NULL,
  lineage_root text NOT NULL,
  key          text NOT NULL,
  status       text NOT NULL,
  data         bytea NOT NULL,
  PRIMARY KEY (key, effect_id)
) {hash key};
CREATE INDEX effect_id ON holdfast.effect (effect_id);
CREATE INDEX effect_run ON holdfast.effect (run_id, id);
CREATE INDEX effect_lineage ON holdfast.effect (lineage_root, id);
CREATE INDEX effect_unsettled ON holdfast.effect (id) WHERE status IN ('attempted', 'unknown');
-- At most one attempt of a key is open: nobody acts under the key until that one is settled.
CREATE UNIQUE INDEX effect_open ON holdfast.effect (key) WHERE status IN ('attempted', 'unknown');

-- Messages that were decided and are not yet sent. An intent's columns are those by which it is found, and those that change with each attempt;
-- columns take precedence over `data`.
CREATE TABLE holdfast.intent (
  id          bigint NOT NULL DEFAULT nextval('holdfast.number'),
  intent_id   text PRIMARY KEY,
  run_id      text NOT NULL,
  tenant_id   text NOT NULL,
  type        text NOT NULL,
  target      text NOT NULL,         -- the receiver, as far as that can be told
  order_key   text NOT NULL,
  created_at  bigint NOT NULL,
  state       text NOT NULL,
  due         bigint NOT NULL,
  owner       text,
  lease_until bigint,
  settled_at  bigint,
  attempts    integer NOT NULL,
  carries     boolean NOT NULL,      -- false: its payload has been dropped
  data        bytea NOT NULL
);
CREATE INDEX intent_run ON holdfast.intent (run_id, id);
CREATE INDEX intent_id ON holdfast.intent (id);
-- Lanes are walked one after the other, so that a receiver with a long queue does not hold up the others.
CREATE INDEX intent_queued ON holdfast.intent (type, tenant_id, target, order_key, due, id) WHERE state = 'queued';
CREATE INDEX intent_sending ON holdfast.intent (id) WHERE state = 'sending';
-- Under one order key the oldest open intent comes first, whatever the result of its attempts.
CREATE INDEX intent_order ON holdfast.intent (tenant_id, type, order_key, id) WHERE order_key <> '' AND state IN ('queued', 'sending', 'unknown');
CREATE INDEX intent_stuck ON holdfast.intent (state, id) WHERE state IN ('unknown', 'dead');
CREATE INDEX intent_settled ON holdfast.intent (settled_at) WHERE settled_at IS NOT NULL AND carries AND state IN ('sent', 'abandoned');

-- For people: SELECT topic, key, json FROM holdfast.ledger.
CREATE TABLE holdfast.ledger (
  id      bigint PRIMARY KEY DEFAULT nextval('holdfast.number'),
  run_id  text NOT NULL,
  step_id text NOT NULL,
  topic   text NOT NULL,
  key     text NOT NULL,
  at      bigint NOT NULL,
  data    bytea NOT NULL,
  json    json
);
CREATE INDEX ledger_run ON holdfast.ledger (run_id, id);
CREATE INDEX ledger_topic ON holdfast.ledger (topic, key, id);

-- Processes that hold leases: one row holds the expiry of all their runs.
CREATE TABLE holdfast.worker (
  owner      text CONSTRAINT worker_owner PRIMARY KEY,
  started_at bigint NOT NULL,
  expires_at bigint NOT NULL,
  ttl        bigint NOT NULL,
  boot       text NOT NULL,          -- which boot of which machine: there a locked file proves life and death
  host       text NOT NULL,
  pid        integer NOT NULL
);

CREATE TABLE holdfast.token (
  hash       bytea PRIMARY KEY,
  run_id     text NOT NULL,
  wait_id    text NOT NULL,
  tenant_id  text NOT NULL,
  actor      text NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL,
  used_at    bigint,
  revoked_at bigint
);
CREATE INDEX token_run ON holdfast.token (run_id);

CREATE TABLE holdfast.schedule (
  id          bigint NOT NULL DEFAULT nextval('holdfast.number'),
  schedule_id text PRIMARY KEY,
  tenant_id   text NOT NULL,
  due         bigint,                -- null: paused
  data        bytea NOT NULL
);
-- What each worker works on: its queues, and the shapes of the skills it has.
CREATE TABLE holdfast.offer (
  owner text PRIMARY KEY,
  data  bytea NOT NULL
);
CREATE INDEX schedule_due ON holdfast.schedule (due) WHERE due IS NOT NULL;

-- Large results, stored once under the hash of their bytes, and the runs that refer to them: a blob is deleted with the last of these.
CREATE TABLE holdfast.blob (
  sha256 text PRIMARY KEY,
  data   bytea NOT NULL
);
CREATE TABLE holdfast.blob_use (
  run_id text NOT NULL,
  sha256 text NOT NULL,
  PRIMARY KEY (run_id, sha256)
);
CREATE INDEX blob_use_blob ON holdfast.blob_use (sha256);

{tuned}
