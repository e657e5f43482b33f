"""A graph of LangGraph as an agent: python examples/langgraph_agent.py http://127.0.0.1:8080 KEY"""

import os
import sys
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from openai import OpenAI

from stentor_worker import Task, Worker

url, key = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
models, model = OpenAI(base_url=f"{url}/v1", api_key=key), os.environ.get("MODEL", "openai/gpt-5-mini")


class State(TypedDict, total=False):
    task: str
    text: str


def ask(task: str, instruction: str, text: str) -> str:
    messages = [{"role": "system", "content": instruction}, {"role": "user", "content": text}]
    answer = models.chat.completions.create(model=model, messages=messages, extra_headers={"X-Task-Id": task})
    return answer.choices[0].message.content


graph = StateGraph(State)
graph.add_node("write", lambda state: {"text": ask(state["task"], "Summarize in three sentences.", state["text"])})
graph.add_node("shorten", lambda state: {"text": ask(state["task"], "Keep the best sentence.", state["text"])})
graph.add_edge(START, "write").add_edge("write", "shorten").add_edge("shorten", END)
agent = graph.compile()
worker = Worker.register(url, key, "langgraph-writer", ["summarize-short"])


@worker.handler
def summarize(task: Task) -> str:
    return agent.invoke({"task": task.id, "text": task.input})["text"]


worker.run()
