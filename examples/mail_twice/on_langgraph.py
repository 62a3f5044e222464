"""The same on LangGraph with its SQLite saver. Nodes that ended are kept; the one that was under way runs again."""

from __future__ import annotations

import sys
from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from examples.mail_twice.mail import draft, send


class Mail(TypedDict, total=False):
    customer: str
    text: str


def write(state: Mail) -> Mail:
    return {"text": draft(state["customer"])}


def post(state: Mail) -> Mail:
    send(state["customer"], state["text"])
    return {}


if __name__ == "__main__":
    graph = StateGraph(Mail).add_node("write", write).add_node("post", post).add_edge(START, "write").add_edge("write", "post").add_edge("post", END)
    with SqliteSaver.from_conn_string(sys.argv[1] + ".langgraph") as saver:
        app = graph.compile(checkpointer=saver)
        config: RunnableConfig = {"configurable": {"thread_id": "ada"}}
        begun = app.get_state(config).next
        app.invoke(None if begun else {"customer": "Ada"}, config, durability="sync")
