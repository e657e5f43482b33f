"""The driver of agents that are programs: one sandboxed run per attempt.

The program reads the task from standard input and writes its result to standard output. The sandbox itself is in
`domains/sandbox`, the tools that a program may call in `sandbox_tools.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from stentor.core import jsontext
from stentor.core.db import Database, Tx
from stentor.core.errors import InvalidRequest, SandboxUnavailable, StentorError
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.execution import runtimes
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.registry.model import Agent, Runtime
from stentor.domains.sandbox import bubblewrap
from stentor.domains.sandbox.broker.model import SandboxRun
from stentor.domains.sandbox.broker.service import ToolBroker
from stentor.domains.sandbox.bubblewrap import RunPlan, SandboxOptions, find_program_folder
from stentor.domains.sandbox.process import OutputTooLarge, SandboxedProcess
from stentor.domains.sandbox.process_sandbox import ProcessSandbox, RunFolders
from stentor.domains.tasks.model import TaskClaim

MAX_OUTPUT_BYTES = 10 * 1024 * 1024
"""Longest output of a run, standard error included; more ends the run."""
MAX_TOKENS_PER_CHUNK = 32
"""Maximum number of tokens emitted for one chunk of output: the buffer of a stream's reader holds only some hundred."""
log = logging.getLogger(__name__)


class CommandDriver:
    """Runs a program in the sandbox. `redact` removes secrets from what it wrote to standard error."""

    def __init__(
        self, sandbox: ProcessSandbox, broker: ToolBroker, db: Database, runlog: RunLog, redact: Callable[[str], str]
    ) -> None:
        self._sandbox = sandbox
        self.broker = broker
        self._db = db
        self._runlog = runlog
        self._redact = redact

    def check_runtime(self, runtime: Runtime) -> None:
        """Raise InvalidRequest for an invalid runtime, SandboxUnavailable if this host cannot run it."""
        bubblewrap.check_command(runtime.command)
        options = bubblewrap.parse_options(runtime.options)
        self._sandbox.require_host()
        find_program_folder(self._sandbox.roots, options.program)

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        """Run the program. Fails closed: without a sandbox nothing runs, and that does not count against the agent."""
        try:
            self.check_runtime(agent.runtime)
            options = bubblewrap.parse_options(agent.runtime.options)
            async with self._sandbox.run_folders(agent.agent_id if options.folder == "kept" else None) as folders:
                return await self._run(claim, agent, options, folders, OutputParser(emit))
        except SandboxUnavailable as error:
            raise ProviderFailed(error.code, error.message) from None
        except InvalidRequest as error:
            raise AgentFailed("AGENT_MISCONFIGURED", error.message) from None
        except OSError as error:
            raise ProviderFailed("CAGE_UNAVAILABLE", f"The sandbox could not be started: {error.strerror}.") from None

    async def _run(
        self, claim: TaskClaim, agent: Agent, options: SandboxOptions, folders: RunFolders, output: OutputParser
    ) -> AttemptOutcome:
        program = find_program_folder(self._sandbox.roots, options.program)
        plan = RunPlan(
            agent.runtime.command, folders.work_folder, options, claim.timeout_seconds, folders.socket_path, program
        )
        run = SandboxRun(
            claim.tenant,
            agent.agent_id,
            agent.name,
            claim.task_id,
            claim.submitted_by,
            claim.head_id,
            folders.work_folder,
            runtimes.lease_check(claim),
            claim.metadata.budgets_of(claim.task_id),
        )
        # The broker listens before the program starts, so that its first call finds the socket.
        async with self.broker.serve(run, folders.socket_path), self._sandbox.start(plan, MAX_OUTPUT_BYTES) as process:
            process.write_stdin(jsontext.encode(runtimes.task_payload(claim)))
            try:
                code = await _unless_revoked(run, _read(process, output))
            except OutputTooLarge:
                raise AgentFailed(
                    "OUTPUT_TOO_LARGE", f"The program wrote more than {MAX_OUTPUT_BYTES} bytes, so it was stopped."
                ) from None
            finally:
                await self._record_stderr(claim, process.stderr_tail)
        if code != 0:
            raise AgentFailed(
                "COMMAND_FAILED",
                f"The program ended with exit code {code}. The activity of the task has its error output, if any.",
                cost=output.cost(),
            )
        return output.outcome()

    async def _record_stderr(self, claim: TaskClaim, stderr: str) -> None:
        """Record the end of standard error in the run log."""
        if lines := self._redact(stderr).replace("\0", "\N{REPLACEMENT CHARACTER}").splitlines():
            meta = {"epoch": claim.epoch, "stderr": lines}
            draft = EventDraft(
                "agent_logged", "execution", f"The agent wrote {len(lines)} lines.", meta, claim.agent_id
            )

            def work(tx: Tx) -> None:
                self._runlog.append(tx, claim.tenant, [draft], task_id=claim.task_id, parent=claim.head_id)

            try:
                await self._db.write(work)
            except StentorError as error:
                # Fails open: the outcome does not depend on the log lines.
                log.warning("command: stderr not recorded task_id=%s reason=%s", claim.task_id, error.message)


class DisabledDriver:
    """Stands in for `CommandDriver` if command agents are disabled: their tasks fail with a provider failure."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        raise ProviderFailed(SandboxUnavailable.code, self._reason)


class OutputParser:
    """Parses standard output: lines `{"token": "..."}` are output tokens, all other lines together are the result."""

    def __init__(self, emit: EmitToken) -> None:
        self._emit = emit
        self._line = bytearray()
        self._result = bytearray()
        self._tokens: list[str] = []

    def feed(self, chunk: bytes) -> None:
        ended, newline, last = chunk.rpartition(b"\n")
        if newline:
            self._parse_lines(bytes(self._line) + ended + newline)
            self._line.clear()
        self._line += last
        self._emit_tokens()

    def _parse_lines(self, lines: bytes) -> None:
        """Parse complete lines: one by one only those with the marker, because there may be millions."""
        parsed = 0
        while (found := lines.find(runtimes.TOKEN_MARKER, parsed)) >= 0:
            start = lines.rfind(b"\n", parsed, found) + 1 or parsed
            end = lines.find(b"\n", found) + 1
            self._result += lines[parsed:start]
            self._parse_line(lines[start:end])
            parsed = end
        self._result += lines[parsed:]

    def _emit_tokens(self) -> None:
        """Emit the tokens parsed so far; joins neighbours if there are too many."""
        # Rounded up, and at least 1: `range` takes no step of 0.
        size = -(-len(self._tokens) // MAX_TOKENS_PER_CHUNK) or 1
        for start in range(0, len(self._tokens), size):
            self._emit("".join(self._tokens[start : start + size]))
        self._tokens.clear()

    def outcome(self) -> AttemptOutcome:
        """Return the outcome after the end of the output. Raises AgentFailed."""
        self._parse_line(bytes(self._line))
        self._emit_tokens()
        if not self._result.strip():
            raise AgentFailed(
                "ANSWER_INVALID",
                "The program wrote no result to standard output: it must write a JSON object with 'result'.",
            )
        try:
            reply = jsontext.decode(bytes(self._result))
        except InvalidRequest as error:
            raise AgentFailed(
                "ANSWER_INVALID", f"The output of the program is not a valid result. {error.message}"
            ) from None
        return runtimes.parse_outcome(reply)

    def cost(self) -> float | None:
        """Return the `cost` in the output of a program that failed; None if it has no valid one."""
        try:
            return self.outcome().cost
        except AgentFailed as failure:
            return failure.outcome.cost

    def _parse_line(self, line: bytes) -> None:
        token = runtimes.parse_token_line(line)
        if token is None:
            self._result += line
        else:
            self._tokens.append(token)


async def _read(process: SandboxedProcess, output: OutputParser) -> int:
    async for chunk in process.read_stdout():
        output.feed(chunk)
        await asyncio.sleep(0)  # reading buffered output does not yield to other coroutines
    return await process.wait_exit_code()


async def _unless_revoked(run: SandboxRun, reading: Coroutine[Any, Any, int]) -> int:
    """Return the exit code. Raises AgentFailed as soon as one of its calls gets the agent quarantined or suspended."""
    work, revoked = asyncio.create_task(reading), asyncio.create_task(run.revoked.wait())
    try:
        await asyncio.wait({work, revoked}, return_when=asyncio.FIRST_COMPLETED)
        if revoked.done():
            raise AgentFailed("AGENT_QUARANTINED", "The agent was quarantined or suspended while it ran.")
        return await work
    finally:
        for task in (work, revoked):
            task.cancel()
        await asyncio.gather(work, revoked, return_exceptions=True)
