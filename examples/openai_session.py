"""A chat of OpenAI's Agents SDK that any program continues: python examples/openai_session.py URL KEY SESSION TEXT"""

import asyncio
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner
from agents import set_tracing_disabled as disable_tracing
from openai import AsyncOpenAI

from stentor_worker.integrations.openai_agents import StentorSession

url, key, session_id, text = sys.argv[1:] if len(sys.argv) == 5 else sys.exit(__doc__)
disable_tracing(True)  # the SDK would send its traces to OpenAI
models = AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
agent = Agent(
    name="Clerk",
    instructions="Answer questions about parcels in one sentence.",
    model=OpenAIChatCompletionsModel(os.environ.get("MODEL", "openai/gpt-5-mini"), models),
)


async def main() -> None:
    session = StentorSession(session_id, url, key)
    print((await Runner.run(agent, text, session=session)).final_output)


asyncio.run(main())
