"""What a caged program gets, and the command line that gives it exactly that. Pure but for one look at the host."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stentor.core.errors import InvalidRequest

NOBODY = 65534
WORK, HOME, AGENT, TOOLS = "/work", "/stentor", "/agent", "/stentor/tools.sock"
PATH = "/stentor:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TMP_BYTES, SHM_BYTES = 64 << 20, 16 << 20
MAX_ARGUMENTS, MAX_ARGUMENT = 256, 65_536
_ROOT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
_LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`options` of a command agent. Memory, CPU time, files and open files count for each process by itself.

    `cpu_seconds` 0 is as long as the task may take. `folder` is the work folder: `fresh` for each run, or `kept`
    for the agent. `program` is a folder that is shown read-only as /agent: a root of the operator, or beneath one.
    """

    memory_mb: Annotated[int, Meta(ge=16, le=1_048_576)] = 1024
    processes: Annotated[int, Meta(ge=1, le=4096)] = 64
    open_files: Annotated[int, Meta(ge=16, le=65_536)] = 256
    file_mb: Annotated[int, Meta(ge=1, le=1_048_576)] = 256
    cpu_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 0
    folder: Literal["fresh", "kept"] = "fresh"
    program: str | None = None


class Plan(msgspec.Struct, frozen=True):
    """One run. `work` is the only folder that can be written; `socket` is the broker's, None for no broker."""

    command: tuple[str, ...]
    work: Path
    options: Options
    seconds: int
    socket: Path | None = None
    program: Path | None = None


class Host(msgspec.Struct, frozen=True):
    """The programs that a cage is made of, and what of the root folder points into /usr."""

    bwrap: str
    prlimit: str
    setpriv: str
    tool: Path
    root: bool
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]


def options_of(given: dict[str, Any]) -> Options:
    """Raises InvalidRequest."""
    try:
        return msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The runtime's options are wrong: {error}.") from None


def check_command(command: Sequence[str]) -> None:
    """Raises InvalidRequest."""
    if not command or not command[0] or len(command) > MAX_ARGUMENTS:
        raise InvalidRequest(f"A command runtime needs a command: a list of 1 to {MAX_ARGUMENTS} texts.")
    if any("\0" in part or len(part) > MAX_ARGUMENT for part in command):
        raise InvalidRequest(f"A part of the command has a NUL or is longer than {MAX_ARGUMENT} characters.")


def root_folders(settings: Sequence[str]) -> dict[str, tuple[Path, bool]]:
    """`name=/folder` or `name=/folder:rw` to the folder and whether it may be written. Raises ValueError."""
    found: dict[str, tuple[Path, bool]] = {}
    for entry in settings:
        name, equals, folder = entry.partition("=")
        writable = folder.endswith(":rw")
        path = Path(folder.removesuffix(":rw"))
        if not equals or not _ROOT_NAME.match(name) or not path.is_absolute():
            raise ValueError(f"has the entry {entry!r}, which is not name=/folder or name=/folder:rw")
        found[name] = (path, writable)
    return found


def look() -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Links and folders of the host's root that programs in /usr need."""
    paths = [Path("/") / name for name in _LINKED]
    links = tuple((str(path.readlink()), str(path)) for path in paths if path.is_symlink())
    return links, tuple(str(path) for path in paths if path.is_dir() and not path.is_symlink())


def environment(tools: str) -> dict[str, str]:
    return {"PATH": PATH, "HOME": WORK, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "STENTOR_TOOLS": tools}  # noqa: S108


def caged(host: Host, plan: Plan, seccomp: int) -> list[str]:
    """The whole command line; `seccomp` is the filter's descriptor, which the program inherits."""
    drop = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--"]
    # As root, the outer user would be root as well, whom neither file modes nor the limit of processes bind.
    line = [host.setpriv, *drop] if host.root else []
    line += [host.bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    line += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "cage", "--seccomp", str(seccomp)]
    line += ["--ro-bind", "/usr", "/usr"]
    for target, name in host.links:
        line += ["--symlink", target, name]
    for name in (*host.folders, "/etc/ld.so.cache", "/etc/alternatives"):
        line += ["--ro-bind-try", name, name]
    line += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    line += ["--remount-ro", "/dev", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]  # noqa: S108
    line += ["--bind", str(plan.work), WORK, "--ro-bind", str(host.tool), f"{HOME}/stentor-tool"]
    if plan.socket is not None:
        line += ["--ro-bind", str(plan.socket), TOOLS]
    if plan.program is not None:
        line += ["--ro-bind", str(plan.program), AGENT]
    line += ["--remount-ro", "/", "--chdir", WORK]
    for name, value in environment(TOOLS).items():
        line += ["--setenv", name, value]
    return [*line, "--", *limited(host.prlimit, plan)]


def limited(prlimit: str, plan: Plan) -> list[str]:
    """The command under its limits. They are set inside, where the count of processes is the cage's own."""
    options = plan.options
    cpu = options.cpu_seconds or plan.seconds
    limits = {
        "as": options.memory_mb << 20,
        "nproc": options.processes,
        "nofile": options.open_files,
        "fsize": options.file_mb << 20,
        "cpu": f"{cpu}:{cpu + 1}",
        "core": 0,
    }
    return [prlimit, *(f"--{name}={value}" for name, value in limits.items()), "--", *plan.command]


def is_root() -> bool:
    return os.geteuid() == 0
