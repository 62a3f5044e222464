"""What each command prints, as golden screens: its help, a good use and a wrong one, on terminals of 80 and 140 columns and in a pipe.

``python -m tests.cli.test_screens`` writes them anew, below tests/golden/screens; look at the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.conftest import SKILL

from holdfast import machine
from holdfast.cli import output, session
from holdfast.cli.main import cli

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "screens"
ROOMS = {"80": 80, "140": 140, "pipe": 0}
GOOD: dict[str, tuple[str, ...]] = {
    "runs": ("runs",), "show": ("show", "WAITING"), "events": ("events", "DONE"), "steps": ("steps", "DONE"), "attempts": ("attempts", "FAILED"),
    "checkpoints": ("checkpoints", "DONE"), "state": ("state", "WAITING"), "diff": ("diff", "DONE", "c6", "c8"), "graph": ("graph", "work.py"),
    "explain": ("explain", "FAILED"), "waits": ("waits",), "effects": ("effects", "DONE"), "outbox": ("outbox",), "ledger": ("ledger",), "leases": ("leases",),
    "workers": ("workers",), "lanes": ("lanes",), "check": ("check",), "migrate": ("migrate",), "doctor": ("doctor",), "repair-state": ("repair-state", "DONE"),
    "prune": ("prune", "--older-than", "30d", "--dry-run"), "schedule": ("schedule", "list"), "token": ("token", "list"),
    "show-failed": ("show", "FAILED"), "explain-waiting": ("explain", "WAITING"), "decide-all": ("decide", "--all", "--where", "skill=work", "--action", "approve", "--dry-run"),
}
DOES: tuple[tuple[str, ...], ...] = (
    ("new", "hello"), ("run", "work.py", "--input", '{"name": "quick"}'), ("submit", "work.py", "--input", '{"name": "quick"}'), ("worker", "work.py", "--until-idle"),
    ("approve", "WAITING"), ("resume", "WAITING", "work.py"), ("deny", "MORE", "--reason", "not today"), ("replay", "DONE", "work.py"), ("fork", "DONE", "work.py", "--set", 'name="quick"'),
    ("run", "more.py:paid"), ("signal", "last", "paid", "--payload", "42"), ("cancel", "last"), ("run", "more.py:letter"), ("decide", "last", "--action", "answer", "--payload", '"Ada"'),
    ("resume", "last", "more.py:letter"), ("dispatch", "--transports", "more.py:transports", "--until-idle"), ("tool-runner", "--workspace", ".", "--tools", "more.py:tools", "--until-idle"), ("outbox",), ("ledger",), ("redrive", "LETTER!0"), ("settle", "LETTER!1", "--as", "sent", "--reason", "the receiver has it"),
    ("schedule", "add", "work.py", "--id", "daily", "--cron", "0 9 * * *", "--input", '{"name": "quick"}'), ("schedule", "list"), ("schedule", "pause", "daily"), ("schedule", "unpause", "daily"),
    ("schedule", "trigger", "daily", "work.py"), ("schedule", "remove", "daily"), ("schedule", "next", "30 2 * * *", "--zone", "Europe/Berlin", "--after", "2026-03-27", "--count", "2"),
    ("limits", "set", "model", "--in-flight", "5", "--reason", "the contract"), ("limits",), ("limits", "unset", "model"), ("queues", "pause", "default", "--reason", "a deploy"), ("queues",), ("queues", "unpause", "default"),
    ("token", "create", "--scopes", "view", "--actor", "ada", "--expires", "never"), ("token", "list"), ("token", "revoke", "TOKEN"),
    ("check",), ("export", "DONE", "out"), ("import", "out"), ("backup", "copy.db"), ("restore", "copy.db"), ("prune", "--older-than", "30d"), ("migrate",), ("repair-state", "DONE", "--apply"), ("doctor",),
    ("demo", "--yes"),
)
"""Good uses that change something, in this order, in a folder of their own. ``serve`` and ``mcp`` run until they are stopped: tests/docs/test_blocks.py and
tests/integrations/test_mcp.py show them."""
MORE = '''
from holdfast import Context, Tool, flow
from holdfast.core.errors import MaybeSent, PermanentError


@flow("paid")
async def paid(ctx: Context) -> None:
    await ctx.wait("paid")
    await ctx.approve("Ship it?")


@flow("letter")
async def letter(ctx: Context) -> None:
    name = await ctx.ask("To whom?", str)
    ctx.record("letters", name, {"to": name})
    ctx.send("mail", {"to": name})
    ctx.send("fax", {"to": name})


def refused(payload, key):
    raise PermanentError("there is no such address")


def lost(payload, key):
    raise MaybeSent("the line went dead")


transports = {"mail": refused, "fax": lost}
tools = [Tool("git"), Tool("make")]
'''
WRONG: dict[str, tuple[str, ...]] = {
    **{name: (name, "nothing") for name in ("show", "events", "steps", "attempts", "checkpoints", "state", "explain", "effects", "approve", "cancel", "resume", "replay", "fork", "redrive", "repair-state")},
    "run": ("run", "nothing.py"), "submit": ("submit", "work.py", "--input", "{"), "worker": ("worker", "nothing.py"), "runs": ("runs", "--status", "runing"),
    "diff": ("diff", "DONE", "c1", "c99"), "deny": ("deny", "DONE", "--reason", "R"), "decide": ("decide", "WAITING", "--action", "aprove"),
    "signal": ("signal", "DONE", "paid"), "prune": ("prune", "--older-than", "soon"), "export": ("export", "nothing", "out"), "restore": ("restore", "nothing.db"),
    "serve": ("serve", "--host", "0.0.0.0", "--no-auth"), "token": ("token", "create", "--scopes", "veiw"), "settle": ("settle", "nothing", "--as", "sent", "--reason", "R"),
    "schedule": ("schedule", "remove", "nothing"), "new": ("new", "a/b"), "graph": ("graph", "nothing.py"),
    "demo": ("demo", "--repo", "nowhere"), "waits": ("waits", "nothing"), "outbox": ("outbox", "--state", "lost"), "ledger": ("ledger", "--after", "soon"),
    "leases": ("leases", "--all"), "workers": ("workers", "all"), "lanes": ("lanes", "--sesion", "x"), "dispatch": ("dispatch", "--transports", "work.py"),
    "tool-runner": ("tool-runner", "--workspace", "nowhere", "--tools", "more.py:tools"), "tool-runner-tools": ("tool-runner", "--workspace", "."), "tool-runner-list": ("tool-runner", "--workspace", ".", "--tools", "more.py:paid"),
    "check": ("check", "nothing"), "migrate": ("migrate", "--store", "mysql://db"), "import": ("import", "nothing"), "doctor": ("doctor", "--acknowlege"),
    "backup": ("backup", "nowhere/copy.db"), "mcp": ("mcp", "--scopes", "veiw"), "queues": ("queues", "pause"), "queues-pause": ("queues", "pause", ""),
    "queues-unpause": ("queues", "unpause", ""), "limits": ("limits", "set", "model"), "limits-unset": ("limits", "unset"), "limits-number": ("limits", "set", "model", "--in-flight", "few"),
    "schedule-add": ("schedule", "add", "--every", "5m"), "schedule-cron": ("schedule", "add", "work.py", "--cron", "0 99 * * *"), "schedule-next": ("schedule", "next", "* * *"),
    "schedule-list": ("schedule", "list", "all"), "schedule-pause": ("schedule", "pause", "nothing"), "schedule-unpause": ("schedule", "unpause", "nothing"), "schedule-trigger": ("schedule", "trigger", "nothing"),
    "token-list": ("token", "list", "all"), "token-revoke": ("token", "revoke", "nothing"), "run-input": ("run", "work.py"), "run-more": ("run", "work.py", "--input", '{"name": "Ada", "age": 3}'), "run-target": ("run",),
    "fork-set": ("fork", "DONE", "--set", "name"), "replay-from": ("replay", "DONE", "--from", "c99"), "since": ("runs", "--since", "tomorrow"), "command": ("shwo",), "option": ("show", "DONE", "--ful"),
}


class Terminal(io.StringIO):
    """A stream that is a terminal, or a pipe."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def typed(words: tuple[str, ...], room: int, *, plain: bool = True) -> str:
    """What a command shows, both streams as they come, and its exit code; ``plain``: without its colours."""
    stream = Terminal(room > 0)
    environment = dict(os.environ)
    os.environ["COLUMNS"] = str(room or 80)
    code: object = 0
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            sys.stdout = output.Shown(stream)  # type: ignore[assignment]
            cli.main(args=list(words), prog_name="holdfast")
    except SystemExit as e:
        code = e.code
    finally:
        os.environ.clear()
        os.environ.update(environment)
    left = re.sub(r"[^\n]*\r\x1b\[2K", "", stream.getvalue())  # what was drawn over while it took its time is not on the screen any more
    return f"$ holdfast {' '.join(words)}\n{click.unstyle(left) if plain else left}exit {code}\n"


def steady(text: str, names: dict[str, str], *, squeezed: bool = True) -> str:
    """A screen without what differs from one time to another: ids, times, durations, processes; ``squeezed``: and columns."""
    for name, run_id in names.items():
        text = text.replace(run_id, name.ljust(26, "."))
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?", "2026-01-01 00:00:00Z", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\.\d{3}\b", "00:00:00.000", text)
    text = re.sub(r"\+\d+\.\d{3}\b", "+0.000", text)
    text = re.sub(r"\bhost-[\w.-]*…?", "OWNER", text)
    text = re.sub(r"\b01[0-9a-z]{2,}…", "RUN…", text).replace(os.getcwd(), "HERE")
    text = re.sub(r"\bhf_\S+", "SECRET", re.sub(r"\b01[0-9a-z]{24}\b", "ID", text))
    text = re.sub(r"\b\d+(?:\.\d)? (?:bytes|KiB)\b", "N bytes", text)
    text = re.sub(r"\bworkspace [0-9a-f]{16}\b", "workspace SPACE", text)
    text = re.sub(r"\b127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
    text = re.sub(r"by [a-z]+(?=, T|$)", "by USER", text, flags=re.M)
    return re.sub(r"[ \t]+", " ", text) if squeezed else text


@contextlib.contextmanager
def folder(does: tuple[tuple[str, ...], ...] = ()) -> Iterator[dict[str, str]]:
    """A folder with skills and a store of three runs: done, waiting, failed; where something is done there, of one more that waits."""
    here, before, kept = Path.cwd(), dict(os.environ), (session.program, machine.here, output.span, output.ago)
    path = list(sys.path)
    with tempfile.TemporaryDirectory() as at:
        os.chdir(at)
        try:
            for name in ("HOLDFAST_STORE", "HOLDFAST_SKILLS", "HOLDFAST_WORKSPACE", "HOLDFAST_LEASE", "HOLDFAST_ACTOR", "HOLDFAST_LLM_URL", "UV_RUN_RECURSION_DEPTH"):
                os.environ.pop(name, None)
            os.environ["HOLDFAST_ACTOR"] = "ada"
            session.program = lambda: ["holdfast"]
            machine.here = lambda: machine.Here("host", "boot")  # type: ignore[assignment]
            output.span, output.ago = lambda seconds: "" if seconds is None else "1.00 s", lambda at, now, **_: "" if at is None else "5 s ago"
            Path("work.py").write_text(SKILL, "utf-8")
            Path("more.py").write_text(MORE, "utf-8")
            names = {}
            for name, who in (("DONE", "quick"), ("WAITING", "Ada"), ("FAILED", "broken"), *([("MORE", "Bob")] if does else [])):
                said = typed(("run", "work.py", "--input", f'{{"name": "{who}"}}', "--json"), 0)
                found = re.search(r'"run_id": ?"([0-9a-z]{26})"', said)
                assert found is not None, said
                names[name] = found[1]
            yield names
        finally:
            session.program, machine.here, output.span, output.ago = kept  # type: ignore[assignment]
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)
            sys.path[:] = path


def filled(words: tuple[str, ...], names: dict[str, str]) -> tuple[str, ...]:
    return tuple(names.get(word, word) for word in words)


def screens() -> dict[str, str]:
    """All golden screens, by the names of their files."""
    found = {}
    with folder() as names:
        for room, columns in ROOMS.items():
            found[f"help-{room}"] = "\n".join(typed((*words, "--help"), columns) for words in every_command())
            found[f"good-{room}"] = "\n".join(steady(typed(filled(words, names), columns), names) for words in GOOD.values())
            found[f"wrong-{room}"] = "\n".join(steady(typed(filled(words, names), columns), names) for words in WRONG.values())
    for room, columns in ROOMS.items():
        with folder(DOES) as names:
            found[f"does-{room}"] = "\n".join(steady(done(words, columns, names), names) for words in DOES)
    return found


def done(words: tuple[str, ...], columns: int, names: dict[str, str], *, plain: bool = True) -> str:
    """Types one of ``DOES``; what it makes is named for those after it."""
    shown = typed(filled(words, names), columns, plain=plain)
    said = click.unstyle(shown)
    if words[:2] == ("run", "more.py:letter"):
        made = re.search(r"letter ([0-9a-z]{26})", said)
        assert made is not None, said
        names["LETTER"] = made[1]
    if words == ("outbox",):
        names |= {f"LETTER!{n}": i for n, i in enumerate(sorted(set(re.findall(r"\b01[0-9a-z]{24}\.\S*!\d", said)), key=lambda i: i[-1]))}
    if words[:2] == ("token", "create"):
        names["TOKEN"] = re.search(r"^([0-9a-f]{12}): ", said, re.M)[1]  # type: ignore[index]
    return shown


def every_command() -> list[tuple[str, ...]]:
    """The words of each command, those of groups included."""
    words: list[tuple[str, ...]] = [()]
    for name, command in cli.commands.items():
        words.append((name,))
        if isinstance(command, click.Group):
            words += [(name, below) for below in command.commands]
    return words


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    return screens()


@pytest.mark.parametrize("name", [f"{kind}-{room}" for kind in ("help", "good", "does", "wrong") for room in ROOMS])
def test_each_screen_is_as_it_was(name: str, shown: dict[str, str]) -> None:
    assert shown[name] == (GOLDEN / f"{name}.txt").read_text("utf-8"), "python -m tests.cli.test_screens writes them anew"


def test_every_wrong_use_is_one_line_and_no_traceback(shown: dict[str, str]) -> None:
    for screen in re.split(r"^(?=\$ holdfast )", shown["wrong-pipe"], flags=re.M)[1:]:
        lines = [line for line in screen.strip().splitlines()[1:] if line.strip()]
        assert len(lines) == 2 and lines[-1] in ("exit 1", "exit 2", "exit 3", "exit 6"), screen
        assert "internal:" not in screen


def test_every_command_has_a_good_use_and_a_wrong_one() -> None:
    leaves = {words for words in every_command() if words and not isinstance(command_of(words), click.Group)}
    for uses in ([*GOOD.values(), *DOES], list(WRONG.values())):
        used = {tuple(words[:n]) for words in uses for n in (1, 2)}
        assert leaves - used - {("serve",), ("mcp",)} == set()


def command_of(words: tuple[str, ...]) -> click.Command:
    found = cli.commands[words[0]]
    return found.commands[words[1]] if len(words) > 1 and isinstance(found, click.Group) else found


@pytest.mark.parametrize(("room", "columns"), [("80", 80), ("140", 140)])
def test_lists_and_helps_fit_the_terminal(room: str, columns: int) -> None:
    """But for commands to copy, which are never cut."""
    with folder() as names:
        typed(("schedule", "add", "work.py", "--id", "daily", "--cron", "0 9 * * *", "--input", '{"name": "quick"}'), 0)
        for words in [GOOD[n] for n in ("runs", "steps", "attempts", "checkpoints", "effects", "outbox", "ledger", "leases", "workers", "lanes", "schedule", "token", "decide-all")]:
            for line in typed(filled(words, names), columns).splitlines()[1:]:
                assert output.columns(line) <= columns or line.startswith("more: "), line
        for words in every_command():
            for line in typed((*words, "--help"), columns).splitlines()[1:]:
                assert output.columns(line) <= columns, line


def test_a_wide_character_takes_two_columns() -> None:
    assert output.cut("日本語のテキスト", 7) == "日本語…"
    assert output.fit([26, 30, 30], {0}, 80) == [26, 25, 25]
    assert output.fit([26, 8, 8], {0}, 20) == [26, 8, 8]


def test_the_events_of_a_run_fit_the_terminal() -> None:
    with folder() as names:
        for run_id in names.values():
            lines = typed(("events", run_id), 80).splitlines()[1:-1]
            assert lines and [line for line in lines if output.columns(line) > 80] == []


def test_the_condition_of_a_run_is_never_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal of 80 columns ``awaiting_gate_decision`` and ``awaiting_signal`` looked alike."""
    monkeypatch.setattr(output, "width", lambda: 80)
    rows = [
        ["01m8g6r995n3vpjgfz5ayw3jsy", "order-with-a-long-name", "awaiting_gate_decision", "10 min ago", "", "approval: Refund 100 cents for the lamp that Ada has sent back?"],
        ["01m8g65y2f86s85tp6gbsbjkdk", "notes", "awaiting_signal", "now", "964 ms", ""],
    ]
    output.table(["run", "skill", "condition", "created", "took", "about"], rows, below="about")
    assert capsys.readouterr().out.splitlines() == [
        "run                         skill     condition               created     took",
        "01m8g6r995n3vpjgfz5ayw3jsy  order-w…  awaiting_gate_decision  10 min ago",
        "    approval: Refund 100 cents for the lamp that Ada has sent back?",
        "01m8g65y2f86s85tp6gbsbjkdk  notes     awaiting_signal         now         964 ms",
    ]


def test_what_fits_beside_the_rest_stays_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "width", lambda: 60)
    output.table(["run", "condition", "about"], [["01m8g6r995n3vpjgfz5ayw3jsy", "done", "short"]], below="about")
    assert capsys.readouterr().out.splitlines() == ["run                         condition  about", "01m8g6r995n3vpjgfz5ayw3jsy  done       short"]


def test_a_list_tells_times_in_one_unit() -> None:
    then = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    said = [output.ago(then, then + dt.timedelta(seconds=s), brief=True) for s in (0, 5, 625, 3_700, 90_000)]
    assert said == ["now", "5 s ago", "10 min ago", "1 h ago", "1 d ago"]


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for file, text in screens().items():
        (GOLDEN / f"{file}.txt").write_text(text, "utf-8")
        sys.__stdout__.write(f"{file}.txt\n")  # type: ignore[union-attr]
