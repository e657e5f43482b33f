"""Commands of the operator as tools: argument templates, filled in without a shell and run in their own sandbox."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from stentor.core.errors import InvalidRequest, StartRefused
from stentor.core.jsontext import JsonObject
from stentor.domains.sandbox.broker.model import SandboxRun, Tool, ToolFailed, ToolRequest
from stentor.domains.sandbox.bubblewrap import RunPlan, SandboxOptions
from stentor.domains.sandbox.model import Access
from stentor.domains.sandbox.process import OutputTooLarge
from stentor.domains.sandbox.process_sandbox import ProcessSandbox

MAX_OUTPUT_BYTES = 1 << 20
"""Limit of the output of a command, and of its standard input in characters."""
MAX_VALUE_LENGTH = 4096
RUN_OPERATION = "run"
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,62})\}")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")


class CommandTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file. `{argument}` in `command` is a placeholder; the agent needs the `capability`."""

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
        """Return the command with the values inserted. A value stays inside its argument, whatever it contains."""
        # A function, because a replacement text would have its backslashes interpreted.
        return tuple(_PLACEHOLDER.sub(lambda match: values[match[1]], part) for part in self.command)


class CommandTool(Tool):
    """Runs a command of the operator in the agent's work folder, without a tool broker."""

    operations = (RUN_OPERATION,)
    needs_work_folder = True

    def __init__(self, name: str, template: CommandTemplate, sandbox: ProcessSandbox) -> None:
        self.name = name
        self.description = template.description or f"The operator's command {name}."
        self.timeout_seconds = float(template.timeout_seconds)
        self._template = template
        self._sandbox = sandbox

    @property
    def parameters(self) -> JsonObject:
        names = [*self._template.placeholders, *(["stdin"] if self._template.stdin else [])]
        fields = {name: {"type": "string"} for name in names}
        return {"type": "object", "properties": fields, "required": list(self._template.placeholders)}

    def to_access(self, call: ToolRequest) -> Access:
        if call.operation not in (None, RUN_OPERATION):
            raise InvalidRequest(f"The tool {self.name!r} has only the operation {RUN_OPERATION!r}.")
        self._parse_values(call)
        return self.complete_access(Access(self.name, RUN_OPERATION))

    def complete_access(self, access: Access) -> Access:
        return msgspec.structs.replace(access, capability=self._template.capability)

    def is_repeatable(self, call: ToolRequest) -> bool:
        return False

    async def execute(self, run: SandboxRun, call: ToolRequest) -> JsonObject:
        template, values = self._template, self._parse_values(call)
        if run.work_folder is None:
            raise InvalidRequest(f"The tool {self.name!r} runs in a work folder, which only programs have.")
        plan = RunPlan(template.fill(values), run.work_folder, template.options, template.timeout_seconds)
        output = bytearray()
        try:
            async with self._sandbox.start(plan, MAX_OUTPUT_BYTES) as program:
                program.write_stdin(values.get("stdin", "").encode())
                async for chunk in program.read_stdout():
                    output += chunk
                code = await program.wait_exit_code()
        except OutputTooLarge:
            raise ToolFailed(f"The command wrote more than {MAX_OUTPUT_BYTES} bytes.") from None
        return {"exit_code": code, "stdout": output.decode("utf-8", "replace"), "stderr": program.stderr_tail}

    def _parse_values(self, call: ToolRequest) -> dict[str, str]:
        """Return the values of the placeholders and of stdin.

        Raises InvalidRequest, also for a value that the command could read as an option.
        """
        placeholders = set(self._template.placeholders)
        limits = dict.fromkeys(placeholders, MAX_VALUE_LENGTH)
        if self._template.stdin:
            limits["stdin"] = MAX_OUTPUT_BYTES
        for name, value in call.arguments.items():
            if name not in limits or not isinstance(value, str) or len(value) > limits[name] or "\0" in value:
                raise InvalidRequest(f"The argument {name!r} of the tool {self.name!r} is unknown or invalid.")
            if name in placeholders and value.startswith("-"):
                raise InvalidRequest(f"The argument {name!r} begins with a dash, so it could be read as an option.")
        if missing := placeholders - call.arguments.keys():
            raise InvalidRequest(f"The tool {self.name!r} needs the arguments {', '.join(sorted(missing))}.")
        return dict(call.arguments)


def load_command_tools(path: Path | None, sandbox: ProcessSandbox) -> dict[str, CommandTool]:
    """Load the tools of a TOML file, by name. Raises StartRefused."""
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text())
        templates = {name: msgspec.convert(table, CommandTemplate) for name, table in tables.items()}
    except OSError as error:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {path} cannot be read: {error.strerror}.") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {path} is invalid: {error}.") from None
    for name in templates:
        if not _NAME.match(name):
            raise StartRefused(f"SERVICE_CAGE_TOOLS: {name!r} is not a valid tool name (a to z, 0 to 9, _ and -).")
    return {name: CommandTool(name, template, sandbox) for name, template in templates.items()}
