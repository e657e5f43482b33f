"""An agent of Pydantic AI: python examples/pydantic_ai_agent.py http://127.0.0.1:8080 KEY"""

import os
import sys

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from stentor_worker import Task, Worker

url, key = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)


class Ticket(BaseModel):
    topic: str
    urgent: bool


agent = Agent(
    output_type=Ticket,
    instructions="Read the message of a customer. Name its topic in one word, and say whether it is urgent.",
)
worker = Worker.register(url, key, "pydantic-triage", ["triage"])


@worker.handler
async def triage(task: Task) -> dict[str, object]:
    # A client for each task: connections belong to an event loop, and each task has its own.
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, default_headers={"X-Task-Id": task.id}) as client:
        provider = OpenAIProvider(openai_client=client)
        model = OpenAIChatModel(os.environ.get("MODEL", "openai/gpt-5-mini"), provider=provider)
        return (await agent.run(task.input, model=model)).output.model_dump()


worker.run()
