-- Effects, inbox items, intents and schedules are ordered by `id`, which is in no digest, because the database assigns it. `placed` stores it
-- once more: a record whose two numbers differ was moved, and is read as altered (§12.1). Existing rows are taken as they are.
ALTER TABLE holdfast.effect ADD COLUMN placed bigint;
ALTER TABLE holdfast.inbox ADD COLUMN placed bigint;
ALTER TABLE holdfast.intent ADD COLUMN placed bigint;
ALTER TABLE holdfast.schedule ADD COLUMN placed bigint;
UPDATE holdfast.effect SET placed = id;
UPDATE holdfast.inbox SET placed = id;
UPDATE holdfast.intent SET placed = id;
UPDATE holdfast.schedule SET placed = id;
ALTER TABLE holdfast.effect ALTER COLUMN placed SET DEFAULT currval('holdfast.number');
ALTER TABLE holdfast.inbox ALTER COLUMN placed SET DEFAULT currval('holdfast.number');
ALTER TABLE holdfast.intent ALTER COLUMN placed SET DEFAULT currval('holdfast.number');
ALTER TABLE holdfast.schedule ALTER COLUMN placed SET DEFAULT currval('holdfast.number');
