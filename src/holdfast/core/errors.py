"""The whole tree of errors, drawn once, by who must act.

``UsageError``: the caller made a mistake. ``Rejected``: the state machine or a policy says no.
``Conflict``: someone else was first. ``StepFailure``: user code went wrong; it is stored as a value.
``StoreError``: the database, the disk or its contents.

Every error has a stable ``code`` (an API: tests, exit codes and HTTP problems use it) and may carry a
``hint``, the way out, in one sentence.
"""

from __future__ import annotations

import msgspec


class HoldfastError(Exception):
    """Base of everything this package raises on purpose."""

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        """What happened and, at the end, the way out."""
        if not self.hint:
            return self.message
        return f"{self.message}{chr(10) if chr(10) in self.message else '; '}{self.hint}"

    def line(self) -> str:
        """One line for people: code, what happened, what to do."""
        text = " ".join(self.message.split())
        return f"{self.code}: {text}" + (f" ({self.hint})" if self.hint else "")


# -- the caller's mistake ---------------------------------------------------------------------------


class UsageError(HoldfastError):
    """The call itself is wrong: bad input, a wrong place, a setting that is not there. Exit code 2."""

    code = "usage"
    exit_code = 2


class InvalidGraph(UsageError):
    """A graph that cannot run: a node without a way to it, an edge to nowhere, a reducer that does not fit."""

    code = "invalid_graph"


class UnknownOption(UsageError, TypeError):
    """An option that nobody knows, wherever it was given (§3.6). ``nearest``: the known one that is most like it."""

    code = "unknown_option"

    def __init__(self, name: str, nearest: str, where: str) -> None:
        meant = f"did you mean {nearest!r}?" if nearest else "it takes no options"
        super().__init__(f"{where} has no option {name!r}", hint=meant)
        self.name = name
        self.nearest = nearest


class InvalidInput(UsageError):
    """A value that is not what is wanted; ``field`` names it."""

    code = "invalid_input"

    def __init__(self, message: str, *, field: str = "", hint: str = "", code: str | None = None) -> None:
        super().__init__(message, hint=hint, code=code)
        self.field = field


class InvalidAnswer(InvalidInput):
    """An answer that does not fit what was asked for; the question stays open (§5.2)."""

    code = "invalid_answer"


class Unserializable(UsageError):
    """A value no store could keep; ``path`` names the field (§1.10)."""

    code = "unserializable"

    def __init__(self, path: str, why: str, *, hint: str = "") -> None:
        super().__init__(f"{path}: {why}", hint=hint)
        self.path = path
        self.field = path
        self.why = why


class TooLarge(UsageError):
    """More than may be kept of one ``field`` (§14.3)."""

    code = "too_large"

    def __init__(self, field: str, size: int, limit: int, *, unit: str = "bytes", hint: str = "") -> None:
        super().__init__(f"{field}: {size} {unit}, the limit is {limit}", hint=hint)
        self.field = field
        self.size = size
        self.limit = limit


class ChannelEmpty(UsageError, AttributeError):
    """A ``last`` channel was read before anything wrote it."""

    code = "channel_empty"


class AmbiguousWait(UsageError):
    """Several waits are open and the answer names none (§5.11)."""

    code = "ambiguous_wait"


class AmbiguousRun(UsageError):
    """The ids of several runs begin as was typed (§7.10)."""

    code = "ambiguous_run"


class ConcurrentScope(UsageError):
    """Two ctx calls of one scope in flight at once (§4.12)."""

    code = "concurrent_scope"


class ForeignLoop(UsageError):
    """A Runtime belongs to the event loop, and the thread, that it was entered in."""

    code = "foreign_loop"


class NotFound(UsageError):
    """What was named does not exist."""

    code = "not_found"
    exit_code = 3


class RunNotFound(NotFound):
    """There is no run of this id."""

    code = "run_not_found"


class RunPruned(RunNotFound):
    """The run was here and has been pruned: ``at`` is when (microseconds since 1970), ``by`` who did it."""

    code = "pruned"

    def __init__(self, run_id: str, at: int, by: str, when: str) -> None:
        super().__init__(f"{run_id} was pruned at {when} by {by}", hint="an export of it, or a backup, can be looked at in a store of its own")
        self.run_id = run_id
        self.at = at
        self.by = by


class CheckpointNotFound(NotFound):
    """The run has no checkpoint of this name."""

    code = "checkpoint_not_found"


class WaitNotFound(NotFound):
    """The run has no wait of this id."""

    code = "wait_not_found"


class ThreadNotFound(NotFound):
    """There is no run of this thread."""

    code = "thread_not_found"


class SkillUnknown(NotFound):
    """No skill of this id is registered here."""

    code = "skill_unknown"


class ScheduleNotFound(NotFound):
    """There is no schedule of this id."""

    code = "schedule_not_found"


class IntentNotFound(NotFound):
    """There is no intent of this id."""

    code = "intent_not_found"


# -- the state machine or a policy says no ----------------------------------------------------------


class Rejected(HoldfastError):
    """The state machine, a policy or a limit says no. Exit code 6."""

    code = "rejected"
    exit_code = 6


class IllegalTransition(Rejected):
    """One of the 52 pairs that are not an edge (§2.2)."""

    code = "illegal_transition"

    def __init__(self, current: str, wanted: str) -> None:
        super().__init__(f"a run cannot go from {current} to {wanted}")
        self.current = current
        self.wanted = wanted


class UnknownStatus(Rejected):
    """A stored status outside the eight (§2.6)."""

    code = "unknown_status"


class AlreadyTerminal(Rejected):
    """The run has ended already."""

    code = "already_terminal"


class SettledTerminal(Rejected):
    """The run has ended for good and cannot be resumed."""

    code = "settled_terminal"


class UndecidedWait(Rejected):
    """The run waits for a decision that nobody has made."""

    code = "undecided_wait"


class NotDecidable(Rejected):
    """The wait is not open, or the run is in no state to be decided about."""

    code = "not_decidable"


class ActionUnavailable(Rejected):
    """The wait does not offer this action."""

    code = "action_unavailable"


class AcknowledgeRequired(Rejected):
    """The run failed, and its resume must name the reason that was looked at."""

    code = "acknowledge_required"


class RunIsLive(Rejected):
    """A living worker drives the run."""

    code = "run_is_live"


class NothingEligible(Rejected):
    """Nothing of the run can be driven now."""

    code = "nothing_eligible"


class FingerprintMismatch(Rejected):
    """The code differs from the one that the run began with."""

    code = "fingerprint_mismatch"


class WorkspaceElsewhere(FingerprintMismatch):
    """The tools of a run have worked in a folder that is not the one here (§11.2)."""

    code = "workspace_elsewhere"


class Denied(Rejected):
    """A policy or a resolver said no; it is never retried (§8.1)."""

    code = "denied"


class AttemptMayLive(Rejected):
    """An effect is not done again while its first attempt may still be under way (§6.5)."""

    code = "attempt_may_live"


class EffectsUndone(Rejected):
    """What earlier steps of a run did was taken back, so it cannot go on from where it stood (§6.11)."""

    code = "effects_undone"


class RestrictedOption(Rejected):
    """This environment does not allow the option."""

    code = "restricted_option"


class LaneBusy(Rejected):
    """``on_busy="reject"``: the lane is held or its holder waits (§5.13)."""

    code = "lane_busy"


class LaneBlocked(Rejected):
    """A run cannot go on before another of its lane, which cannot be driven here (§4.16). ``blocked_by``: that run."""

    code = "lane_blocked"

    def __init__(self, message: str, *, blocked_by: str = "", blocked_why: str = "", hint: str = "", code: str | None = None) -> None:
        super().__init__(message, hint=hint, code=code)
        self.blocked_by = blocked_by
        self.blocked_why = blocked_why


class QueueFull(Rejected):
    """As many runs of the tenant wait in the queue as may (§10.11); ``retry_after``: seconds after which it is worth trying again."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after: float = 1.0, hint: str = "", code: str | None = None) -> None:
        super().__init__(message, hint=hint or f"try again in {retry_after:g} s", code=code)
        self.retry_after = retry_after


class LimitReached(Rejected):
    """A run may not begin now: a limit is full, or its queue is paused (§10.11)."""

    code = "limit_reached"


class TooManySignals(Rejected):
    """More signals wait for this run than it may keep."""

    code = "too_many_signals"


class TokenRefused(Rejected):
    """The resume token is unknown, used or expired."""

    code = "token_refused"


class RepairRefused(Rejected):
    """The damage is none that can be repaired safely."""

    code = "repair_refused"


class IntentSettled(Rejected):
    """The intent was sent or given up, so that there is nothing to say about it any more (§9.3)."""

    code = "intent_settled"


# -- someone was first ------------------------------------------------------------------------------


class Conflict(HoldfastError):
    """Somebody else was first: the state is another than the caller knew. Exit code 6."""

    code = "conflict"
    exit_code = 6


class VersionConflict(Conflict):
    """The log's tip moved since it was read."""

    code = "version_conflict"


class LeaseLost(Conflict):
    """The fence is not the current one (§10.2): nothing was written."""

    code = "lease_lost"


class DecisionConflict(Conflict):
    """The wait was decided otherwise before."""

    code = "decision_conflict"


class RequestConflict(Conflict):
    """The same request key with another input (§3.5)."""

    code = "request_conflict"


class EffectConflict(Conflict):
    """The same effect key with another request (§6.3)."""

    code = "effect_conflict"


class EffectInProgress(Conflict):
    """Another attempt under the same key is under way."""

    code = "effect_in_progress"


class IntentInFlight(Conflict):
    """Somebody is sending the intent now, or has settled it meanwhile."""

    code = "intent_in_flight"


class InboxUnread(Conflict):
    """A run may not end over a command that nobody has taken: it is taken first (§10.12)."""

    code = "inbox_unread"


class SignalConflict(Conflict):
    """The same signal key with another payload (§5.11)."""

    code = "signal_conflict"


# -- user code; a value in the run ------------------------------------------------------------------


class StepFailure(HoldfastError):
    """A step failed. Raise it, or a subclass, to fail a step with a code and a hint of your own."""

    code = "step_failed"


class UndeclaredChannel(StepFailure):
    """A node wrote a channel that the state does not declare."""

    code = "undeclared_channel"


class TwoWriters(StepFailure):
    """Two writers on a ``last`` channel in one super-step (§4.1)."""

    code = "two_writers"


class ContractViolation(StepFailure):
    """A write outside ``writes=`` (§4.2)."""

    code = "contract_violation"


class BadReturn(StepFailure):
    """A node returned what is no set of writes, Goto or list of Sends."""

    code = "bad_return"


class InvalidWrite(StepFailure):
    """A node wrote a value that is not what its channel's annotation says; ``field`` names it (§3.7)."""

    code = "invalid_write"

    def __init__(self, message: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.field = field


class StepTimeout(StepFailure):
    """A step took longer than its timeout."""

    code = "step_timeout"


class StepLimit(StepFailure):
    """More super-steps in one invocation than allowed (§4.9); resumable."""

    code = "step_limit"


class StepRejected(StepFailure):
    """A person rejected the step (§5.5)."""

    code = "rejected"


class RecordMismatch(StepFailure):
    """Recorded calls no longer fit the code (§4.12); shows the difference."""

    code = "record_mismatch"


class NodeMissing(StepFailure):
    """A pending node the graph no longer has (§3.2)."""

    code = "node_missing"


class SuspensionSwallowed(StepFailure):
    """A node caught what suspends it and went on; let BaseException through."""

    code = "suspension_swallowed"


class EffectUnknown(StepFailure):
    """An effect was attempted and nobody knows its outcome; never repeated (§6.5)."""

    code = "effect_unknown"


class EffectFailed(StepFailure):
    """An effect raised, and its failure is on record."""

    code = "effect_failed"


class ToolFailed(StepFailure):
    """A tool ended with another exit code than 0."""

    code = "tool_failed"


class StatementFailed(StepFailure):
    """The database refused a statement that a step returned; nothing of that step was committed."""

    code = "sql_failed"


class ToolMissing(StepFailure):
    """The step calls a tool that is not registered here."""

    code = "tool_missing"


class PathOutsideWorkspace(StepFailure):
    """A tool's cwd or declared path leaves the workspace (§11.2)."""

    code = "path_outside_workspace"


class ChildFailed(StepFailure):
    """A child run ended otherwise than completed; ``ctx.child`` raises it in the parent."""

    code = "child_failed"


class LaneOfAncestor(StepFailure):
    """A child in a lane that an unfinished ancestor holds (§4.16)."""

    code = "lane_of_ancestor"


class PermanentError(StepFailure):
    """Raise it from a step to say that retrying is no use."""

    code = "permanent"


class RetryAfter(StepFailure):
    """Raise it from a transport: not now, and not before so many ``seconds`` have passed (§10.9)."""

    code = "retry_after"

    def __init__(self, seconds: float, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or f"not before {seconds:g} s have passed", hint=hint)
        self.seconds = seconds


class MaybeSent(StepFailure):
    """Raise it from a transport: it may have been sent, and nobody knows (§9.4)."""

    code = "maybe_sent"


class RunFailed(HoldfastError):
    """Raised by ``result``, ``run`` and ``holdfast.run``; ``run`` is the run as it ended."""

    code = "run_failed"

    def __init__(self, run: object, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.run = run


class RunWaiting(HoldfastError):
    """Raised by ``result``, ``run`` and ``holdfast.run`` when the run rests in a wait."""

    code = "run_waiting"
    exit_code = 4

    def __init__(self, run: object, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.run = run


# -- the database, the disk, or what is on it -------------------------------------------------------


class StoreError(HoldfastError):
    """The store did not do what it was asked to. ``passing``: it may be well again in a while, so that a worker backs off and goes on;
    else only an operator, or another process, can help."""

    code = "store_error"
    passing = True


class StoreClosed(StoreError):
    """It was closed, here and by us: whoever waited for it is let go."""

    code = "store_closed"
    passing = False

    def __init__(self, message: str = "the store was closed", *, hint: str = "open the runtime, or the store, again", code: str | None = None) -> None:
        super().__init__(message, hint=hint, code=code)


class ProcessForked(StoreError):
    """The store was opened by the process that this one was forked from; only that one may write and act (§10.1)."""

    code = "process_forked"
    passing = False


class StoreBusy(StoreError):
    """The store could not be written for too long: another process holds it."""

    code = "store_writer_stalled"


class StoreUnavailable(StoreError):
    """The database cannot be reached for a while; nothing of this was written. Whoever tries again later may succeed."""

    code = "store_unavailable"


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost before the answer came, and could not be made again: it was written, or it was not."""

    code = "outcome_unknown"


class StoreReadOnly(StoreError):
    """The store cannot be written: a read-only file, file system or server."""

    code = "store_read_only"


class StoreMoved(StoreReadOnly):
    """The file of the store was removed, moved or replaced while it was open (X-27): what is written now nobody would find."""

    code = "store_moved"


class StoreFull(StoreError):
    """The disk or the quota is full; nothing of the write is kept."""

    code = "store_full"


class StoreCorrupt(StoreError):
    """Something stored is not what was written."""

    code = "store_corrupt"
    passing = False


class EventUnreadable(StoreCorrupt):
    """An event cannot be decoded."""

    code = "event_unreadable"


class KeyUnavailable(StoreCorrupt):
    """A payload is encrypted under a key that is not at hand, or that is another one of that name (§14.5): ``key_id``, ``run_id`` and
    ``place`` say which. ``run_id`` is empty for what belongs to no run."""

    code = "key_unavailable"

    def __init__(self, key_id: str, run_id: str = "", place: str = "") -> None:
        whose = f" of {run_id}" if run_id else ""
        way_out = "give that key too: Runtime(encryption=…), or a line of the file that $HOLDFAST_KEYS names; without it this cannot be read by anybody"
        super().__init__(f"{place or 'a payload'}{whose} is encrypted under the key {key_id!r}, which is not at hand, or is another key of that name", hint=way_out)
        self.key_id = key_id
        self.run_id = run_id
        self.place = place


class PlaintextRefused(StoreCorrupt):
    """A payload is not encrypted, and the encryption given is strict (§14.5)."""

    code = "plaintext_refused"


class PayloadAltered(StoreCorrupt):
    """An encrypted payload is not what was written there: it was changed, or belongs to another place (§14.5)."""

    code = "payload_altered"


class ChainBroken(StoreCorrupt):
    """The hashes of the log do not follow each other: an event is missing, altered or out of place."""

    code = "event_chain_broken"


class LogRolledBack(StoreCorrupt):
    """The log is older than what was acknowledged: an old copy, or a lost tail."""

    code = "log_rolled_back"


class IncarnationChanged(StoreCorrupt):
    """The store was restored or failed over while this process used it."""

    code = "store_incarnation_changed"


_MADE_ANEW = {"schedule": "; then schedule anew", "limit": "; then set the limit anew", "token": "; then issue another link"}


class RecordDamaged(StoreCorrupt):
    """A record beside the log is gone, or is not what was written (§12.1): ``kind``, ``run_id`` and ``record`` say which.

    The code is ``K_record_missing`` or ``K_record_altered`` with the kind in the place of K. ``run_id`` is empty for what belongs to no run.
    """

    code = "record_unreadable"

    def __init__(self, kind: str, run_id: str, record: str, *, missing: bool = False) -> None:
        shown = str(record).replace("\x1f", " ")
        whose = f"the {kind} record {shown!r}" + (f" of {run_id}" if run_id else "")
        said = "is missing, though it was written" if missing else "is not what was written"
        way_out = "do not act on it again before you have looked; restore a backup, or accept the loss: holdfast doctor --rebuild --acknowledge"
        way_out += _MADE_ANEW.get(kind, "")
        super().__init__(f"{whose} {said}", hint=way_out, code=f"{kind}_record_{'missing' if missing else 'altered'}")
        self.kind = kind
        self.run_id = run_id
        self.record = record


class UnsupportedFormat(StoreError):
    """A payload of a newer or unknown major version (§1.8)."""

    code = "unsupported_format"
    passing = False


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One call of a traceback: the file, the line (from 1), the function, and the text of that line, empty if it is not known."""

    file: str
    line: int
    function: str
    source: str = ""


def coded(code: str, message: str) -> HoldfastError:
    """A refusal on record as the error it was: the class of that code, plain ``Rejected`` where none has it."""
    todo: list[type[HoldfastError]] = [HoldfastError]
    while todo:
        cls = todo.pop()
        if cls.code == code and not issubclass(cls, RunFailed | RunWaiting):
            return cls(message)
        todo += cls.__subclasses__()
    return Rejected(message, code=code)


class ErrorValue(msgspec.Struct, frozen=True, array_like=True):
    """A failure as data: what is kept in a run, a step or an effect (§2.8).

    ``type`` is the exception's qualified name, ``code`` the stable code if it has one, ``hint`` the way out. ``frames`` are the
    calls of the user's own code that led to it, the outermost first.
    """

    type: str
    message: str
    code: str = "step_failed"
    where: str = ""
    hint: str = ""
    frames: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        """As Python prints an exception: its class and what it said; and, at the end, the way out."""
        said = f"{self.type.rpartition('.')[2]}: {self.message}" if self.message else self.type.rpartition(".")[2]
        return f"{said}{chr(10) if chr(10) in said else '; '}{self.hint}" if self.hint else said

    @classmethod
    def of(cls, error: BaseException, where: str = "", frames: tuple[Frame, ...] = ()) -> ErrorValue:
        """The failure that an exception stands for. An exception whose text cannot be made is kept by its type."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(error, HoldfastError):
            return cls(name, storable(str(error.message))[:4000], code_of(error), where, storable(str(error.hint))[:1000], frames)
        return cls(name, storable(_text(error))[:4000], where=where, frames=frames)


def code_of(error: BaseException) -> str:
    """The stable code of a failure; a class of the user's may say anything of itself."""
    if not isinstance(error, HoldfastError):
        return "step_failed"
    return storable(error.code)[:200] if isinstance(error.code, str) else HoldfastError.code


def storable(text: str) -> str:
    """A text without what no store could keep: the failure must be stored all the same."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def _text(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # plain text, whatever it was made of
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return f"the text of this {type(error).__qualname__} cannot be made: its __str__ raised {type(e).__qualname__}"
