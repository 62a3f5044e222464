-- Until when a sender has an intent, by the clock since boot, which nobody sets; the boot is that of the sender's row (§10.3).

ALTER TABLE intent ADD COLUMN ticks INTEGER;
