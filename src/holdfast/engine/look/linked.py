"""What a link answers, and why it can no longer be used (§5.9, §17.5)."""

from __future__ import annotations

from holdfast.core import commands as cmd
from holdfast.core.errors import HoldfastError, TokenRefused
from holdfast.core.run import Run
from holdfast.core.tokens import Token, hash_secret
from holdfast.core.waits import Wait
from holdfast.ports import Store


async def find_token(store: Store, secret: str, tenant_id: str | None = None) -> Token:
    """Returns the token of a link that may still be used.

    Raises:
        TokenRefused: unknown, used, revoked or expired. If it was used, the error says who decided what.
    """
    token = await store.token(hash_secret(secret))
    if token is None or (tenant_id is not None and token.tenant_id != tenant_id):
        raise TokenRefused("the link is not known here", hint="ask for another")
    try:
        token.refuse(store.now())
    except TokenRefused as e:
        if token.used_at is None or (said := await _find_answer(store, token)) is None:
            raise
        raise TokenRefused(f"{e.message}: {said}", hint=e.hint) from None
    return token


async def find_wait(store: Store, token: Token, run: Run) -> Wait:
    """Returns the wait that a link answers.

    Raises:
        TokenRefused: the wait is closed, or it was answered meanwhile; the error then says by whom and how.
    """
    wait = next((w for w in run.waits if w.wait_id == token.wait_id), None)
    said = await _find_answer(store, token, taken=wait is None)
    if said is not None:
        raise TokenRefused(f"the question is closed already: {said}", hint="nothing is left to answer")
    if wait is None:
        raise refuse_closed(run)
    return wait


def refuse_closed(run: Run) -> HoldfastError:
    return TokenRefused(f"the question is closed; the run is {run.status}", hint="nothing is left to answer")


async def _find_answer(store: Store, token: Token, *, taken: bool = True) -> str | None:
    """Says who decided what about a token's wait; None if nobody has. ``taken``: the run may have taken the answer."""
    for item in await store.inbox(token.run_id, taken=taken):
        if item.key == f"wait:{token.wait_id}":
            return tell(item.command)
    return None


def tell(command: cmd.AnyCommand) -> str:
    """Says who decided what, for those who come too late."""
    return f"{command.actor} decided {command.action}" if isinstance(command, cmd.Decide) else "it timed out"


__all__ = ["find_token", "find_wait", "refuse_closed", "tell"]
