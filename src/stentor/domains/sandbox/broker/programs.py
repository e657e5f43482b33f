"""Commands of the operator as tools: a template of arguments, filled in without a shell, run in a cage of their own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stentor.core.errors import InvalidRequest, StartRefused
from stentor.domains.sandbox.broker.model import Call, Run, Tool, ToolFailed
from stentor.domains.sandbox.cage.cage import Cage
from stentor.domains.sandbox.cage.plan import Options, Plan
from stentor.domains.sandbox.cage.process import OutputTooLarge
from stentor.domains.sandbox.model import Access

MOST = 1 << 20
"""Bytes of output."""
MAX_VALUE = 4096
RUN = "run"
_HOLE = re.compile(r"\{([a-z][a-z0-9_]{0,62})\}")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: `{argument}` in `command` is a hole. `capability` is one that the agent must have."""

    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)]
    description: str = ""
    capability: str | None = None
    timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] = 30
    stdin: bool = False
    options: Options = Options()

    @property
    def holes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.command for name in _HOLE.findall(part)))

    def filled(self, values: dict[str, str]) -> tuple[str, ...]:
        """A value stays within its argument, whatever it holds."""
        return tuple(_HOLE.sub(lambda hole: values[hole[1]], part) for part in self.command)


class ProgramTool(Tool):
    """Runs in the agent's work folder, without a broker."""

    operations = (RUN,)

    def __init__(self, name: str, program: Program, cage: Cage) -> None:
        self.name = name
        self.description = program.description or f"The operator's command {name}."
        self.seconds = float(program.timeout_seconds)
        self._program = program
        self._cage = cage

    @property
    def parameters(self) -> dict[str, Any]:
        names = [*self._program.holes, *(["stdin"] if self._program.stdin else [])]
        fields = {name: {"type": "string"} for name in names}
        return {"type": "object", "properties": fields, "required": list(self._program.holes)}

    def access(self, call: Call) -> Access:
        """Raises InvalidRequest."""
        if call.operation not in (None, RUN):
            raise InvalidRequest(f"The tool {self.name!r} has the operation {RUN!r} alone.")
        self._values(call)
        return self.completed(Access(self.name, RUN))

    def completed(self, access: Access) -> Access:
        return msgspec.structs.replace(access, capability=self._program.capability)

    async def act(self, run: Run, call: Call) -> dict[str, Any]:
        program, values = self._program, self._values(call)
        plan = Plan(program.filled(values), run.work, program.options, program.timeout_seconds)
        output = bytearray()
        try:
            async with self._cage.running(plan, MOST) as caged:
                caged.feed(values.get("stdin", "").encode())
                async for chunk in caged.chunks():
                    output += chunk
                code = await caged.code()
        except OutputTooLarge:
            raise ToolFailed(f"The command wrote more than {MOST} bytes.") from None
        return {"exit_code": code, "stdout": output.decode("utf-8", "replace"), "stderr": caged.errors}

    def _values(self, call: Call) -> dict[str, str]:
        """Raises InvalidRequest for a value that could be read as an option."""
        holes = set(self._program.holes)
        most = dict.fromkeys(holes, MAX_VALUE) | ({"stdin": MOST} if self._program.stdin else {})
        for name, value in call.arguments.items():
            if name not in most or not isinstance(value, str) or len(value) > most[name] or "\0" in value:
                raise InvalidRequest(f"The tool {self.name!r} cannot take the argument {name!r} so.")
            if name in holes and value.startswith("-"):
                raise InvalidRequest(f"The argument {name!r} begins with a dash, so it could be read as an option.")
        if missing := holes - call.arguments.keys():
            raise InvalidRequest(f"The tool {self.name!r} needs the arguments {', '.join(sorted(missing))}.")
        return dict(call.arguments)


def load(path: Path | None, cage: Cage) -> dict[str, ProgramTool]:
    """The tools of a file, by name. Raises StartRefused."""
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text())
        found = {name: msgspec.convert(table, Program) for name, table in tables.items()}
    except OSError as error:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {path} cannot be read: {error.strerror}.") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {path} is wrong: {error}.") from None
    if wrong := [name for name in found if not _NAME.match(name)]:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {wrong[0]!r} is no name for a tool (a to z, 0 to 9, _ and -).")
    return {name: ProgramTool(name, program, cage) for name, program in found.items()}
