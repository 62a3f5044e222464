-- What steps emit until their results are durable (§13.6): the ring of each attempt, with a row for each write.

CREATE TABLE chunk (
  serial INTEGER PRIMARY KEY AUTOINCREMENT, -- readers' cursors name it, so none is used again
  run    INTEGER NOT NULL,
  turn   TEXT NOT NULL,                     -- which attempt of which place
  last   INTEGER NOT NULL,                  -- number of its last chunk
  data   BLOB NOT NULL,
  gone   INTEGER                            -- when something durable replaced it: it goes a little later
) STRICT;
CREATE INDEX chunk_run ON chunk (run, serial);
CREATE INDEX chunk_gone ON chunk (gone) WHERE gone IS NOT NULL;
