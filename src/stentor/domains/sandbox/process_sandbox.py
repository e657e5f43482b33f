"""The sandbox as a component of the service: its check at the start, the folders of runs, and starting programs.

`bubblewrap` builds the command lines, `process` handles a running program.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from stentor.core import ids
from stentor.core.errors import SandboxUnavailable
from stentor.domains.sandbox import bubblewrap, process, seccomp
from stentor.domains.sandbox.bubblewrap import RunPlan, SandboxHost, SandboxOptions
from stentor.domains.sandbox.process import SandboxedProcess

LEFTOVERS = "removed-"
"""Prefix of the folders of earlier runs that are being removed."""
TOOL_SCRIPT = Path(__file__).with_name("stentor_tool.py")
SOCKET_NAME = "tools.sock"
MAX_SOCKET_PATH = 100
"""Bytes of a socket's path; the kernel allows 107."""
PROBE_SECONDS = 10
_FOLDER_NAME = re.compile(r"[0-9A-Za-z_-]+")
log = logging.getLogger(__name__)


class RunFolders:
    """The folders of one run: the agent's work folder, and the path of the broker's socket."""

    def __init__(self, top: Path, work: Path) -> None:
        self.work_folder = work
        self.socket_path = top / SOCKET_NAME


class ProcessSandbox:
    """Starts programs in sandboxes, or without isolation if the operator chose so (`enabled` False).

    `problem` is the reason why programs cannot be started, or None. `folder` belongs to one service: what an earlier
    process left in `runs` is removed at the start.
    """

    def __init__(self, folder: Path, roots: Mapping[str, tuple[Path, bool]], *, enabled: bool = True) -> None:
        self.folder = folder.absolute()
        self.roots = dict(roots)
        self.is_enabled = enabled
        self.problem: str | None = "The sandbox was not opened yet."
        self._host: SandboxHost | None = None

    def open(self) -> None:
        """Create the folders, start a test program in a sandbox and set `problem`."""
        try:
            self._make_folders()
            self._host = _find_host(self.folder / "stentor-tool")
            self.problem = self._probe() if self.is_enabled else None
        except SandboxUnavailable as error:
            self.problem = error.message
        except OSError as error:
            self.problem = f"The folder {self.folder} for sandboxes cannot be prepared: {error.strerror}."

    def require_host(self) -> SandboxHost:
        """Return what sandboxes need of the host. Raises SandboxUnavailable with the reason."""
        if self.problem is not None or self._host is None:
            raise SandboxUnavailable(self.problem or "There is no sandbox.")
        return self._host

    @asynccontextmanager
    async def run_folders(self, kept_for_agent_id: str | None = None) -> AsyncIterator[RunFolders]:
        """Create the folders of a run and remove them at its end; the persistent work folder of an agent id stays.

        Raises SandboxUnavailable.
        """
        self.require_host()
        # The id is from the database: who can only write there must not choose the folder that a program may write to.
        if kept_for_agent_id is not None and not _FOLDER_NAME.fullmatch(kept_for_agent_id):
            raise SandboxUnavailable(f"The agent id {kept_for_agent_id!r} cannot be the name of a folder.")
        top = self.folder / "runs" / ids.new_id().replace("-", "")
        top.mkdir()
        top.chmod(_traversable_mode())  # owned by the service, so that the program cannot replace its work folder
        work = self.folder / "kept" / kept_for_agent_id if kept_for_agent_id else top / "work"
        try:
            self._make_work_folder(work)
            yield RunFolders(top, work)
        finally:
            # Also after a cancellation, which would otherwise leave the folder behind.
            await asyncio.shield(asyncio.to_thread(remove_folder, top))

    @asynccontextmanager
    async def start(self, run: RunPlan, max_output_bytes: int) -> AsyncIterator[SandboxedProcess]:
        """Start the program of a plan; at the end of the block it and everything it started has ended.

        Raises SandboxUnavailable, OSError.
        """
        host = self.require_host()
        if not self.is_enabled:
            environ = bubblewrap.build_environment(str(run.socket_path or "")) | {
                "HOME": str(run.work_folder),
                "TMPDIR": str(run.work_folder),
                "PATH": f"{self.folder}:{bubblewrap.PATH_VARIABLE}",
            }
            line = bubblewrap.build_limited_command(host.prlimit, run)
            async with process.start_process(
                line, max_output_bytes, environ=environ, folder=run.work_folder, unsandboxed=True
            ) as program:
                yield program
            return
        descriptor = seccomp.open_filter()
        try:
            line = bubblewrap.build_sandbox_command(host, run, descriptor)
            async with process.start_process(line, max_output_bytes, descriptors=(descriptor,)) as program:
                yield program
        finally:
            os.close(descriptor)

    def give_to_sandbox_user(self, path: Path, mode: int) -> None:
        """Change the mode of a file or folder and, if the service runs as root, its owner to the sandbox user."""
        if bubblewrap.is_root() and self.is_enabled:
            os.chown(path, bubblewrap.NOBODY_UID, bubblewrap.NOBODY_UID, follow_symlinks=False)
        path.chmod(mode)

    def _make_work_folder(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(mode=0o700)
            self.give_to_sandbox_user(folder, 0o700)

    def _make_folders(self) -> None:
        if (runs := self.folder / "runs").exists() and any(runs.iterdir()):
            runs.rename(self.folder / f"{LEFTOVERS}{ids.new_id()}")
        for folder in (self.folder, runs, self.folder / "kept"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_traversable_mode())
        # In the background, because millions of files that a hostile program left must not delay the start.
        threading.Thread(target=self._remove_leftovers, daemon=True).start()
        tool = self.folder / "stentor-tool"
        shutil.copyfile(TOOL_SCRIPT, tool)
        tool.chmod(0o755)
        check_folder(self.folder, sandboxed=self.is_enabled)

    def _remove_leftovers(self) -> None:
        for leftover in self.folder.glob(f"{LEFTOVERS}*"):
            remove_folder(leftover)

    def _probe(self) -> str | None:
        """Run a program in a sandbox as a task would and return the problem, if there is one."""
        host, descriptor = self._host, seccomp.open_filter()
        assert host is not None
        work = self.folder / "runs" / "probe"
        try:
            self._make_work_folder(work)
            line = bubblewrap.build_sandbox_command(
                host, RunPlan(("/bin/sh", "-c", "exit 7"), work, SandboxOptions(), 10), descriptor
            )
            result = subprocess.run(  # noqa: S603
                line, pass_fds=(descriptor,), capture_output=True, timeout=PROBE_SECONDS, env={}, check=False
            )
        except subprocess.TimeoutExpired:
            return f"A sandbox did not end within {PROBE_SECONDS} s."
        finally:
            os.close(descriptor)
            remove_folder(work)
        # A code with which neither bubblewrap nor the shell fails.
        if result.returncode == 7:
            return None
        error = " ".join(result.stderr.decode("utf-8", "replace").split())[:300] or result.returncode
        return f"A sandbox cannot be created here; are user namespaces permitted? bubblewrap reported: {error}"


def _traversable_mode() -> int:
    """Return the mode of folders that the sandbox user may pass through but not list or change."""
    return 0o711 if bubblewrap.is_root() else 0o700


def _find_host(tool: Path) -> SandboxHost:
    """Find the programs that sandboxes need. Raises SandboxUnavailable."""
    if sys.platform != "linux" or not seccomp.is_supported():
        raise SandboxUnavailable("A sandbox needs Linux on x86-64 or arm64.")
    packages = {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}
    paths: dict[str, str] = {}
    for name, package in packages.items():
        path = shutil.which(name)
        if path is None:
            raise SandboxUnavailable(f"The program {name} is missing: install the package {package}.")
        paths[name] = path
    links, folders = bubblewrap.find_usr_links()
    return SandboxHost(**paths, tool=tool, is_root=bubblewrap.is_root(), links=links, folders=folders)


def check_folder(folder: Path, *, sandboxed: bool = True) -> None:
    """Check that a folder, which need not exist yet, is usable for sandboxes. Raises SandboxUnavailable."""
    longest = folder / "runs" / ("0" * 32) / SOCKET_NAME
    if len(os.fsencode(longest)) > MAX_SOCKET_PATH:
        raise SandboxUnavailable(
            f"The path {folder} is too long for a socket inside it: set SERVICE_CAGE_DIR to a shorter path."
        )
    if not (sandboxed and bubblewrap.is_root()):
        return
    for parent in (path for path in (folder, *folder.parents) if path.exists()):
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise SandboxUnavailable(
                f"Sandboxes are started as user {bubblewrap.NOBODY_UID}, who cannot pass through {parent}: set "
                "SERVICE_CAGE_DIR to a folder such as /var/lib/stentor-cage, or run the service as its own user."
            )


def remove_folder(folder: Path) -> None:
    """Remove the folder of a run without following links. What cannot be removed is tried again at the next start."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # The agent may have removed permissions, or nested folders deeper than rmtree can follow.
        for line in (["chmod", "-R", "u+rwx", str(folder)], ["rm", "-rf", "--one-file-system", str(folder)]):
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(line, capture_output=True, check=False, timeout=60)  # noqa: S603
        if folder.exists():
            log.warning("sandbox: run folder not removed path=%s", folder)
