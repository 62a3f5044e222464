-- Runs that stand behind the holder of their lane, where there are many of them: claims do not look at them. It decides nothing, so nothing vouches
-- for it: a run without the mark is refused by its lane, and one that has it in vain loses it when the lanes are gone through.
ALTER TABLE run ADD COLUMN behind INTEGER NOT NULL DEFAULT 0;

DROP INDEX run_due;
CREATE INDEX run_due ON run (queue, priority, tenant_id, due, turn, status) WHERE due IS NOT NULL AND owner IS NULL AND behind = 0;
-- Whoever is not in the one is in the other, whatever damage writes there. Lane by lane in the order of their turns; queue and status are there to be counted.
CREATE INDEX run_behind ON run (tenant_id, session_key, lane, turn, queue, status) WHERE behind <> 0;

-- Whoever lets go of a lane takes the mark from the first that stands behind; so does one that might have been the next and goes, or goes later.
-- All of these say anew when the run is due. The condition looks first: what the body does is costly even where nobody is marked.
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
