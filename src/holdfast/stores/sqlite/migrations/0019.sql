-- A row of a shelf may be lost, or put back from an older copy, together with its voucher. So the store says for each shelf how many rows there must be,
-- and the sum of a number from each voucher, which covers the row's content.

CREATE TABLE shelf_roll (
  name TEXT PRIMARY KEY,
  n INTEGER NOT NULL,
  sum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO shelf_roll (name, n, sum) SELECT under, count(*), sum(heft(seal)) FROM vouch WHERE run = '' AND kind = 'shelf' GROUP BY under;
