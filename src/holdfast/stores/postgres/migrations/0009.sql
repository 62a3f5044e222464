-- Runs that stand behind the holder of their lane, where there are many of them: claims do not look at them. Whoever lets go of the lane takes the
-- mark from the first. It decides nothing, so nothing vouches for it: a run without it is refused by its lane, one that has it in vain loses it.
ALTER TABLE holdfast.run ADD COLUMN IF NOT EXISTS behind boolean NOT NULL DEFAULT false;
DROP INDEX holdfast.run_due;
CREATE INDEX run_due ON holdfast.run (queue, priority DESC, tenant_id, due, turn) WHERE due IS NOT NULL AND owner IS NULL AND NOT behind;
CREATE INDEX run_behind ON holdfast.run (tenant_id, session_key, lane, turn) WHERE behind;
