"""Agents that are programs: one caged run per attempt, the task on standard input, the answer on standard output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Database, Tx
from stentor.core.errors import InvalidRequest, LeaseLost, SandboxUnavailable, StentorError
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.execution import runtimes
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.registry.model import Agent, Runtime
from stentor.domains.sandbox import bubblewrap
from stentor.domains.sandbox.broker.model import SandboxRun
from stentor.domains.sandbox.broker.service import ToolBroker
from stentor.domains.sandbox.bubblewrap import RunPlan, find_program_folder
from stentor.domains.sandbox.process import OutputTooLarge, SandboxedProcess
from stentor.domains.sandbox.process_sandbox import ProcessSandbox, RunFolders
from stentor.domains.tasks.model import TaskClaim
from stentor.domains.tasks.service import require_task

MAX_OUTPUT_BYTES = 10 * 1024 * 1024
"""Bytes of a run's output, errors included; more of it ends the run."""
log = logging.getLogger(__name__)
TOKEN_MARKER = b'"token"'
MAX_TOKENS_PER_CHUNK = 32
"""Tokens announced for one piece of output: whoever watches the task can wait for some hundred, not for all."""


class CommandDriver:
    """`clean` takes secrets out of what a program wrote on its error output."""

    def __init__(
        self, cage: ProcessSandbox, broker: ToolBroker, db: Database, runlog: RunLog, redact: Callable[[str], str]
    ) -> None:
        self._cage = cage
        self.broker = broker
        self._db = db
        self._runlog = runlog
        self._clean = redact

    def check_runtime(self, runtime: Runtime) -> None:
        """Raises InvalidRequest, or CageUnavailable where this service would not run it."""
        bubblewrap.check_command(runtime.command)
        options = bubblewrap.parse_options(runtime.options)
        self._cage.require_host()
        find_program_folder(self._cage.roots, options.program)

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        """Fails closed: without a cage nothing is run, and that is not held against the agent."""
        try:
            self.check_runtime(agent.runtime)
            options = bubblewrap.parse_options(agent.runtime.options)
            async with self._cage.run_folders(agent.agent_id if options.folder == "kept" else None) as room:
                return await self._run(claim, agent, room, OutputParser(emit))
        except SandboxUnavailable as error:
            raise ProviderFailed(error.code, error.message) from None
        except InvalidRequest as error:
            raise AgentFailed("AGENT_MISCONFIGURED", error.message) from None
        except OSError as error:
            raise ProviderFailed("CAGE_UNAVAILABLE", f"The run could not be started: {error.strerror}.") from None

    async def _run(self, claim: TaskClaim, agent: Agent, room: RunFolders, answer: OutputParser) -> AttemptOutcome:
        options = bubblewrap.parse_options(agent.runtime.options)
        program = find_program_folder(self._cage.roots, options.program)
        planned = RunPlan(
            agent.runtime.command, room.work_folder, options, claim.timeout_seconds, room.socket_path, program
        )
        asked_by, guard = claim.submitted_by, _guard(claim)
        run = SandboxRun(
            claim.tenant, agent.agent_id, agent.name, claim.task_id, asked_by, claim.head_id, room.work_folder, guard
        )
        async with self.broker.serve(run, room.socket_path), self._cage.start(planned, MAX_OUTPUT_BYTES) as caged:
            caged.write_stdin(jsontext.encode(runtimes.task_payload(claim)))
            try:
                code = await _unless_refused(run, _read(caged, answer))
            except OutputTooLarge:
                raise AgentFailed(
                    "OUTPUT_TOO_LARGE", f"The program wrote more than {MAX_OUTPUT_BYTES} bytes."
                ) from None
            finally:
                await self._keep(claim, caged.stderr_tail)
        if code != 0:
            raise AgentFailed("COMMAND_FAILED", f"The program ended with the exit code {code}.")
        return answer.outcome()

    async def _keep(self, claim: TaskClaim, errors: str) -> None:
        """The end of the error output goes into the run log."""
        if lines := self._clean(errors).replace("\0", "\N{REPLACEMENT CHARACTER}").splitlines():
            meta = {"epoch": claim.epoch, "stderr": lines}
            draft = EventDraft(
                "agent_logged", "execution", f"The agent wrote {len(lines)} lines.", meta, claim.agent_id
            )

            def work(tx: Tx) -> None:
                self._runlog.append(tx, claim.tenant, [draft], task_id=claim.task_id, parent=claim.head_id)

            try:
                await self._db.write(work)
            except StentorError as error:
                # Fails open: the outcome of the run does not hang on its notes.
                log.warning("the error output of task %s is not kept: %s", claim.task_id, error.message)


class DisabledDriver:
    """In the place of `Command` where command agents are switched off: their tasks fail, and not by their fault."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        raise ProviderFailed(SandboxUnavailable.code, self._why)


class OutputParser:
    """Takes standard output apart: lines `{"token": "..."}` are tokens, all others together are the answer."""

    def __init__(self, emit: EmitToken) -> None:
        self._emit = emit
        self._line = bytearray()
        self._rest = bytearray()
        self._tokens: list[str] = []

    def feed(self, chunk: bytes) -> None:
        *lines, last = chunk.split(b"\n")
        for line in lines:
            self._take(bytes(self._line) + line + b"\n")
            self._line.clear()
        self._line += last
        self._announce()

    def _announce(self) -> None:
        """Neighbours go together where there are very many."""
        size = -(-len(self._tokens) // MAX_TOKENS_PER_CHUNK) or 1
        for at in range(0, len(self._tokens), size):
            self._emit("".join(self._tokens[at : at + size]))
        self._tokens.clear()

    def outcome(self) -> AttemptOutcome:
        """Raises AgentFailed."""
        self._take(bytes(self._line))
        self._announce()
        if not self._rest.strip():
            raise AgentFailed("ANSWER_INVALID", "The program wrote no answer on standard output.")
        try:
            found = jsontext.decode(bytes(self._rest))
        except InvalidRequest as error:
            raise AgentFailed("ANSWER_INVALID", f"What the program wrote is no answer. {error.message}") from None
        return runtimes.parse_outcome(found)

    def _take(self, line: bytes) -> None:
        token = _token(line)
        if token is None:
            self._rest += line
        else:
            self._tokens.append(token)


_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=jsontext.parse_float)


def _token(line: bytes) -> str | None:
    if TOKEN_MARKER not in line[:64]:
        return None
    try:
        found = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    token = found.get("token")
    return token if len(found) == 1 and isinstance(token, str) else None


async def _read(caged: SandboxedProcess, answer: OutputParser) -> int:
    async for chunk in caged.read_stdout():
        answer.feed(chunk)
        await asyncio.sleep(0)  # reading what has come already lets nobody else run
    return await caged.wait_exit_code()


async def _unless_refused(run: SandboxRun, reading: Coroutine[Any, Any, int]) -> int:
    """The exit code. Raises AgentFailed as soon as the agent is quarantined or suspended by one of its own calls."""
    work, refused = asyncio.create_task(reading), asyncio.create_task(run.revoked.wait())
    try:
        await asyncio.wait({work, refused}, return_when=asyncio.FIRST_COMPLETED)
        if refused.done():
            raise AgentFailed("AGENT_QUARANTINED", "The agent was quarantined or suspended while it ran.")
        return await work
    finally:
        for task in (work, refused):
            task.cancel()
        await asyncio.gather(work, refused, return_exceptions=True)


def _guard(claim: TaskClaim) -> Callable[[Tx], None]:
    """An attempt that somebody else has, or that has ended, may do nothing more."""

    def guard(tx: Tx) -> None:
        task = require_task(tx, claim.tenant, claim.task_id)
        if task.status != "executing" or task.epoch != claim.epoch:
            raise LeaseLost("The task is not in your hands any more.", {"epoch": claim.epoch})

    return guard
