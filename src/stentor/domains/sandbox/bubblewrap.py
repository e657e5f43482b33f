"""Build the command line of a sandbox: bubblewrap namespaces, mounts and resource limits.

`process_sandbox` starts it, `seccomp` is its system call filter. Nothing here runs a program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject

NOBODY_UID = 65534
WORK_PATH, STENTOR_PATH, AGENT_PATH, SOCKET_PATH = "/work", "/stentor", "/agent", "/stentor/tools.sock"
PATH_VARIABLE = "/stentor:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TMP_BYTES, SHM_BYTES = 64 << 20, 16 << 20
MAX_ARGUMENTS, MAX_ARGUMENT_LENGTH = 256, 65_536
_ROOT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class SandboxOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`options` of a command agent. Memory, CPU time, file size and open files are limits of each single process.

    `cpu_seconds` 0 is the timeout of the task. `folder` is the work folder: `fresh` for each run, or `kept` for the
    agent. `program` is a folder that is mounted read-only as /agent: a root of the operator, or a folder inside it.
    """

    memory_mb: Annotated[int, Meta(ge=16, le=1_048_576)] = 1024
    processes: Annotated[int, Meta(ge=1, le=4096)] = 64
    open_files: Annotated[int, Meta(ge=16, le=65_536)] = 256
    file_mb: Annotated[int, Meta(ge=1, le=1_048_576)] = 256
    cpu_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 0
    folder: Literal["fresh", "kept"] = "fresh"
    program: str | None = None


class RunPlan(msgspec.Struct, frozen=True):
    """One run. The work folder is the only writable one; without a `socket_path` the program has no tool broker."""

    command: tuple[str, ...]
    work_folder: Path
    options: SandboxOptions
    timeout_seconds: int
    socket_path: Path | None = None
    program_folder: Path | None = None


class SandboxHost(msgspec.Struct, frozen=True):
    """What a sandbox needs of the host: paths of programs, and the links and folders of `find_usr_links`."""

    bwrap: str
    prlimit: str
    setpriv: str
    tool: Path
    is_root: bool
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]


def parse_options(options: JsonObject) -> SandboxOptions:
    """Parse the options of a runtime. Raises InvalidRequest."""
    try:
        return msgspec.convert(options, SandboxOptions)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The runtime's options are invalid: {error}.") from None


def check_command(command: Sequence[str]) -> None:
    """Check the command of a runtime. Raises InvalidRequest."""
    if not command or not command[0] or len(command) > MAX_ARGUMENTS:
        raise InvalidRequest(f"A command runtime needs a command: a list of 1 to {MAX_ARGUMENTS} strings.")
    if any("\0" in part or len(part) > MAX_ARGUMENT_LENGTH for part in command):
        raise InvalidRequest(f"A part of the command has a NUL or is longer than {MAX_ARGUMENT_LENGTH} characters.")


def parse_root_folders(settings: Sequence[str]) -> dict[str, tuple[Path, bool]]:
    """Parse `name=/folder` or `name=/folder:rw` to the folder and whether it is writable. Raises ValueError."""
    roots: dict[str, tuple[Path, bool]] = {}
    for entry in settings:
        name, equals, folder = entry.partition("=")
        writable = folder.endswith(":rw")
        path = Path(folder.removesuffix(":rw"))
        if not equals or not _ROOT_NAME.match(name) or not path.is_absolute():
            raise ValueError(f"has the entry {entry!r}, which is not name=/folder or name=/folder:rw")
        roots[name] = (path, writable)
    return roots


def find_usr_links() -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the links (target, path) and folders of the host's root folder that programs in /usr need."""
    paths = [Path("/") / name for name in _USR_LINKS]
    links = tuple((str(path.readlink()), str(path)) for path in paths if path.is_symlink())
    return links, tuple(str(path) for path in paths if path.is_dir() and not path.is_symlink())


def build_environment(tools: str) -> dict[str, str]:
    """Return the environment variables of a program; `tools` is the path of the broker's socket."""
    return {"PATH": PATH_VARIABLE, "HOME": WORK_PATH, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "STENTOR_TOOLS": tools}  # noqa: S108


def build_sandbox_command(host: SandboxHost, plan: RunPlan, seccomp: int) -> list[str]:
    """Return the whole command line; `seccomp` is the descriptor of the filter, which bubblewrap inherits."""
    drop = ["--reuid", str(NOBODY_UID), "--regid", str(NOBODY_UID), "--clear-groups", "--"]
    # If the service runs as root, the sandbox user would be root on the host too, to whom neither file modes nor the
    # limit of processes apply.
    line = [host.setpriv, *drop] if host.is_root else []
    line += [host.bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    line += ["--uid", str(NOBODY_UID), "--gid", str(NOBODY_UID), "--hostname", "cage", "--seccomp", str(seccomp)]
    line += ["--ro-bind", "/usr", "/usr"]
    for target, name in host.links:
        line += ["--symlink", target, name]
    for name in (*host.folders, "/etc/ld.so.cache", "/etc/alternatives"):
        line += ["--ro-bind-try", name, name]
    # `--size` applies to the tmpfs that follows it.
    line += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    line += ["--remount-ro", "/dev", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]  # noqa: S108
    line += ["--bind", str(plan.work_folder), WORK_PATH, "--ro-bind", str(host.tool), f"{STENTOR_PATH}/stentor-tool"]
    if plan.socket_path is not None:
        line += ["--ro-bind", str(plan.socket_path), SOCKET_PATH]
    if plan.program_folder is not None:
        line += ["--ro-bind", str(plan.program_folder), AGENT_PATH]
    # Last: the mounts above need a root in which their folders can be created.
    line += ["--remount-ro", "/", "--chdir", WORK_PATH]
    for name, value in build_environment(SOCKET_PATH).items():
        line += ["--setenv", name, value]
    return [*line, "--", *build_limited_command(host.prlimit, plan)]


def build_limited_command(prlimit: str, plan: RunPlan) -> list[str]:
    """Prefix the command with its resource limits.

    They are set inside the sandbox, where its own user namespace counts the processes.
    """
    options = plan.options
    cpu = options.cpu_seconds or plan.timeout_seconds
    limits = {
        "as": options.memory_mb << 20,
        "nproc": options.processes,
        "nofile": options.open_files,
        "fsize": options.file_mb << 20,
        "cpu": f"{cpu}:{cpu + 1}",  # SIGXCPU at the soft limit, SIGKILL a second later
        # A core dump would fill the work folder, and could hold the inputs of the run.
        "core": 0,
    }
    return [prlimit, *(f"--{name}={value}" for name, value in limits.items()), "--", *plan.command]


def is_root() -> bool:
    """Return whether the service runs as root, so that sandboxes must switch to another user."""
    return os.geteuid() == 0


def find_program_folder(roots: Mapping[str, tuple[Path, bool]], program: str | None) -> Path | None:
    """Return the folder of `ROOT` or `ROOT/sub/folder`. Raises InvalidRequest for a path that leads out of the root."""
    if program is None:
        return None
    name, *parts = program.split("/")
    if name not in roots:
        raise InvalidRequest(
            f"There is no root {name!r} for 'program'; the operator maps roots with SERVICE_CAGE_ROOTS."
        )
    root = roots[name][0]
    folder = root.joinpath(*parts)
    # resolve() follows links: one in the root may point anywhere.
    if any(part in ("", ".", "..") for part in parts) or not folder.resolve().is_relative_to(root.resolve()):
        raise InvalidRequest(f"The program {program!r} is not inside its root.")
    if not folder.is_dir():
        raise InvalidRequest(f"The program {program!r} is not a folder.")
    return folder.resolve()
