"""A Pydantic AI agent that survives crashes: python examples/pydantic_ai_durable.py http://127.0.0.1:8080 KEY"""

import os
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from stentor_worker import Task, Worker
from stentor_worker.integrations.pydantic_ai import TaskSteps

url, key = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
instructions = "Help with the order. Refund it if the customer asks for that."
agent = Agent(name="clerk", deps_type=Task, instructions=instructions)
worker = Worker.register(url, key, "refund-clerk", ["refund"])


async def pay_back(payment_key: str, order: str) -> str:
    return f"Order {order} is refunded: {payment_key}"  # a real one passes the key on to the bank


@agent.tool
async def refund(ctx: RunContext[Task], order: str) -> str:
    """Pay the price of an order back."""
    return await ctx.deps.effect(f"refund {order}", pay_back, order, idempotent=True)


@worker.handler
async def help_customer(task: Task) -> str:
    # A client for each task: connections belong to an event loop, and each task has its own.
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, default_headers={"X-Task-Id": task.id}) as client:
        provider = OpenAIProvider(openai_client=client)
        model = OpenAIChatModel(os.environ.get("MODEL", "openai/gpt-5-mini"), provider=provider)
        return (await agent.run(task.input, model=model, deps=task, capabilities=[TaskSteps(task)])).output


worker.run()
