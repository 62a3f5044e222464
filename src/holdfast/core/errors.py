"""All errors of Holdfast. The five base classes say who must act.

``UsageError``: the caller made a mistake. ``Rejected``: the run's status, a policy or a limit does not allow it.
``Conflict``: another caller was first. ``StepFailure``: user code failed; the failure is stored as a value.
``StoreError``: the database, the disk or the stored data.

Every error has a stable ``code``, which commands and the HTTP API print, and an exit code. It may carry a ``hint``, which says what to do.
``rejected`` is the code of both ``Rejected`` and ``StepRejected``; their exit codes differ.

Three errors are also errors of Python, because their meaning is unambiguous: ``StepTimeout`` is a ``TimeoutError``, ``UnknownOption`` a
``TypeError``, ``ChannelEmpty`` an ``AttributeError``. No other is. ``except KeyError`` or ``except ValueError`` around a call is meant for the program's own values;
``InvalidInput`` covers both wrong types and wrong values; and ``except OSError``, written for a file, would catch a ``Denied`` that was a ``PermissionError`` or a
``StoreUnavailable`` that was a ``ConnectionError``.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

E = TypeVar("E", bound=BaseException)


class HoldfastError(Exception):
    """The base class of all errors that Holdfast raises."""

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        """What happened and, at the end, what to do."""
        if not self.hint:
            return self.message
        return f"{self.message}{chr(10) if chr(10) in self.message else '; '}{self.hint}"

    def line(self) -> str:
        """The error in one line: the code, what happened, and what to do."""
        text = " ".join(self.message.split())
        return f"{self.code}: {text}" + (f" ({self.hint})" if self.hint else "")


def make_own(error: E) -> E:
    """Returns a copy of an error for one more caller: if several callers raised one object, its traceback would mix all their calls."""
    given = error.__reduce__()[1] if isinstance(error, OSError) else error.args  # the args of an OSError lack its file name
    built_in: Any = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
    own = type(error).__new__(type(error), *given)
    built_in.__init__(own, *given)  # built-in errors keep some arguments outside __dict__
    own.__dict__.update(error.__dict__)
    own.__cause__, own.__suppress_context__, own.__traceback__ = error.__cause__, error.__suppress_context__, error.__traceback__
    return own


# -- the caller's mistake ---------------------------------------------------------------------------


class UsageError(HoldfastError):
    """The call itself is wrong: bad input, a call in the wrong place, or a missing setting."""

    code = "usage"
    exit_code = 2


class InvalidGraph(UsageError):
    """The graph cannot run: for example a node cannot be reached, an edge leads to no node, or a reducer does not fit its channel."""

    code = "invalid_graph"


class UnknownOption(UsageError, TypeError):
    """The call has no option with this name (§3.6). ``nearest`` is the most similar option that exists."""

    code = "unknown_option"

    def __init__(self, name: str, nearest: str, where: str, message: str = "") -> None:
        meant = f"did you mean {nearest!r}?" if nearest else "it takes no options"
        super().__init__(message or f"{where} has no option {name!r}", hint=meant)
        self.name = name
        self.nearest = nearest


class InvalidInput(UsageError):
    """A value has the wrong type or is out of range; ``field`` is its name."""

    code = "invalid_input"

    def __init__(self, message: str, *, field: str = "", hint: str = "", code: str | None = None) -> None:
        super().__init__(message, hint=hint, code=code)
        self.field = field


class InvalidAnswer(InvalidInput):
    """An answer does not have the type that was asked for; the question stays open (§5.2)."""

    code = "invalid_answer"


class Unserializable(UsageError):
    """A value cannot be stored; ``path`` is the field that holds it (§1.10)."""

    code = "unserializable"

    def __init__(self, path: str, why: str, *, hint: str = "") -> None:
        super().__init__(f"{path}: {why}", hint=hint)
        self.path = path
        self.field = path
        self.why = why


class TooLarge(UsageError):
    """The value of ``field`` is larger than a store accepts (§14.3)."""

    code = "too_large"

    def __init__(self, field: str, size: int, limit: int, *, unit: str = "bytes", hint: str = "") -> None:
        super().__init__(f"{field}: {size} {unit}, the limit is {limit}", hint=hint)
        self.field = field
        self.size = size
        self.limit = limit


class ChannelEmpty(UsageError, AttributeError):
    """A ``last`` channel was read before anything was written to it."""

    code = "channel_empty"


class AmbiguousWait(UsageError):
    """Several waits are open and the answer does not name one of them (§5.11). Name one with ``wait_id``."""

    code = "ambiguous_wait"


class AmbiguousRun(UsageError):
    """The ids of several runs begin with the given text (§7.10). Type more of it."""

    code = "ambiguous_run"


class ConcurrentScope(UsageError):
    """A ctx call without a key began while another call of the same scope (such as the node) was running (§4.12), or two calls ran with the
    same key, or a call began after its node had ended. Await each call, use ``ctx.gather``, or give each call its own key."""

    code = "concurrent_scope"


class NotAwaited(UsageError):
    """A ctx call was made and never awaited, so what it asks for was not done (§4.12). Write ``await`` in front of it."""

    code = "not_awaited"


class ForeignLoop(UsageError):
    """The Runtime was entered in another event loop or another thread."""

    code = "foreign_loop"


class NotFound(UsageError):
    """The thing that was named does not exist."""

    code = "not_found"
    exit_code = 3


class RunNotFound(NotFound):
    """There is no run with this id."""

    code = "run_not_found"


class RunPruned(RunNotFound):
    """The run existed and was deleted by a prune: ``at`` is the time (microseconds since 1970, UTC), ``by`` is who did it."""

    code = "pruned"

    def __init__(self, run_id: str, at: int, by: str, when: str) -> None:
        super().__init__(f"{run_id} was pruned at {when} by {by}", hint="to look at it, import an export of it into another store, or restore a backup to another store")
        self.run_id = run_id
        self.at = at
        self.by = by


class CheckpointNotFound(NotFound):
    """The run has no checkpoint with this id."""

    code = "checkpoint_not_found"


class WaitNotFound(NotFound):
    """The run has no wait with this id."""

    code = "wait_not_found"


class ThreadNotFound(NotFound):
    """There is no run in this thread."""

    code = "thread_not_found"


class SkillUnknown(NotFound):
    """No skill (a graph or flow) with this id is registered in this process."""

    code = "skill_unknown"


class ScheduleNotFound(NotFound):
    """There is no schedule with this id."""

    code = "schedule_not_found"


class IntentNotFound(NotFound):
    """There is no outgoing message (intent) with this id."""

    code = "intent_not_found"


# -- the state machine or a policy says no ----------------------------------------------------------


class Rejected(HoldfastError):
    """The run's status, a policy or a limit does not allow the operation."""

    code = "rejected"
    exit_code = 6


class IllegalTransition(Rejected):
    """A run cannot change from the status ``current`` to the status ``wanted`` (§2.2)."""

    code = "illegal_transition"

    def __init__(self, current: str, wanted: str) -> None:
        super().__init__(f"a run cannot go from {current} to {wanted}")
        self.current = current
        self.wanted = wanted


class UnknownStatus(Rejected):
    """A status is not one of the eight that a run can have (§2.6)."""

    code = "unknown_status"


class AlreadyTerminal(Rejected):
    """The run has already ended."""

    code = "already_terminal"


class SettledTerminal(Rejected):
    """The run has ended permanently and cannot be resumed."""

    code = "settled_terminal"


class UndecidedWait(Rejected):
    """The run waits for a decision that nobody has made yet."""

    code = "undecided_wait"


class NotDecidable(Rejected):
    """The wait is not open, or the run's status does not allow a decision."""

    code = "not_decidable"


class ActionUnavailable(Rejected):
    """The wait does not offer this action."""

    code = "action_unavailable"


class AcknowledgeRequired(Rejected):
    """The run failed. To resume it, pass its stop reason or its latest checkpoint, to show that you have looked at the failure:
    ``acknowledge=REASON``, or ``--acknowledge REASON``."""

    code = "acknowledge_required"


class RunIsLive(Rejected):
    """A living worker is executing the run."""

    code = "run_is_live"


class NothingEligible(Rejected):
    """Nothing of the run can be executed now, for example because it waits for a signal, a time or a child run."""

    code = "nothing_eligible"


class FingerprintMismatch(Rejected):
    """The run began with another version of the skill's graph than the one registered here."""

    code = "fingerprint_mismatch"


class WorkspaceElsewhere(FingerprintMismatch):
    """The tools of this run have worked in another folder than this process's workspace (§11.2)."""

    code = "workspace_elsewhere"


class Denied(Rejected):
    """A policy or a resolver refused the operation; it is never retried (§8.1)."""

    code = "denied"


class AttemptMayLive(Rejected):
    """An effect is not repeated while its first attempt may still be running (§6.5)."""

    code = "attempt_may_live"


class EffectsUndone(Rejected):
    """Effects of earlier steps were undone, so the run cannot be resumed where it stopped (§6.11)."""

    code = "effects_undone"


class RestrictedOption(Rejected):
    """This environment does not allow the option."""

    code = "restricted_option"


class LaneBusy(Rejected):
    """Raised with ``on_busy="reject"``: another run holds the lane (runs that execute one after another, such as those of one thread)
    (§5.13)."""

    code = "lane_busy"


class LaneBlocked(Rejected):
    """The run must wait for another run of its lane, and this process cannot execute that run (§4.16). ``blocked_by`` is its id."""

    code = "lane_blocked"

    def __init__(self, message: str, *, blocked_by: str = "", blocked_why: str = "", hint: str = "", code: str | None = None) -> None:
        super().__init__(message, hint=hint, code=code)
        self.blocked_by = blocked_by
        self.blocked_why = blocked_why


class QueueFull(Rejected):
    """The tenant already has the maximum number of waiting runs (``max_queued``) in this queue (§10.11). ``retry_after`` is the number of
    seconds after which to try again."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after: float = 1.0, hint: str = "", code: str | None = None) -> None:
        super().__init__(message, hint=hint or f"try again in {retry_after:g} s", code=code)
        self.retry_after = retry_after


class LimitReached(Rejected):
    """The run cannot start now: a limit is reached, or its queue is paused (§10.11)."""

    code = "limit_reached"


class TooManySignals(Rejected):
    """The run already stores the maximum number of signals that it has not yet taken."""

    code = "too_many_signals"


class TokenRefused(Rejected):
    """The resume token is unknown, used or expired."""

    code = "token_refused"


class RepairRefused(Rejected):
    """The damage cannot be repaired safely."""

    code = "repair_refused"


class IntentSettled(Rejected):
    """The outgoing message (intent) was already sent or abandoned, so it cannot be changed any more (§9.3)."""

    code = "intent_settled"


# -- someone was first ------------------------------------------------------------------------------


class Conflict(HoldfastError):
    """Another caller was first: the state has changed since this caller read it."""

    code = "conflict"
    exit_code = 6


class VersionConflict(Conflict):
    """The run has new events since its log was read. Read it again."""

    code = "version_conflict"


class LeaseLost(Conflict):
    """This process no longer holds the lease of the run and its fencing number is outdated (§10.2). Nothing was written."""

    code = "lease_lost"


class DecisionConflict(Conflict):
    """The wait was already decided in another way."""

    code = "decision_conflict"


class ClaimTaken(Conflict):
    """Another run was first with this key."""

    code = "claim_taken"


class RequestConflict(Conflict):
    """The request key was already used with another input (§3.5)."""

    code = "request_conflict"


class EffectConflict(Conflict):
    """The effect key was already used with another request (§6.3)."""

    code = "effect_conflict"


class EffectInProgress(Conflict):
    """Another attempt with the same key is still running."""

    code = "effect_in_progress"


class IntentInFlight(Conflict):
    """The outgoing message (intent) is being sent now, or has been settled in the meantime."""

    code = "intent_in_flight"


class InboxUnread(Conflict):
    """A run cannot end while its inbox holds a command that it has not processed (§10.12)."""

    code = "inbox_unread"


class SignalConflict(Conflict):
    """The signal key was already used with another payload (§5.11)."""

    code = "signal_conflict"


# -- user code; a value in the run ------------------------------------------------------------------


class StepFailure(HoldfastError):
    """A step failed. Raise this error, or a subclass, to fail a step with your own code and hint."""

    code = "step_failed"


class UndeclaredChannel(StepFailure):
    """A node wrote a channel that the state does not declare."""

    code = "undeclared_channel"


class TwoWriters(StepFailure):
    """Two nodes, or two tasks of one node, wrote the same ``last`` channel in one super-step (§4.1). Give the channel another reducer:
    ``append``, ``merge`` or ``override``."""

    code = "two_writers"


class ContractViolation(StepFailure):
    """A node wrote a channel that is not listed in its ``writes=`` (§4.2)."""

    code = "contract_violation"


class BadReturn(StepFailure):
    """A node returned something other than a mapping of writes, a Goto or a list of Sends."""

    code = "bad_return"


class InvalidWrite(StepFailure):
    """A node wrote a value that does not have the type of its channel; ``field`` is the channel's name (§3.7)."""

    code = "invalid_write"

    def __init__(self, message: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.field = field


class StepTimeout(StepFailure, TimeoutError):
    """A step took longer than its timeout. ``except TimeoutError`` catches it too."""

    code = "step_timeout"


class StepLimit(StepFailure):
    """One invocation needed more super-steps than ``step_limit`` allows (§4.9). The run can be resumed."""

    code = "step_limit"


class StepRejected(StepFailure):
    """A person rejected the step (§5.5)."""

    code = "rejected"


class RecordMismatch(StepFailure):
    """The code makes other calls than those that are recorded (§4.12); the message shows the difference."""

    code = "record_mismatch"


class NodeMissing(StepFailure):
    """A node that is due to run does not exist in the graph any more (§3.2)."""

    code = "node_missing"


class SuspensionSwallowed(StepFailure):
    """A node caught the exception that suspends it and continued. Do not catch BaseException in a node."""

    code = "suspension_swallowed"


class EffectUnknown(StepFailure):
    """The outcome of an attempted effect is unknown; the effect is not repeated (§6.5)."""

    code = "effect_unknown"


class EffectFailed(StepFailure):
    """An effect raised an error, and its failure is recorded."""

    code = "effect_failed"


class EffectAbandoned(EffectFailed):
    """A person decided that an effect did not happen and should not be carried out."""

    code = "effect_abandoned"


class ToolFailed(StepFailure):
    """A tool ended with an exit code other than 0, or the system had no room for its process."""

    code = "tool_failed"


class StatementFailed(StepFailure):
    """The database refused an SQL statement of a step, and the step was not committed. The results of its finished tasks are kept; a resume
    tries the statements again."""

    code = "sql_failed"


class ToolMissing(StepFailure):
    """The step calls a tool that is not registered in this process, or whose command cannot be run there."""

    code = "tool_missing"


class PathOutsideWorkspace(StepFailure):
    """A tool's ``cwd`` or one of its ``paths`` is outside the workspace (§11.2)."""

    code = "path_outside_workspace"


class ChildFailed(StepFailure):
    """A child run did not complete. ``ctx.child`` raises this error in the parent."""

    code = "child_failed"


class LaneOfAncestor(StepFailure):
    """A child run was put into a lane that one of its own unfinished ancestors holds, so each would wait for the other (§4.16)."""

    code = "lane_of_ancestor"


class PermanentError(StepFailure):
    """Raise this error from a step or a transport if a retry cannot help."""

    code = "permanent"


LATEST_SECONDS = 100 * 366 * 86_400.0
"""The longest delay: a receiver may name any number, and a later time could not be represented."""


class RetryAfter(StepFailure):
    """Raise this error from a transport if the message must be sent again later, after at least ``seconds`` seconds (§10.9). A negative
    number, or NaN, counts as 0, and more than a hundred years count as a hundred years."""

    code = "retry_after"

    def __init__(self, seconds: float, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or f"not before {seconds:g} s have passed", hint=hint)
        self.seconds = min(max(0.0, seconds), LATEST_SECONDS)


class MaybeSent(StepFailure):
    """Raise this error from a transport if the message may or may not have been sent (§9.4)."""

    code = "maybe_sent"


class RunFailed(HoldfastError):
    """Raised by ``result``, ``run`` and ``holdfast.run`` if the run did not complete. The error's attribute ``run`` holds the run as it ended."""

    code = "run_failed"

    def __init__(self, run: object, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.run = run


class RunWaiting(HoldfastError):
    """Raised by ``result``, ``run`` and ``holdfast.run`` if the run waits and has no result yet. The error's attribute ``run`` holds the
    run."""

    code = "run_waiting"
    exit_code = 4

    def __init__(self, run: object, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.run = run


# -- the database, the disk, or what is on it -------------------------------------------------------


class StoreError(HoldfastError):
    """A store operation failed. ``passing`` is True if the failure may be temporary: a worker then pauses and tries again. If it is False,
    an operator or another process must act."""

    code = "store_error"
    passing = True


NOT_OPEN = "use it inside `async with Runtime(…) as rt:`, which opens it, and closes it at the end; a store that you opened yourself: await store.open()"


class StoreClosed(StoreError):
    """The store was closed in this process. Calls that still wait for it end with this error."""

    code = "store_closed"
    passing = False

    def __init__(self, message: str = "the store was closed", *, hint: str = "open the runtime, or the store, again", code: str | None = None) -> None:
        super().__init__(message, hint=hint, code=code)


class ProcessForked(StoreError):
    """The store was opened by the parent process, from which this process was forked. Only the parent may use it (§10.1)."""

    code = "process_forked"
    passing = False


class StoreBusy(StoreError):
    """The store could not be written for too long, because another process has locked it."""

    code = "store_writer_stalled"


class StoreUnavailable(StoreError):
    """The database cannot be reached at the moment, and nothing was written. Try again later."""

    code = "store_unavailable"


class StoreRefused(StoreError):
    """The database server does not let this process in: there is no such database or role, the password is wrong, or an access rule refuses it."""

    code = "store_refused"
    passing = False


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost during a write and could not be re-established. It is not known whether the data was written."""

    code = "outcome_unknown"


class StoreReadOnly(StoreError):
    """The store cannot be written: the file, the file system or the server is read-only, or the folder does not exist."""

    code = "store_read_only"


class StoreMoved(StoreReadOnly):
    """The file of the store was removed, moved or replaced while it was open, so new data would be lost."""

    code = "store_moved"


class StoreFull(StoreError):
    """The disk or the quota is full; nothing was written."""

    code = "store_full"


class StoreCorrupt(StoreError):
    """Stored data is damaged."""

    code = "store_corrupt"
    passing = False


class EventUnreadable(StoreCorrupt):
    """An event cannot be decoded."""

    code = "event_unreadable"


class KeyUnavailable(StoreCorrupt):
    """A payload is encrypted with a key that this process does not have: it has no key with this id, or a different one (§14.5).
    ``key_id``, ``run_id`` and ``place`` say which payload. ``run_id`` is empty if the payload does not belong to a run."""

    code = "key_unavailable"

    def __init__(self, key_id: str, run_id: str = "", place: str = "") -> None:
        whose = f" of {run_id}" if run_id else ""
        way_out = "give that key too: Runtime(encryption=…), or a line of the file that $HOLDFAST_KEYS names; without it this cannot be read by anybody"
        super().__init__(f"{place or 'a payload'}{whose} is encrypted with the key {key_id!r}; this process has no key with this id, or a different one", hint=way_out)
        self.key_id = key_id
        self.run_id = run_id
        self.place = place


class PlaintextRefused(StoreCorrupt):
    """A payload is not encrypted, and the runtime's encryption is strict (§14.5)."""

    code = "plaintext_refused"


class PayloadAltered(StoreCorrupt):
    """An encrypted payload is damaged: it was changed, or copied from another place (§14.5)."""

    code = "payload_altered"


class ChainBroken(StoreCorrupt):
    """The checksums of the log do not match: an event is missing, was changed, or is out of order."""

    code = "event_chain_broken"


class LogRolledBack(StoreCorrupt):
    """The log is older than the last confirmed commit: the store is an old copy, or the end of the log was lost."""

    code = "log_rolled_back"


class IncarnationChanged(StoreCorrupt):
    """The store was restored, acknowledged or failed over while this process used it: it is a new generation of the store."""

    code = "store_incarnation_changed"


_MADE_ANEW = {"schedule": "; then schedule it again", "limit": "; then set the limit again", "token": "; then issue another link"}


class RecordDamaged(StoreCorrupt):
    """A record outside the log is missing or damaged (§12.1): ``kind``, ``run_id`` and ``record`` say which.

    The code is ``<kind>_record_missing`` or ``<kind>_record_altered``. ``run_id`` is empty if the record does not belong to a run.
    """

    code = "record_unreadable"

    def __init__(self, kind: str, run_id: str, record: str, *, missing: bool = False) -> None:
        shown = str(record).replace("\x1f", " ")
        whose = f"the {kind} record {shown!r}" + (f" of {run_id}" if run_id else "")
        said = "is missing, though it was written" if missing else "is damaged: its checksum does not match"
        way_out = "before anything that it records is done again, check whether it has been done; then restore a backup, or accept the loss: holdfast doctor --rebuild --acknowledge"
        way_out += _MADE_ANEW.get(kind, "")
        super().__init__(f"{whose} {said}", hint=way_out, code=f"{kind}_record_{'missing' if missing else 'altered'}")
        self.kind = kind
        self.run_id = run_id
        self.record = record


class UnsupportedFormat(StoreError):
    """A payload has a newer or unknown major version of its format (§1.8)."""

    code = "unsupported_format"
    passing = False


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One call of a traceback: the file, the line (from 1), the function, and the text of that line, empty if it is not known."""

    file: str
    line: int
    function: str
    source: str = ""


def from_code(code: str, message: str) -> HoldfastError:
    """Returns the error of a recorded refusal: of the class with this code, or plain ``Rejected`` if no class has it."""
    todo: list[type[HoldfastError]] = [HoldfastError]
    while todo:
        cls = todo.pop()
        if cls.code == code and not issubclass(cls, RunFailed | RunWaiting):
            return cls(message)
        todo += cls.__subclasses__()
    return Rejected(message, code=code)


class ErrorValue(msgspec.Struct, frozen=True, array_like=True):
    """A failure as data, as it is stored in a run, a step or an effect (§2.8).

    ``type`` is the exception's qualified name, ``code`` the stable code if it has one, ``hint`` says what to do. ``frames`` are the
    calls of the user's own code that led to it, the outermost first.
    """

    type: str
    message: str
    code: str = "step_failed"
    where: str = ""
    hint: str = ""
    frames: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        """The text of the failure as Python prints an exception: its class and its message; and, at the end, what to do."""
        said = f"{self.type.rpartition('.')[2]}: {self.message}" if self.message else self.type.rpartition(".")[2]
        return f"{said}{chr(10) if chr(10) in said else '; '}{self.hint}" if self.hint else said

    @classmethod
    def of(cls, error: BaseException, where: str = "", frames: tuple[Frame, ...] = ()) -> ErrorValue:
        """Returns an exception as data. If its text cannot be made, its type is stored."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(error, HoldfastError):
            return cls(name, storable(str(error.message))[:4000], code_of(error), where, storable(str(error.hint))[:1000], frames)
        return cls(name, storable(_text(error))[:4000], where=where, frames=frames)


def code_of(error: BaseException) -> str:
    """Returns the stable code of a failure; a class of the user's may have any value as its ``code``."""
    if not isinstance(error, HoldfastError):
        return "step_failed"
    return storable(error.code)[:200] if isinstance(error.code, str) else HoldfastError.code


REFUSED = (ClaimTaken, EffectInProgress, InboxUnread, StatementFailed)
"""The errors with which a store refuses a commit although the run is as its owner knows it: nothing is lost, and the owner decides again."""


def storable(text: str) -> str:
    """Returns a text with the characters escaped that no store can keep, because the failure must be stored anyway."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


MOST_OF_A_GROUP = 3


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Returns the exceptions of a group and of the groups in it."""
    return [leaf for e in group.exceptions for leaf in (_leaves(e) if isinstance(e, BaseExceptionGroup) else [e])]


def _text(error: BaseException) -> str:
    try:
        text = str.__str__(str(error))  # a plain str, even if __str__ returned a subclass
        if not isinstance(error, BaseExceptionGroup):
            return text
        leaves = _leaves(error)  # the group's own text only counts them
        told = [f"{type(leaf).__qualname__}: {_text(leaf)}" for leaf in leaves[:MOST_OF_A_GROUP]]
        return f"{text}: {'; '.join(told)}" + (f"; and {len(leaves) - MOST_OF_A_GROUP} more" if len(leaves) > MOST_OF_A_GROUP else "")
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return f"the text of this {type(error).__qualname__} cannot be made: its __str__ raised {type(e).__qualname__}"
