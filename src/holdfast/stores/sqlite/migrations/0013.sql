-- By `id` effects, inbox items, intents and schedules are ordered, and no digest says it. `placed` keeps it once more: a record whose two
-- numbers differ was moved, and is read as one that is not what was written (§12.1). Rows that are here already are taken as they are;
-- null: a release before this one wrote it.

ALTER TABLE effect ADD COLUMN placed INTEGER;
ALTER TABLE inbox ADD COLUMN placed INTEGER;
ALTER TABLE intent ADD COLUMN placed INTEGER;
ALTER TABLE schedule ADD COLUMN placed INTEGER;
UPDATE effect SET placed = id;
UPDATE inbox SET placed = id;
UPDATE intent SET placed = id;
UPDATE schedule SET placed = id;
