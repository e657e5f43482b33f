"""A peer of `steps`: LangGraph with its SQLite checkpointer, `python -m bench.tasks.graph_peer FILE GRAPHS STEPS`.

It runs in `.venv/frameworks`, as LangGraph wants other versions of packages than the service. As many graphs at once,
each of so many steps that do nothing; `durability="sync"` has each step written before the next one begins. Prints one
line of JSON: `seconds` and `version`.
"""

from __future__ import annotations

import importlib.metadata
import json
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypedDict


class State(TypedDict):
    done: int
    count: int


def compiled(connection: sqlite3.Connection) -> Any:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(State)
    graph.add_node("step", lambda state: {"done": state["done"] + 1})
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["done"] == state["count"] else "step")
    return graph.compile(checkpointer=SqliteSaver(connection))


def run(graph: Any, graphs: int, steps: int, name: str) -> float:
    def invoke(n: int) -> int:
        config = {"configurable": {"thread_id": f"{name} {n}"}, "recursion_limit": steps + 10}
        return int(graph.invoke({"done": 0, "count": steps}, config, durability="sync")["done"])

    started = time.perf_counter()
    with ThreadPoolExecutor(graphs) as pool:
        done = list(pool.map(invoke, range(graphs)))
    if done != [steps] * graphs:
        raise RuntimeError("the graphs did something else")
    return time.perf_counter() - started


def main() -> None:
    database, graphs, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with closing(sqlite3.connect(database, check_same_thread=False)) as connection:
        graph = compiled(connection)
        run(graph, graphs, 2, "warm")
        seconds = run(graph, graphs, steps, "timed")
    print(json.dumps({"seconds": seconds, "version": importlib.metadata.version("langgraph")}))


if __name__ == "__main__":
    main()
