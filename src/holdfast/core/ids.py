"""Ids: opaque, unique, sortable by creation (§3.4). The ids of a run's parts are derived from the run's id.

A run id is 26 base-32 characters: 10 of milliseconds, 2 of the microseconds within, 12 of randomness, 2 of bucket. Derived ids are functions of
their parents, so they are never stored and are the same after a crash.
"""

from __future__ import annotations

import hashlib
import re

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ENTROPY_BITS = 60
BUCKETS = 1024
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_RUN = re.compile(f"[{_ALPHABET}]{{26}}")
_NUMBERS = {pair: number for number, pair in enumerate(_PAIRS)}


LONGEST = 512
_FORBIDDEN = frozenset("/\\\x7f")


def is_wellformed(name: str) -> bool:
    """Whether a text may be an id: not empty, not too long, printable, without characters that have a meaning in paths."""
    return 0 < len(name.encode("utf-8", "surrogatepass")) <= LONGEST and name.isprintable() and not _FORBIDDEN & set(name) and not name.startswith(".")


def _base32(number: int) -> str:
    """Returns the twelve digits of a number of sixty bits; two digits are looked up at a time."""
    p = _PAIRS
    return p[number >> 50] + p[number >> 40 & 1023] + p[number >> 30 & 1023] + p[number >> 20 & 1023] + p[number >> 10 & 1023] + p[number & 1023]


def bucket(tenant: str, session: str) -> str:
    """Returns two characters that place a session's runs together in a partitioned store.

    If the session is a run's own id, or ends with one, the last two characters of that id are left out, because they are this bucket. So the
    run itself and all runs that join its session are stored together, and the bucket is a function of the lane (§10.8).
    """
    key = session[:-2] if _RUN.fullmatch(session.rpartition("~")[2]) else session
    h = hashlib.sha256(f"{tenant}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return _PAIRS[int.from_bytes(h[:4], "big") % BUCKETS]


def bucket_number(run: str) -> int:
    """Returns the bucket at the end of a run id, 0 to 1023; for a name that is not such an id, a bucket from a hash of the name."""
    if len(run) == 26 and (found := _NUMBERS.get(run[24:])) is not None:
        return found
    return int.from_bytes(hashlib.sha256(run.encode("utf-8", "surrogatepass")).digest()[:4], "big") % BUCKETS


def stamp(at_us: int, entropy: int) -> str:
    """Returns 24 sortable characters: milliseconds, the microseconds within them, then 60 bits of entropy."""
    milliseconds, microseconds = divmod(at_us, 1000)
    return _base32((milliseconds * BUCKETS + microseconds) % (1 << 60)) + _base32(entropy % (1 << ENTROPY_BITS))


def run_id(at_us: int, entropy: int, tenant: str = "", session: str = "", beside: str = "") -> str:
    """Returns a new run's id. Without a ``session`` the run's own id is its session; with ``beside``, another session, it gets a session
    named after both (§7.8). In every case the id contains the bucket of its lane."""
    head = stamp(at_us, entropy)
    return head + bucket(tenant, session or _make_own(head, beside))


def _make_own(head: str, beside: str = "") -> str:
    """Returns the session of a run that has its own, from the first part of its id. ``bucket`` ignores the two zeros at the end."""
    return f"{beside}~{head}00" if beside else f"{head}00"


def shorten(name: str, room: int = 27) -> str:
    """Returns a name to which ``room`` more bytes can be appended; a name that is too long is cut and ends with a digest of itself."""
    given = name.encode("utf-8", "surrogatepass")
    if len(given) + room <= LONGEST:
        return name
    digest = hashlib.sha256(given).hexdigest()[:16]
    return given[: LONGEST - room - 17].decode("utf-8", "ignore") + f"~{digest}"


def split_own(name: str) -> tuple[str, str] | None:
    """Splits a session of a run's own, made with ``beside``, into the other session and the run's id; None for any other name."""
    beside, mark, run = name.rpartition("~")
    return (beside, run) if mark and beside and _RUN.fullmatch(run) else None


def event_id(run: str, seq: int) -> str:
    return f"{run}.e{seq}"


def checkpoint_id(run: str, seq: int) -> str:
    """Returns a checkpoint's id. ``seq`` is the number of the event that vouches for the checkpoint: the one that names its hash (§1.8)."""
    return f"{run}.c{seq}"


def checkpoint_seq(run: str, checkpoint: str) -> int | None:
    """The inverse of ``checkpoint_id``; None if this is not a checkpoint of that run."""
    head, _, tail = checkpoint.rpartition(".c")
    return int(tail) if head == run and tail.isascii() and tail.isdigit() else None


def step_id(run: str, step: int, task: str, path: str = "") -> str:
    """Returns the id of a node's turn in a super-step, or, with ``path``, of a recorded call inside it."""
    return f"{run}.{step}.{task}" + (f".{path}" if path else "")


def attempt_id(step: str, number: int) -> str:
    return f"{step}@{number}"


def task_key(node: str, index: int) -> str:
    """Returns the name of a task in its super-step: the node, and for a ``Send`` also its number."""
    return node if index == 0 else f"{node}~{index}"


def node_of(task: str) -> str:
    return task.partition("~")[0]


def again(wait: str, round: int) -> str:
    """Returns the id of a question that has been asked ``round`` times before."""
    return wait if round == 0 else f"{wait}/!{round}"


def wait_id(run: str, step: int, task: str, path: str, round: int = 0) -> str:
    """Returns a wait's id. ``round`` counts how often this place has asked before: each asking has an id of its own (§5.14)."""
    base = step_id(run, step, task, path)
    return again(base, round)


def wait_base(wait: str) -> str:
    """Returns the place in a wait id. No path contains ``/!``, because a key has no slash."""
    return wait.partition("/!")[0]


def request_scope(tenant_id: str, of: str) -> str:
    """Returns the scope in which the request keys of a skill's runs, or of a run's replays or forks, are unique (§3.5)."""
    return f"{tenant_id}\x1f{of}"


def child_run_id(parent: str, step: int, task: str, path: str, round: int = 0, *, tenant: str = "", session: str = "") -> str:
    """Returns the id of the run that ``ctx.child`` starts at this place: the same after a crash. It sorts after its parent, in its lane's bucket."""
    h = hashlib.sha256(wait_id(parent, step, task, path, round).encode()).digest()
    number = int.from_bytes(h[:9], "big")
    head = parent[:10] + _PAIRS[number >> ENTROPY_BITS & BUCKETS - 1] + _base32(number % (1 << ENTROPY_BITS))
    return head + bucket(tenant, session or _make_own(head))
