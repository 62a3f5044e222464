-- Effects, inbox items, intents and schedules are ordered by `id`, which is in no digest. `placed` stores it once more: a record whose
-- two numbers differ was moved, and is read as altered (§12.1). Existing rows are taken as they are; null: written by an earlier release.

ALTER TABLE effect ADD COLUMN placed INTEGER;
ALTER TABLE inbox ADD COLUMN placed INTEGER;
ALTER TABLE intent ADD COLUMN placed INTEGER;
ALTER TABLE schedule ADD COLUMN placed INTEGER;
UPDATE effect SET placed = id;
UPDATE inbox SET placed = id;
UPDATE intent SET placed = id;
UPDATE schedule SET placed = id;
