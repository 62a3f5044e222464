"""Access tokens and the shelves that keep them (§14.1, §16.2, §19.2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Runtime
from holdfast.access import SHELF, Forbidden, Scope, Tokens
from holdfast.core.errors import InvalidInput, NotFound

URLS = ["memory:", "sqlite:///{}/a.db", "workspace:{}/ws"]


@pytest.mark.parametrize("url", URLS)
async def test_a_shelf_keeps_rows(url: str, tmp_path: Path) -> None:
    url = url.format(tmp_path)
    async with Runtime(url) as rt:
        shelf, other = rt.shelf("mine"), rt.shelf("other")
        await shelf.put_many({"a/1": b"1", "a/2": b"2", "b%": b"3"})
        await other.put("a/1", b"other")
        assert await shelf.add("a/1", b"late") == b"1" and await shelf.add("c", b"4") is None
        assert await shelf.get("a/1") == b"1" and await shelf.get("none") is None
        assert await shelf.scan("a/") == [("a/1", b"1"), ("a/2", b"2")] and await shelf.scan("a/", after="a/1", limit=1) == [("a/2", b"2")]
        assert await shelf.delete("a/") == 2 and [k for k, _ in await shelf.scan()] == ["b%", "c"]
        assert await other.get("a/1") == b"other"
    if url != "memory:":
        async with Runtime(url) as rt:
            assert await rt.shelf("mine").get("c") == b"4"


async def test_a_token_is_known_by_its_text_alone_and_kept_as_a_hash() -> None:
    async with Runtime("memory:") as rt:
        tokens = Tokens(rt.shelf(SHELF))
        made = await tokens.create(["view", "decide"], now=0, tenant_id="acme", actor="ada", expires_at=100)
        assert all(made.token.split("_", 2)[2].encode() not in data for _, data in await rt.shelf(SHELF).scan())
        found = await tokens.find(made.token, now=99)
        assert found is not None and (found.tenant, found.actor, found.scopes) == ("acme", "ada", (Scope.VIEW, Scope.DECIDE))
        for wrong in ("", "hf_", made.token[:-1], made.token + "x", made.token.replace("hf_", "xx_"), f"hf_{found.id}_", "\ud800"):
            assert await tokens.find(wrong, now=0) is None
        assert await tokens.find(made.token, now=100) is None, "it has expired"
        await tokens.revoke(found.id, now=50)
        assert await tokens.find(made.token, now=51) is None and [t.revoked_at for t in await tokens.all()] == [50]
        with pytest.raises(NotFound):
            await tokens.revoke("nobody", now=0)


async def test_scopes_are_told_by_name_and_admin_holds_all() -> None:
    async with Runtime("memory:") as rt:
        tokens = Tokens(rt.shelf(SHELF))
        view = (await tokens.create(["view"], now=0)).access
        view.need(Scope.VIEW)
        with pytest.raises(Forbidden, match="cancel"):
            view.need(Scope.CANCEL)
        every = (await tokens.create(["admin"], now=0, tenant_id="*")).access
        assert every.tenant is None and every.need(Scope.REPAIR) is None
        for wrong in ([], ["everything"]):
            with pytest.raises(InvalidInput):
                await tokens.create(wrong, now=0)
