"""Commands: requests that may be refused, named in the imperative, which wait in a run's inbox (§5, §7, §10.12).

Each has a key that is unique in its run. An answer and the timeout of its wait share a key, so the first of them wins.
"""

from __future__ import annotations

import msgspec

from holdfast.core.errors import ErrorValue


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Base of all commands. ``actor`` is who asks."""

    @property
    def key(self) -> str:
        raise NotImplementedError


class Decide(Command, frozen=True, tag=1):
    """Decide a wait. ``payload`` is encoded; None means that none was given, which is not an answer of None.
    ``force``: do an effect again although it may then happen twice (§6.5). ``via``: the id of the access token with
    which the command came (§16.2)."""

    wait_id: str
    action: str
    actor: str
    feedback: str | None = None
    note: str | None = None
    payload: bytes | None = None
    at: int = 0
    resume: bool = True
    force: bool = False
    via: str = ""

    @property
    def key(self) -> str:
        return f"wait:{self.wait_id}"


class FireTimeout(Command, frozen=True, tag=2):
    """End a wait whose deadline has passed: any sweeper injects this command, once (§5.10)."""

    wait_id: str
    deadline: int

    @property
    def key(self) -> str:
        return f"wait:{self.wait_id}"


class Signal(Command, frozen=True, tag=3):
    name: str
    signal_key: str
    payload: bytes
    actor: str
    via: str = ""

    @property
    def key(self) -> str:
        return f"signal:{self.name}:{self.signal_key}"


class Cancel(Command, frozen=True, tag=4):
    """Cancel a run. ``queued``: only if the run has not begun, because another run takes its place (§5.13)."""

    actor: str
    reason: str = ""
    nonce: str = ""
    queued: bool = False
    via: str = ""

    @property
    def key(self) -> str:
        return f"cancel:{self.nonce}" if self.nonce else "cancel"


class ChildEnded(Command, frozen=True, tag=5):
    """Tell a parent that a child has ended. ``nonce``: distinguishes the ends of a child that was resumed after an end."""

    child_run_id: str
    status: str
    result: bytes | None = None
    error: ErrorValue | None = None
    nonce: str = ""

    @property
    def key(self) -> str:
        return f"child:{self.child_run_id}" + (f":{self.nonce}" if self.nonce else "")


class Resume(Command, frozen=True, tag=6):
    """Resume a failed, canceled or interrupted run; ``acknowledge`` names what was inspected (§7.3). ``precedes``: the run of its thread that had the next turn."""

    actor: str
    acknowledge: str | None = None
    force: bool = False
    nonce: str = ""
    upgraded: str | None = None
    precedes: str = ""
    via: str = ""

    @property
    def key(self) -> str:
        return f"resume:{self.nonce}"


class LateResult(Command, frozen=True, tag=7):
    """Note what an owner did after it had lost its lease: only as evidence (§10.2)."""

    attempt_id: str
    summary: str

    @property
    def key(self) -> str:
        return f"late:{self.attempt_id}"


class Refused(Command, frozen=True, tag=8):
    """Note that the authority refused a decision: for the audit only, the run does not change (§5.7)."""

    wait_id: str
    action: str
    actor: str
    reason: str = ""
    nonce: str = ""
    via: str = ""

    @property
    def key(self) -> str:
        return f"refused:{self.nonce}"


AnyCommand = Decide | FireTimeout | Signal | Cancel | ChildEnded | Resume | LateResult | Refused
