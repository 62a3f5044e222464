-- The vouchers of shelf rows are not searched by the name of the shelf, so this index no longer has them.

DROP INDEX holdfast.vouch_under;
CREATE INDEX vouch_under ON holdfast.vouch (under, kind) WHERE under <> '' AND kind <> 'shelf';
