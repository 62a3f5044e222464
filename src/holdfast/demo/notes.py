"""Release notes from a git repository, one node for each stage: collect, group, draft, ask, publish, record. The last one also sends them.

Read it as an example: it uses only public names. Each stage's result is recorded before the next begins,
the file is written once as an effect, and a person is asked in between.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from holdfast import Context, Graph, State, append
from holdfast.demo import repository, writing


class Notes(State):
    """The state that the stages pass on. ``folder`` is where the notes are published, ``receiver`` the URL that they are sent to, if there is one."""

    repo: str
    folder: str
    limit: int = 30
    receiver: str = ""
    name: str = ""
    commits: Annotated[list[dict[str, Any]], append]
    groups: dict[str, list[dict[str, Any]]] = {}  # noqa: RUF012 - a channel's default; the state is frozen
    draft: str = ""
    author: str = ""
    published: dict[str, Any] = {}  # noqa: RUF012


graph = Graph("release-notes", Notes, version="1")


@graph.node(start=True)
async def collect(state: Notes, ctx: Context) -> dict[str, Any]:
    """Reads the newest commits through git."""
    found = await ctx.step(repository.collect, state.repo, state.limit)
    return {"name": found["name"], "commits": found["commits"]}


@graph.node(after="collect")
def group(state: Notes) -> dict[str, Any]:
    """Groups the commits by the kind of change."""
    return {"groups": writing.group(list(state.commits))}


@graph.node(after="group", timeout=180)
async def draft(state: Notes, ctx: Context) -> dict[str, Any]:
    """Asks a model for the notes if one is configured; else, or if it does not answer, writes them by rule. If the draft was sent back, uses the feedback."""
    author, text = "rules", ""
    if writing.model_named():
        try:
            text = await ctx.step(writing.ask_model, state.name, dict(state.groups), state.draft, ctx.feedback, retry=2, timeout=60)
            author = writing.model_named()
        except Exception as e:  # if the model fails in any way, the rules write the notes; the failure is recorded as a failed step
            ctx.log.warning("the model did not answer: %s", e)
            ctx.report("degraded")
    if not text:
        text = await ctx.step(writing.by_rule, state.name, dict(state.groups), ctx.feedback)
    return {"draft": text, "author": author}


@graph.node(after="draft")
async def ask(state: Notes, ctx: Context) -> None:
    """Waits until a person has approved the draft, or has sent it back with what should change."""
    await ctx.approve("Publish these notes?", show=state.draft, redo="draft")


@graph.node(after="ask")
async def publish(state: Notes, ctx: Context) -> dict[str, Any]:
    """Writes the file once. The same text gives the same file, so that writing it again does no harm."""
    path = str(Path(state.folder) / f"release-notes-{ctx.run_id}.md")
    written = await ctx.effect(repository.write_once, path, state.draft, side_effects="write", idempotent=True)
    return {"published": written}


@graph.node(after="publish")
def record(state: Notes, ctx: Context) -> None:
    """Writes a row to the ledger: what was published, where, and under which hash. The notes are sent only after that is recorded."""
    ctx.record("published", state.published["sha256"], {"path": state.published["path"], "commits": len(state.commits)})
    if state.receiver:
        ctx.send("announce", {"url": state.receiver, "body": {"name": state.name, "sha256": state.published["sha256"], "notes": state.draft}})
