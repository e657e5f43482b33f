"""A worker with durable Pydantic AI agents and scripted models: python durable_agent.py URL KEY LOG [TASK to replay]

The input of a task names what its agent does. Each call of a model or of a tool is a line of LOG.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, ToolFailed, ToolReturn
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stentor_worker import Task, Worker
from stentor_worker.integrations.pydantic_ai import TaskSteps

URL, KEY, LOG = sys.argv[1:4]
SCRIPTS: dict[str, list[list[tuple[str, dict[str, Any]]]]] = {
    "sum": [
        [("add", {"a": 2, "b": 3})],
        [("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}), ("shout", {"text": "hi"})],
        [("final_result", {"total": 11})],
    ],
    "outcomes": [
        [("picky", {"n": 1}), ("picture", {}), ("broken", {})],
        [("picky", {"n": 2}), ("day", {})],
        [("final_result", {"total": "many"})],
        [("final_result", {"total": 2})],
    ],
    "ask": [[("confirm", {}), ("add", {"a": 5, "b": 5})], [("final_result", {"total": 1})]],
    "delegate": [[("delegate", {"n": 1}), ("delegate", {"n": 2})], [("final_result", {"total": 2})]],
    "help 1": [[("add", {"a": 1, "b": 10})], [("final_result", {"total": 11})]],
    "help 2": [[("add", {"a": 2, "b": 10})], [("final_result", {"total": 12})]],
    "effect": [[("pay", {})], [("final_result", {"total": 1})]],
    "safe effect": [[("pay_safely", {})], [("final_result", {"total": 1})]],
    "error": [[("fails", {})], [("final_result", {"total": 1})]],
    "twice": [[("final_result", {"total": 1})]],
}
"""Input -> what the model asks for, one answer after another."""


class Total(BaseModel):
    total: int


def log(line: str) -> None:
    with Path(LOG).open("a") as file:
        file.write(line + "\n")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    prompt = next(part.content for part in messages[0].parts if part.part_kind == "user-prompt")
    number = sum(message.kind == "response" for message in messages)
    log(f"{prompt}: model {number + 1}")
    if (prompt, number, epoch[0]) == ("sum", 2, 1):
        die()
    if prompt == "hello":
        return ModelResponse([TextPart("Hello!")])
    return ModelResponse([ToolCallPart(name, arguments) for name, arguments in SCRIPTS[str(prompt)][number]])


epoch = [0]
agent = Agent(FunctionModel(answer), name="adder", output_type=Total, deps_type=Task, retries=3)


@agent.tool_plain
async def add(a: int, b: int) -> int:
    await asyncio.sleep(0.05 / a)  # so that those that were asked for first end last
    log(f"add {a} {b}")
    return a + b


@agent.tool_plain
def shout(text: str) -> str:
    log("shout")
    return text.upper()


@agent.tool_plain
def picky(n: int) -> int:
    log(f"picky {n}")
    if n == 1:
        raise ModelRetry("Take 2.")
    return n


@agent.tool_plain
def picture() -> ToolReturn:
    log("picture")
    return ToolReturn({"at": [1, 2]}, content=["see", BinaryContent(bytes(range(256)), media_type="image/png")])


@agent.tool_plain
def broken() -> str:
    log("broken")
    raise ToolFailed("It is closed today.")


@agent.tool_plain
def day() -> dict[str, Any]:
    log("day")
    return {"total": Total(total=7), "raw": b"\xff\x00", "kind": "tool-return"}


@agent.tool
async def delegate(ctx: RunContext[Task], n: int) -> int:
    log(f"delegate {n}")
    return (await agent.run(f"help {n}", deps=ctx.deps, capabilities=[TaskSteps(ctx.deps)])).output.total


@agent.tool
async def confirm(ctx: RunContext[Task]) -> str:
    return str(await ctx.deps.ask("Go on?", ["yes", "no"]))


async def send(key: str) -> str:
    log(f"paid {key}")
    if epoch[0] == 1:
        die()
    return "paid"


@agent.tool
async def pay(ctx: RunContext[Task]) -> str:
    return str(await ctx.deps.effect("pay", send))


@agent.tool
async def pay_safely(ctx: RunContext[Task]) -> str:
    return str(await ctx.deps.effect("pay", send, idempotent=True))


@agent.tool_plain
def fails() -> str:
    log("fails")
    if Path(LOG).read_text().count("fails\n") == 1:
        raise ValueError("no such thing")
    return "now it works"


worker = Worker.register(URL, KEY, "adder", ["add"], lease_seconds=2)


@worker.handler
async def handle(task: Task) -> Any:
    epoch[0] = task.epoch
    steps = TaskSteps(task)
    if task.input == "stream":
        async with agent.run_stream("sum", deps=task, capabilities=[steps]):
            return "streamed"
    if task.input == "side by side":
        return await asyncio.gather(*(agent.run("twice", deps=task, capabilities=[steps]) for _ in range(2)))
    if task.input == "twice":
        greeter: Agent[None, str] = Agent(FunctionModel(answer), name="greeter")
        runs = [agent.run("twice", deps=task, capabilities=[TaskSteps(task, name=f"adder {n}")]) for n in "ab"]
        totals = [run.output.total for run in await asyncio.gather(*runs)]
        texts = [(await greeter.run("hello", capabilities=[TaskSteps(task)])).output for _ in range(2)]
        return [*totals, *texts]
    run = await agent.run(task.input, deps=task, capabilities=[steps])
    if (task.input, task.epoch) == ("sum", 2):
        die()
    said = [part.content for message in run.all_messages() for part in message.parts if hasattr(part, "content")]
    return {
        "total": run.output.total,
        "tools": run.usage.tool_calls,
        "requests": run.usage.requests,
        "said": repr(said),
    }


if len(sys.argv) > 4:
    report = worker.replay(sys.argv[4])
    print(report, "same" if report.is_same else "differs")  # noqa: T201
else:
    worker.run()
