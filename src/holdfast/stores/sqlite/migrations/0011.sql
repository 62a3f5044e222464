-- Until when an intent is its sender's, by the clock since boot, which nobody sets; of which boot says the sender's row (§10.3).

ALTER TABLE intent ADD COLUMN ticks INTEGER;
