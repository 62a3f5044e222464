-- Marks runs that stand behind the holder of their lane, if there are many of them, so that claims do not examine them. The mark decides nothing, so
-- it has no voucher: a run without it is refused because of its lane, and a run that has it without reason loses it when lanes are checked.
ALTER TABLE run ADD COLUMN behind INTEGER NOT NULL DEFAULT 0;

DROP INDEX run_due;
CREATE INDEX run_due ON run (queue, priority, tenant_id, due, turn, status) WHERE due IS NOT NULL AND owner IS NULL AND behind = 0;
-- A run that is not in the one index is in the other, whatever value damage has written. By lane in the order of turns; queue and status are there so
-- that they can be counted.
CREATE INDEX run_behind ON run (tenant_id, session_key, lane, turn, queue, status) WHERE behind <> 0;

-- When a run leaves its lane, the first run behind it loses its mark; likewise when a run that might have been the next is deleted, or becomes due
-- later. All of these write the due value. The condition is checked first, because the body is costly even if no run is marked.
CREATE TRIGGER run_lets_go AFTER UPDATE OF due ON run
WHEN new.holds = 0 AND EXISTS (
    SELECT 1 FROM run b INDEXED BY run_behind WHERE b.behind <> 0 AND b.tenant_id = new.tenant_id AND b.session_key = new.session_key AND b.lane = new.lane)
  AND (old.holds = 1 OR new.due IS NULL AND old.due IS NOT NULL OR new.due > old.due)
BEGIN
  UPDATE run SET behind = 0 WHERE id = (
    SELECT b.id FROM run b INDEXED BY run_behind
    WHERE b.behind <> 0 AND b.tenant_id = new.tenant_id AND b.session_key = new.session_key AND b.lane = new.lane ORDER BY b.turn LIMIT 1);
END;
CREATE TRIGGER run_gone AFTER DELETE ON run
WHEN old.holds = 1 OR old.due IS NOT NULL
BEGIN
  UPDATE run SET behind = 0 WHERE id = (
    SELECT b.id FROM run b INDEXED BY run_behind
    WHERE b.behind <> 0 AND b.tenant_id = old.tenant_id AND b.session_key = old.session_key AND b.lane = old.lane ORDER BY b.turn LIMIT 1);
END;
