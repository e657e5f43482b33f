"""A conversation that survives the program: python examples/langgraph_memory.py URL KEY THREAD TEXT"""

import os
import sys

from langchain_core.messages import convert_to_openai_messages
from langgraph.graph import START, MessagesState, StateGraph
from openai import OpenAI

from stentor_worker.integrations.langgraph import StentorCheckpointer

url, key, thread, text = sys.argv[1:] if len(sys.argv) == 5 else sys.exit(__doc__)
models, model = OpenAI(base_url=f"{url}/v1", api_key=key), os.environ.get("MODEL", "openai/gpt-5-mini")


def reply(state: MessagesState) -> dict:
    answer = models.chat.completions.create(model=model, messages=convert_to_openai_messages(state["messages"]))
    return {"messages": [("assistant", answer.choices[0].message.content)]}


graph = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply")
agent = graph.compile(checkpointer=StentorCheckpointer(url, key))
state = agent.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": thread}})
sys.stdout.writelines(f"{message.type}: {message.content}\n" for message in state["messages"])
