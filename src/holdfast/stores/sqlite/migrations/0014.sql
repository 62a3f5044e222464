-- A table without rowids keeps at most a quarter of a page of a row in its tree, and the rest of a larger row on a page of its own. Rows on
-- shelves are often larger: with rowids a commit of three of them writes half as many pages. Their vouchers are not searched by the name of
-- the shelf, so that index no longer has them.

CREATE TABLE shelf_with_rowids (
  name TEXT NOT NULL,
  key  TEXT NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (name, key)
) STRICT;
INSERT INTO shelf_with_rowids (name, key, data) SELECT name, key, data FROM shelf ORDER BY name, key;
DROP TABLE shelf;
ALTER TABLE shelf_with_rowids RENAME TO shelf;

DROP INDEX vouch_under;
CREATE INDEX vouch_under ON vouch (under, kind) WHERE under <> '' AND kind <> 'shelf';
