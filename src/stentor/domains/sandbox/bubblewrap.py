"""What a caged program gets, and the command line that gives it exactly that. Pure but for one look at the host.

The folders that the operator maps, and where a program beneath one lies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stentor.core.errors import InvalidRequest

NOBODY_UID = 65534
WORK_PATH, STENTOR_PATH, AGENT_PATH, SOCKET_PATH = "/work", "/stentor", "/agent", "/stentor/tools.sock"
PATH_VARIABLE = "/stentor:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TMP_BYTES, SHM_BYTES = 64 << 20, 16 << 20
MAX_ARGUMENTS, MAX_ARGUMENT_LENGTH = 256, 65_536
_ROOT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class SandboxOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class RunPlan(msgspec.Struct, frozen=True):
    """One run. `work` is the only folder that can be written; `socket` is the broker's, None for no broker."""

    command: tuple[str, ...]
    work_folder: Path
    options: SandboxOptions
    timeout_seconds: int
    socket_path: Path | None = None
    program_folder: Path | None = None


class SandboxHost(msgspec.Struct, frozen=True):
    """The programs that a cage is made of, and what of the root folder points into /usr."""

    bwrap: str
    prlimit: str
    setpriv: str
    tool: Path
    is_root: bool
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]


def parse_options(given: dict[str, Any]) -> SandboxOptions:
    """Raises InvalidRequest."""
    try:
        return msgspec.convert(given, SandboxOptions)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The runtime's options are wrong: {error}.") from None


def check_command(command: Sequence[str]) -> None:
    """Raises InvalidRequest."""
    if not command or not command[0] or len(command) > MAX_ARGUMENTS:
        raise InvalidRequest(f"A command runtime needs a command: a list of 1 to {MAX_ARGUMENTS} texts.")
    if any("\0" in part or len(part) > MAX_ARGUMENT_LENGTH for part in command):
        raise InvalidRequest(f"A part of the command has a NUL or is longer than {MAX_ARGUMENT_LENGTH} characters.")


def parse_root_folders(settings: Sequence[str]) -> dict[str, tuple[Path, bool]]:
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


def find_usr_links() -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Links and folders of the host's root that programs in /usr need."""
    paths = [Path("/") / name for name in _USR_LINKS]
    links = tuple((str(path.readlink()), str(path)) for path in paths if path.is_symlink())
    return links, tuple(str(path) for path in paths if path.is_dir() and not path.is_symlink())


def build_environment(tools: str) -> dict[str, str]:
    return {"PATH": PATH_VARIABLE, "HOME": WORK_PATH, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "STENTOR_TOOLS": tools}  # noqa: S108


def build_sandbox_command(host: SandboxHost, plan: RunPlan, seccomp: int) -> list[str]:
    """The whole command line; `seccomp` is the filter's descriptor, which the program inherits."""
    drop = ["--reuid", str(NOBODY_UID), "--regid", str(NOBODY_UID), "--clear-groups", "--"]
    # As root, the outer user would be root as well, whom neither file modes nor the limit of processes bind.
    line = [host.setpriv, *drop] if host.is_root else []
    line += [host.bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    line += ["--uid", str(NOBODY_UID), "--gid", str(NOBODY_UID), "--hostname", "cage", "--seccomp", str(seccomp)]
    line += ["--ro-bind", "/usr", "/usr"]
    for target, name in host.links:
        line += ["--symlink", target, name]
    for name in (*host.folders, "/etc/ld.so.cache", "/etc/alternatives"):
        line += ["--ro-bind-try", name, name]
    line += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    line += ["--remount-ro", "/dev", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]  # noqa: S108
    line += ["--bind", str(plan.work_folder), WORK_PATH, "--ro-bind", str(host.tool), f"{STENTOR_PATH}/stentor-tool"]
    if plan.socket_path is not None:
        line += ["--ro-bind", str(plan.socket_path), SOCKET_PATH]
    if plan.program_folder is not None:
        line += ["--ro-bind", str(plan.program_folder), AGENT_PATH]
    line += ["--remount-ro", "/", "--chdir", WORK_PATH]
    for name, value in build_environment(SOCKET_PATH).items():
        line += ["--setenv", name, value]
    return [*line, "--", *build_limited_command(host.prlimit, plan)]


def build_limited_command(prlimit: str, plan: RunPlan) -> list[str]:
    """The command under its limits. They are set inside, where the count of processes is the cage's own."""
    options = plan.options
    cpu = options.cpu_seconds or plan.timeout_seconds
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


def find_program_folder(roots: Mapping[str, tuple[Path, bool]], program: str | None) -> Path | None:
    """The folder of `ROOT` or `ROOT/sub/folder`. Raises InvalidRequest for what leads elsewhere."""
    if program is None:
        return None
    name, *parts = program.split("/")
    if name not in roots:
        raise InvalidRequest(
            f"There is no root {name!r} for 'program'; the operator maps them with SERVICE_CAGE_ROOTS."
        )
    root = roots[name][0]
    found = root.joinpath(*parts)
    if any(part in ("", ".", "..") for part in parts) or not found.resolve().is_relative_to(root.resolve()):
        raise InvalidRequest(f"The program {program!r} does not lie beneath its root.")
    if not found.is_dir():
        raise InvalidRequest(f"The program {program!r} is no folder.")
    return found.resolve()
