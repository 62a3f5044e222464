-- Marks runs that stand behind the holder of their lane, if there are many of them, so that claims do not examine them. When a run leaves its
-- lane, the first run behind it loses its mark. The mark decides nothing, so it has no voucher: a run without it is refused because of its lane,
-- and a run that has it without reason loses it.
ALTER TABLE holdfast.run ADD COLUMN IF NOT EXISTS behind boolean NOT NULL DEFAULT false;
DROP INDEX holdfast.run_due;
CREATE INDEX run_due ON holdfast.run (queue, priority DESC, tenant_id, due, turn) WHERE due IS NOT NULL AND owner IS NULL AND NOT behind;
CREATE INDEX run_behind ON holdfast.run (tenant_id, session_key, lane, turn) WHERE behind;
