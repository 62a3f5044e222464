"""LangGraph graphs on Holdfast (extra ``langgraph``).

``as_skill(compiled, "support")`` makes a compiled LangGraph graph a skill: turns of a thread run one after the other, an ``interrupt``
becomes a question that a person answers days later, and a worker goes on with the turn of a process that was killed.

``HoldfastSaver`` is a checkpointer that keeps LangGraph's checkpoints in a Holdfast store, beside the runs.
"""

from __future__ import annotations

from holdfast.integrations.langgraph.saver import HoldfastSaver
from holdfast.integrations.langgraph.skill import as_skill

__all__ = ["HoldfastSaver", "as_skill"]
