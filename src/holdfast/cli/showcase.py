"""``holdfast demo``: a run on a real repository, and what happens when its process is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from holdfast.cli import output as o
from holdfast.cli import pages, targets
from holdfast.cli.driving import progress_for
from holdfast.cli.progress import Progress, watch
from holdfast.cli.session import Call, login, options, over
from holdfast.core.errors import HoldfastError, RunFailed, UsageError
from holdfast.core.explain import Advice
from holdfast.core.status import TERMINAL, Status
from holdfast.core.waits import APPROVE, DENY, RETRY
from holdfast.demo import repository
from holdfast.demo.notes import graph
from holdfast.demo.receiver import Receiver
from holdfast.engine.look.snapshot import Snapshot
from holdfast.handle import EventView
from holdfast.runtime import Runtime

FOLDER = Path(".holdfast") / "demo"
STORE = f"sqlite:///{FOLDER.as_posix()}/runs.db"
DRAFT_LINES = 18
TRANSPORTS = "holdfast.demo.receiver:TRANSPORTS"
BOUNDARIES = 24
"""About how many boundaries (before and after each commit) the demo's run has while it is driven."""


@dataclasses.dataclass
class Story:
    """One run of the demo: the call, the run, what was killed, and the receiver."""

    call: Call
    run_id: str = ""
    killed_at: int | None = None
    killed: str = ""
    points: int = 0
    receiver: Receiver = dataclasses.field(default_factory=Receiver)

    def say(self, text: str = "") -> None:
        if not self.call.as_json:
            click.echo(text)

    def progress(self) -> Progress | None:
        return None if self.call.as_json else progress_for(self.call)


@dataclasses.dataclass(frozen=True)
class Answer:
    """A person's answer to the draft; ``feedback`` is what should change if the draft is to be written again."""

    action: str
    actor: str
    feedback: str | None = None


@click.command()
@click.option("--repo", type=click.Path(path_type=Path), metavar="PATH", help="The git repository. [default: the one of the current folder, else a sample]")
@click.option("--crash", is_flag=True, help="Kill the process with SIGKILL in the middle, and show that the run resumes.")
@click.option("--ask", is_flag=True, help="Leave the question open, to be answered from another process. Exit code 4.")
@click.option("--yes", is_flag=True, help="Approve without asking.")
@options(drives=True, default=STORE)
def demo(call: Call, repo: Path | None, crash: bool, ask: bool, yes: bool) -> int:
    """See it work: release notes for a git repository.

    A run of six steps, with a question on the way.

    The notes are sent to a receiver that the demo starts on 127.0.0.1.

    It writes below .holdfast/demo/ only. Without a terminal it answers its own question as the actor `demo`.
    A model drafts the notes if HOLDFAST_LLM_URL (and HOLDFAST_LLM_KEY, HOLDFAST_LLM_MODEL) name one.
    """
    if ask and yes:
        raise UsageError("--ask leaves the question open and --yes answers it", hint="give one of them")
    if crash and not call.store.startswith("sqlite:///"):
        raise UsageError("--crash needs a store on disk, not memory:", hint="leave --store out")
    place = _folder()
    source, sampled = _source(repo, place)
    story = Story(call, points=random.randint(2, BOUNDARIES))
    count = repository.commits(source)
    story.say(f"{o.paint('Release notes', bold=True)} for {o.inline(source.name)}: {min(count, 30)} of {count} commits{', a sample' if sampled else ''} in {o.inline(source)}")
    story.say(o.paint(f"The run is kept in {call.shown}", dim=True))
    with contextlib.nullcontext() if ask else story.receiver:  # if the question stays open, the receiver would be gone when the notes are sent
        return _show(story, source, place, crash, ask, yes)


def _show(story: Story, source: Path, place: Path, crash: bool, ask: bool, yes: bool) -> int:
    call = story.call
    story.run_id = _submit(story, source, place)
    _drive(story, crash)
    while (run := over(call.looking, lambda rt: pages.run_object(rt, story.run_id)))["status"] == Status.WAITING_FOR_HUMAN:
        answer = _answer(story, run, ask, yes)
        if answer is None:
            return _rest(story, run)
        _decide(story, answer)
        if answer.action != DENY:
            _drive(story, crash and story.killed_at is None)
    if story.receiver.url:
        over(call, lambda rt: rt.dispatch(until_idle=True), [graph], transports=TRANSPORTS)
    return _tell(story)


# -- where ------------------------------------------------------------------------------------------


def _folder() -> Path:
    """Returns the only folder to which the demo writes; git ignores it."""
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        ignore = FOLDER / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", "utf-8")
    except OSError as e:
        raise HoldfastError(f"{FOLDER} cannot be written: {e.strerror}", hint="change to a folder that you may write to", code="not_written") from None
    return FOLDER.resolve()


def _source(repo: Path | None, place: Path) -> tuple[Path, bool]:
    """Returns the repository to read, and whether it is the sample."""
    if repo is not None:
        found = repository.open_named(repo)
        if not repository.commits(found):
            raise UsageError(f"the repository {found} has no commits yet", hint="commit something, or leave --repo out", code="no_commits")
        return found, False
    here = repository.top(Path.cwd())
    if here is not None and repository.commits(here):
        return here, False
    return repository.sample(place / "sample"), True


# -- the run ----------------------------------------------------------------------------------------


def _submit(story: Story, source: Path, place: Path) -> str:
    async def act(rt: Runtime) -> str:
        made = await rt.submit(graph, {"repo": str(source), "folder": str(place), "receiver": story.receiver.url}, target=targets.DEMO)
        return str(made.run_id)

    return over(story.call, act, [graph], make=True)


def _drive(story: Story, crash: bool) -> None:
    """Drives the run until it rests; with ``crash`` first in a process of its own, which may be killed before that."""
    if crash:
        before = _version(story)
        killed = _kill(story)
        over(story.call.looking, lambda rt: _replay(story, rt, before))
        if killed is None:
            return
        story.killed_at, story.killed = _version(story), killed
        story.say(f"  {killed}")
    over(story.call, lambda rt: _resume(story, rt), [graph], transports=TRANSPORTS)


async def _resume(story: Story, rt: Runtime) -> None:
    run = await rt.get(story.run_id)
    if run.status in TERMINAL or (run.waits and not run.record.decisions):
        return
    await watch(rt, story.run_id, rt.resume(story.run_id), story.progress(), run.version)


async def _replay(story: Story, rt: Runtime, after: int) -> None:
    """Prints what a child process did."""
    progress = story.progress()
    if progress is None:
        return
    for event in await rt.events(story.run_id):
        if event.seq <= after:
            progress.prime(event)
        else:
            progress.tell(event)


def _version(story: Story) -> int:
    async def act(rt: Runtime) -> int:
        return int((await rt.get(story.run_id)).version)

    return over(story.call.looking, act)


def _decide(story: Story, answer: Answer) -> None:
    async def act(rt: Runtime) -> None:
        note = "not these notes" if answer.action == DENY else None
        await rt.decide(story.run_id, answer.action, actor=answer.actor, feedback=answer.feedback, note=note)

    over(story.call, act)


def _answer(story: Story, run: dict[str, Any], ask: bool, yes: bool) -> Answer | None:
    """Returns the answer to the question, and who gave it; None if the question stays open."""
    story.say()
    story.say(o.paint(f"The draft (made by {o.inline(run['values']['author'])}):", dim=True))
    if not story.call.as_json:
        o.block(run["values"]["draft"], indent="  │ ", lines=DRAFT_LINES)
    story.say()
    if ask:
        return None
    if yes:
        return Answer(APPROVE, login())
    if story.call.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        story.say("Nobody is at a terminal: the demo approves as the actor `demo` (--ask leaves the question open)")
        return Answer(APPROVE, "demo")
    try:
        said = click.prompt("Publish these notes? yes, no, again, or later", type=click.Choice(["y", "n", "a", "l"], case_sensitive=False), default="y")
        if said == "a":
            return Answer(RETRY, login(), click.prompt("What should change?", default="shorter"))
    except click.Abort:
        click.echo()
        said = "l"
    return None if said == "l" else Answer(APPROVE if said == "y" else DENY, login())


def _rest(story: Story, run: pages.RunObject) -> int:
    """Ends the demo while the question is open, and prints how to answer it; no process is needed meanwhile."""
    call = story.call
    if call.as_json:
        return pages.finish(call, run)
    click.echo(f"{o.mark('ask')} {pages.heading(run)}: the run waits, and no process has to run. Answer from any shell, today or next week:")
    click.echo()
    for wait in run["waits"]:
        pages.advise(pages.answers(call, wait, alone=pages.alone(run)))
    pages.advise([Advice("Then resume it:", call.line("resume", story.run_id))])
    return pages.EXITS[run["status"]]


# -- the crash --------------------------------------------------------------------------------------


def _kill(story: Story) -> str | None:
    """Drives the run in a child process and kills it at the boundary of a commit. Returns a line about that; None if the run rested before."""
    words = [sys.executable, "-m", "holdfast.demo.child", story.call.store, story.run_id]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ.copy())
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        for point in iter(child.stdout.readline, ""):
            story.points -= 1
            if story.points <= 0:
                child.kill()
                child.wait()
                when, _, number = point.strip().partition(" ")
                how = signal.Signals(-child.returncode).name
                return f"{o.mark('bad')} {o.paint('kill -9', 'red', bold=True)} of the process {child.pid}, {when} its commit {number} ({how})"
            child.stdin.write("\n")
            child.stdin.flush()
    if child.returncode:
        raise RunFailed(None, f"the child process ended with exit code {child.returncode}")
    return None


def _not_again(events: list[EventView], killed_at: int) -> list[str]:
    """Returns what the log shows about the kill: what was done before it was not done a second time."""
    ended = [e for e in events if e.event_type in ("step.completed", "step.degraded")]
    done = [(e.seq, e.payload["task"], e.payload.get("path", "")) for e in ended]
    steps = [task for seq, task, path in done if seq <= killed_at and not path]
    calls = [task for seq, task, path in done if seq <= killed_at and path and task not in steps]
    twice = [place for place, times in Counter(str(e.payload["step_id"]) for e in ended).items() if times > 1]
    lines = []
    if steps:
        lines.append(f"done before the kill and not run again: {', '.join(steps)}")
    if calls:
        lines.append(f"recorded before the kill and not made again: the call inside {', '.join(dict.fromkeys(calls))}")
    if not steps and not calls:
        lines.append("nothing had been recorded before the kill, so every step ran after the restart")
    lines.append("every step is on record exactly once" if not twice else f"ON RECORD TWICE: {twice}")
    return lines


# -- the end ----------------------------------------------------------------------------------------


def _tell(story: Story) -> int:
    async def act(rt: Runtime) -> tuple[Snapshot, list[EventView]]:
        return await rt.look.snapshot(story.run_id), await rt.events(story.run_id)

    call = story.call
    seen, events = over(call.looking, act)
    run = pages.make_run_object(seen)
    if call.as_json:
        return pages.finish(call, run)
    o.head("timeline")
    last = next((e.occurred_at for e in reversed(events) if e.seq == story.killed_at), None)
    pages.timeline(seen.story(), brief=True, notes={last: story.killed} if last is not None else None)
    if story.killed_at is not None:
        o.head("after the kill")
        for line in _not_again(events, story.killed_at):
            click.echo(f"  {o.mark('ok')} {line}")
    click.echo()
    click.echo(f"{pages.heading(run)}  {run['run_id']}")
    if run["status"] == Status.COMPLETED:
        published = run["values"]["published"]
        click.echo(f"{o.mark('ok')} {_near(Path(published['path']))}  {published['bytes']} bytes, {len(run['values']['commits'])} commits, draft by {o.inline(run['values']['author'])}")
        if story.receiver.got:
            click.echo(f"{o.mark('ok')} sent to {story.receiver.url} exactly once, with its idempotency key")
        click.echo(f"{o.mark('go')} {call.line('show', run['run_id'])}")
    else:
        pages.brief(call, run)
    return pages.EXITS.get(run["status"], pages.RESTING)


def _near(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


COMMANDS = (demo,)
