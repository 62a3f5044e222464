-- Nobody looks for what vouches for the rows of a shelf by the name of the shelf: it stands in this index no longer.

DROP INDEX holdfast.vouch_under;
CREATE INDEX vouch_under ON holdfast.vouch (under, kind) WHERE under <> '' AND kind <> 'shelf';
