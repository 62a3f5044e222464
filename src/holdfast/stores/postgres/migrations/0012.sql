-- A run is found by its name alone, so that a write of its row writes one index less: its number is in no index. The key of the log refuses a number
-- that was assigned twice.
ALTER TABLE holdfast.run DROP CONSTRAINT run_pkey;
ALTER TABLE holdfast.run DROP CONSTRAINT run_id;
ALTER TABLE holdfast.run ADD PRIMARY KEY (run_id, bucket) WITH (deduplicate_items = off);
