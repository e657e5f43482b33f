"""Commands of the operator as tools: a template of arguments, filled in without a shell, run in a cage of their own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stentor.core.errors import InvalidRequest, StartRefused
from stentor.domains.sandbox.broker.model import SandboxRun, Tool, ToolFailed, ToolRequest
from stentor.domains.sandbox.bubblewrap import RunPlan, SandboxOptions
from stentor.domains.sandbox.model import Access
from stentor.domains.sandbox.process import OutputTooLarge
from stentor.domains.sandbox.process_sandbox import ProcessSandbox

MAX_OUTPUT_BYTES = 1 << 20
"""Bytes of output."""
MAX_VALUE_LENGTH = 4096
RUN_OPERATION = "run"
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,62})\}")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")


class CommandTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: `{argument}` in `command` is a hole. `capability` is one that the agent must have."""

    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)]
    description: str = ""
    capability: str | None = None
    timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] = 30
    stdin: bool = False
    options: SandboxOptions = SandboxOptions()

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.command for name in _PLACEHOLDER.findall(part)))

    def fill(self, values: dict[str, str]) -> tuple[str, ...]:
        """A value stays within its argument, whatever it holds."""
        return tuple(_PLACEHOLDER.sub(lambda hole: values[hole[1]], part) for part in self.command)


class CommandTool(Tool):
    """Runs in the agent's work folder, without a broker."""

    operations = (RUN_OPERATION,)

    def __init__(self, name: str, program: CommandTemplate, cage: ProcessSandbox) -> None:
        self.name = name
        self.description = program.description or f"The operator's command {name}."
        self.timeout_seconds = float(program.timeout_seconds)
        self._program = program
        self._cage = cage

    @property
    def parameters(self) -> dict[str, Any]:
        names = [*self._program.placeholders, *(["stdin"] if self._program.stdin else [])]
        fields = {name: {"type": "string"} for name in names}
        return {"type": "object", "properties": fields, "required": list(self._program.placeholders)}

    def to_access(self, call: ToolRequest) -> Access:
        """Raises InvalidRequest."""
        if call.operation not in (None, RUN_OPERATION):
            raise InvalidRequest(f"The tool {self.name!r} has the operation {RUN_OPERATION!r} alone.")
        self._values(call)
        return self.complete_access(Access(self.name, RUN_OPERATION))

    def complete_access(self, access: Access) -> Access:
        return msgspec.structs.replace(access, capability=self._program.capability)

    async def execute(self, run: SandboxRun, call: ToolRequest) -> dict[str, Any]:
        program, values = self._program, self._values(call)
        plan = RunPlan(program.fill(values), run.work_folder, program.options, program.timeout_seconds)
        output = bytearray()
        try:
            async with self._cage.start(plan, MAX_OUTPUT_BYTES) as caged:
                caged.write_stdin(values.get("stdin", "").encode())
                async for chunk in caged.read_stdout():
                    output += chunk
                code = await caged.wait_exit_code()
        except OutputTooLarge:
            raise ToolFailed(f"The command wrote more than {MAX_OUTPUT_BYTES} bytes.") from None
        return {"exit_code": code, "stdout": output.decode("utf-8", "replace"), "stderr": caged.stderr_tail}

    def _values(self, call: ToolRequest) -> dict[str, str]:
        """Raises InvalidRequest for a value that could be read as an option."""
        holes = set(self._program.placeholders)
        most = dict.fromkeys(holes, MAX_VALUE_LENGTH) | ({"stdin": MAX_OUTPUT_BYTES} if self._program.stdin else {})
        for name, value in call.arguments.items():
            if name not in most or not isinstance(value, str) or len(value) > most[name] or "\0" in value:
                raise InvalidRequest(f"The tool {self.name!r} cannot take the argument {name!r} so.")
            if name in holes and value.startswith("-"):
                raise InvalidRequest(f"The argument {name!r} begins with a dash, so it could be read as an option.")
        if missing := holes - call.arguments.keys():
            raise InvalidRequest(f"The tool {self.name!r} needs the arguments {', '.join(sorted(missing))}.")
        return dict(call.arguments)


def load_command_tools(path: Path | None, cage: ProcessSandbox) -> dict[str, CommandTool]:
    """The tools of a file, by name. Raises StartRefused."""
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text())
        found = {name: msgspec.convert(table, CommandTemplate) for name, table in tables.items()}
    except OSError as error:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {path} cannot be read: {error.strerror}.") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {path} is wrong: {error}.") from None
    if wrong := [name for name in found if not _NAME.match(name)]:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {wrong[0]!r} is no name for a tool (a to z, 0 to 9, _ and -).")
    return {name: CommandTool(name, program, cage) for name, program in found.items()}
