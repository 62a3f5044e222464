-- What steps emit until their results are durable (§13.6): the ring of each attempt, with a row for each write.
CREATE TABLE holdfast.chunk (
  serial bigint PRIMARY KEY DEFAULT nextval('holdfast.number'), -- readers' cursors name it
  run_id text NOT NULL,
  turn   text NOT NULL,                                         -- which attempt of which place
  last   bigint NOT NULL,                                       -- number of its last chunk
  data   bytea NOT NULL,
  gone   bigint                                                 -- when something durable replaced it: it goes a little later
);
CREATE INDEX chunk_run ON holdfast.chunk (run_id, serial);
CREATE INDEX chunk_gone ON holdfast.chunk (gone) WHERE gone IS NOT NULL;
