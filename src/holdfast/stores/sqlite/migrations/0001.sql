-- A tour of the schema.
--
-- A run's truth is its LOG: one append-only row per commit, holding the commit's events, its checkpoint delta and its
-- results in one encoding (core/codec). Rows of all runs interleave in one B-tree that only ever grows at its end, so
-- an insert touches one page; `prev` chains the rows of one run backwards from its tip, and there is no (run, seq)
-- index to scatter over. `hash` chains the bytes.
--
-- The RUN row is a cache of the fold, and the operational columns beside it (owner, fence, due, holds, turn) that no
-- event decides. A plain step rewrites its hot columns only, none of which is indexed; the encoded cold part, `doc`,
-- is rewritten when something else about the run changed.
--
-- WHOLE holds whole checkpoints, now and then: where loading starts, and the skip pointers of forward paging.
-- Everything else hangs beside a run and is written in the same transaction as the log row that decides it.
--
-- Integer keys inside, the text ids of the outside once each. Times are microseconds since 1970, UTC.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,          -- incarnation: 31 random bits, the high bits of every fence
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE log (
  id   INTEGER PRIMARY KEY,        -- grows in commit order; the anchor file remembers the last one acknowledged
  run  INTEGER NOT NULL,
  seq  INTEGER NOT NULL,           -- number of the commit's last event
  prev INTEGER NOT NULL,           -- id of the run's row before, 0 for its first
  hash BLOB NOT NULL,              -- H(hash of that row, data)
  data BLOB NOT NULL
) STRICT;

CREATE TABLE run (
  id      INTEGER PRIMARY KEY,
  -- hot: every step
  seq     INTEGER NOT NULL,
  tip     INTEGER NOT NULL,        -- log.id of the newest row: the compare-and-set of every commit
  since   INTEGER NOT NULL,        -- bytes logged since the newest whole checkpoint
  version INTEGER NOT NULL,        -- events folded
  step    TEXT,
  head    TEXT,
  fence   INTEGER NOT NULL,        -- incarnation << 32 | counter
  -- operational: claims, rests, wake-ups
  owner   TEXT,                    -- null at rest and after the end
  due     INTEGER,                 -- when a worker is next needed; null: never by itself
  holds   INTEGER NOT NULL,        -- 1: holds its lane
  turn    INTEGER NOT NULL,        -- place in its lane: the log id of its submission or latest resurrection
  whole   INTEGER NOT NULL,        -- size of the newest whole checkpoint
  -- cold: what runs are found by
  run_id        TEXT NOT NULL UNIQUE,
  status        TEXT NOT NULL,
  tenant_id     TEXT NOT NULL,
  skill_id      TEXT NOT NULL,
  fingerprint   TEXT NOT NULL,     -- of the skill's shape: a worker claims only what it can go on with
  thread_id     TEXT NOT NULL,
  session_key   TEXT NOT NULL,
  lane          TEXT NOT NULL,
  queue         TEXT NOT NULL,
  priority      INTEGER NOT NULL,
  parent_run_id TEXT,
  lineage_root  TEXT NOT NULL,
  doc           BLOB NOT NULL
) STRICT;

-- The indexes that claims use. Runs that wait for nothing but a person have due NULL and are in neither.
CREATE INDEX run_due ON run (queue, priority, due) WHERE due IS NOT NULL AND owner IS NULL;
CREATE INDEX run_owner ON run (owner) WHERE owner IS NOT NULL;
-- This index ensures that a lane has one holder at most (§10.8, §10.14).
CREATE UNIQUE INDEX run_lane_holder ON run (tenant_id, session_key, lane) WHERE holds = 1;
CREATE INDEX run_lane_queue ON run (tenant_id, session_key, lane, turn) WHERE due IS NOT NULL;
-- Listings, newest first.
CREATE INDEX run_tenant ON run (tenant_id, run_id);
CREATE INDEX run_thread ON run (thread_id, run_id);
CREATE INDEX run_thread_turn ON run (thread_id, turn); -- what a thread carries on from (§4.15)
CREATE INDEX run_session ON run (session_key, run_id);
CREATE INDEX run_status ON run (status, run_id);
CREATE INDEX run_parent ON run (parent_run_id, run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX run_lineage ON run (lineage_root, run_id);

CREATE TABLE whole (
  run  INTEGER NOT NULL,
  seq  INTEGER NOT NULL,           -- of the commit that saved it
  log  INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE inbox (
  id      INTEGER PRIMARY KEY,
  run     INTEGER NOT NULL,
  key     TEXT NOT NULL,           -- a decision and its timeout share one: whoever comes first has it
  put_at  INTEGER NOT NULL,
  taken   INTEGER,                 -- seq of the commit that consumed it; kept until the run is pruned
  command BLOB NOT NULL,
  UNIQUE (run, key)
) STRICT;
CREATE INDEX inbox_untaken ON inbox (run, id) WHERE taken IS NULL;

-- Keys that may be taken once: requests, inbound messages, shared effects.
CREATE TABLE claim (
  kind       TEXT NOT NULL,
  scope      TEXT NOT NULL,
  key        TEXT NOT NULL,
  run_id     TEXT NOT NULL,
  digest     TEXT NOT NULL,
  expires_at INTEGER,
  PRIMARY KEY (kind, scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX claim_expiry ON claim (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE effect (
  id           INTEGER PRIMARY KEY,
  effect_id    TEXT NOT NULL UNIQUE,
  run_id       TEXT NOT NULL,
  lineage_root TEXT NOT NULL,
  key          TEXT NOT NULL,
  status       TEXT NOT NULL,
  data         BLOB NOT NULL
) STRICT;
CREATE INDEX effect_run ON effect (run_id, id);
CREATE INDEX effect_key ON effect (key, id);
CREATE INDEX effect_lineage ON effect (lineage_root, id);
-- At most one attempt of a key is open: nobody acts under the key until that one is settled (§6.8).
CREATE UNIQUE INDEX effect_open ON effect (key) WHERE status IN ('attempted', 'unknown');

-- Messages that were decided and are not yet sent. Delivery is recorded here; the checkpoint never changes (§9.3).
CREATE TABLE intent (
  id          INTEGER PRIMARY KEY,
  intent_id   TEXT NOT NULL UNIQUE,
  run_id      TEXT NOT NULL,
  order_key   TEXT NOT NULL,
  state       TEXT NOT NULL,
  due         INTEGER NOT NULL,
  owner       TEXT,
  lease_until INTEGER,
  settled_at  INTEGER,
  data        BLOB NOT NULL
) STRICT;
CREATE INDEX intent_run ON intent (run_id, id);
CREATE INDEX intent_queued ON intent (due, id) WHERE state = 'queued';
CREATE INDEX intent_sending ON intent (id) WHERE state = 'sending';
CREATE INDEX intent_order ON intent (order_key, id) WHERE order_key <> '' AND state IN ('queued', 'sending', 'unknown');
CREATE INDEX intent_settled ON intent (settled_at) WHERE settled_at IS NOT NULL;

CREATE TABLE ledger (
  id     INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL,
  topic  TEXT NOT NULL,
  key    TEXT NOT NULL,
  at     INTEGER NOT NULL,
  data   BLOB NOT NULL
) STRICT;
CREATE INDEX ledger_run ON ledger (run_id, id);

-- Processes that hold leases: one row holds the expiry of all their runs (§10.4). The machine's own clock since boot
-- decides between processes of one boot, so that a jump of the wall clock expires nobody (X-13).
CREATE TABLE worker (
  owner      TEXT PRIMARY KEY,
  started_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,     -- wall clock
  boot       TEXT NOT NULL,        -- which boot of which machine; '' when tests move the clock
  ticks      INTEGER NOT NULL,     -- expiry on that boot's clock
  host       TEXT NOT NULL,
  pid        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Resume tokens: the hash only, single use (§5.9).
CREATE TABLE token (
  hash       BLOB PRIMARY KEY,
  run        INTEGER NOT NULL,
  wait_id    TEXT NOT NULL,
  tenant_id  TEXT NOT NULL,
  actor      TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at    INTEGER,
  revoked_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX token_run ON token (run);

-- Schedules, and the slots that have fired: the slot is the key, so none fires twice (§10.15).
CREATE TABLE schedule (
  id          INTEGER PRIMARY KEY,
  schedule_id TEXT NOT NULL UNIQUE,
  tenant_id   TEXT NOT NULL,
  due         INTEGER,             -- null: paused
  data        BLOB NOT NULL
) STRICT;
CREATE INDEX schedule_due ON schedule (due) WHERE due IS NOT NULL;
CREATE TABLE slot (
  schedule INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  run_id   TEXT,
  PRIMARY KEY (schedule, at)
) STRICT, WITHOUT ROWID;

-- Artifacts by content (§11.4).
CREATE TABLE blob (
  sha256     BLOB PRIMARY KEY,
  size       INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  data       BLOB NOT NULL
) STRICT;
