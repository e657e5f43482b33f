"""An agent of OpenAI's Agents SDK: python examples/openai_agent.py http://127.0.0.1:8080 KEY"""

import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from agents import set_tracing_disabled as disable_tracing
from openai import AsyncOpenAI

from stentor_worker import Task, Worker

url, key = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
disable_tracing(True)  # the SDK would send its traces to OpenAI


@function_tool
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


agent = Agent(
    name="Editor",
    instructions="Summarize the text in at most 30 words. Check the length with the tool.",
    tools=[count_words],
)
worker = Worker.register(url, key, "openai-editor", ["summarize-short"])


@worker.handler
async def summarize(task: Task) -> str:
    # A client for each task: connections belong to an event loop, and each task has its own.
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, default_headers={"X-Task-Id": task.id}) as models:
        model = OpenAIChatCompletionsModel(os.environ.get("MODEL", "openai/gpt-5-mini"), models)
        return (await Runner.run(agent, task.input, run_config=RunConfig(model=model))).final_output


worker.run()
