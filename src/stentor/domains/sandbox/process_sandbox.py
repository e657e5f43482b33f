"""The cage as a part of the service: is there one, where its work folders lie, and one run of it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from stentor.core import ids
from stentor.core.errors import SandboxUnavailable
from stentor.domains.sandbox import bubblewrap, process, seccomp
from stentor.domains.sandbox.bubblewrap import RunPlan, SandboxHost, SandboxOptions
from stentor.domains.sandbox.process import SandboxedProcess

TOOL_SCRIPT = Path(__file__).with_name("stentor_tool.py")
SOCKET_NAME = "tools.sock"
MAX_SOCKET_PATH = 100
PROBE_SECONDS = 10
log = logging.getLogger(__name__)


class RunFolders:
    """The folders of one run: `work` for the agent, `socket` for its broker."""

    def __init__(self, top: Path, work: Path) -> None:
        self.work_folder = work
        self.socket_path = top / SOCKET_NAME
        self.root_folder = top


class ProcessSandbox:
    """`on` False runs programs without a cage, which the operator chose. `problem` says why there is none, or is None.

    `folder` is for one service alone: what an earlier process left in `runs` is removed at its start.
    """

    def __init__(self, folder: Path, roots: Mapping[str, tuple[Path, bool]], *, enabled: bool = True) -> None:
        self.folder = folder.absolute()
        self.roots = dict(roots)
        self.is_enabled = enabled
        self.problem: str | None = "The cage was not opened yet."
        self._host: SandboxHost | None = None

    def open(self) -> None:
        """Make the folders and try the cage out; afterwards `problem` is known."""
        try:
            self._make_folders()
            self._host = _find_host(self.folder / "stentor-tool")
            self.problem = self._probe() if self.is_enabled else None
        except SandboxUnavailable as error:
            self.problem = error.message
        except OSError as error:
            self.problem = f"The folder {self.folder} of the cages cannot be made ready: {error.strerror}."

    def require_host(self) -> SandboxHost:
        """Raises CageUnavailable, with the reason."""
        if self.problem is not None or self._host is None:
            raise SandboxUnavailable(self.problem or "There is no cage.")
        return self._host

    @asynccontextmanager
    async def run_folders(self, kept_for_agent_id: str | None = None) -> AsyncIterator[RunFolders]:
        """Folders for a run, removed at its end; with a `keeper`, the id of an agent, its kept work folder."""
        self.require_host()
        top = self.folder / "runs" / ids.new_id().replace("-", "")
        top.mkdir()
        top.chmod(_traversable_mode())  # the service's own: nobody may put another folder in the place of `work`
        work = self.folder / "kept" / kept_for_agent_id if kept_for_agent_id else top / "work"
        try:
            self._make_work_folder(work)
            yield RunFolders(top, work)
        finally:
            await asyncio.shield(asyncio.to_thread(remove_folder, top))

    @asynccontextmanager
    async def start(self, run: RunPlan, max_output_bytes: int) -> AsyncIterator[SandboxedProcess]:
        """The program of a plan; everything it started is gone at the end of the block. Raises CageUnavailable."""
        host = self.require_host()
        if not self.is_enabled:
            environ = bubblewrap.build_environment(str(run.socket_path or "")) | {
                "HOME": str(run.work_folder),
                "TMPDIR": str(run.work_folder),
            }
            environ["PATH"] = f"{self.folder}:{bubblewrap.PATH_VARIABLE}"
            line = bubblewrap.build_limited_command(host.prlimit, run)
            async with process.start_process(
                line, max_output_bytes, environ=environ, folder=run.work_folder, unsandboxed=True
            ) as caged:
                yield caged
            return
        descriptor = seccomp.open_filter()
        try:
            line = bubblewrap.build_sandbox_command(host, run, descriptor)
            async with process.start_process(line, max_output_bytes, descriptors=(descriptor,)) as caged:
                yield caged
        finally:
            os.close(descriptor)

    def give_to_sandbox_user(self, path: Path, mode: int) -> None:
        """Let the caged user have a file or folder that the service made."""
        if bubblewrap.is_root() and self.is_enabled:
            os.chown(path, bubblewrap.NOBODY_UID, bubblewrap.NOBODY_UID, follow_symlinks=False)
        path.chmod(mode)

    def _make_work_folder(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(mode=0o700)
            self.give_to_sandbox_user(folder, 0o700)

    def _make_folders(self) -> None:
        for folder in (self.folder, self.folder / "runs", self.folder / "kept"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_traversable_mode())
        for left in (self.folder / "runs").iterdir():
            remove_folder(left)
        tool = self.folder / "stentor-tool"
        shutil.copyfile(TOOL_SCRIPT, tool)
        tool.chmod(0o755)
        check_folder(self.folder, sandboxed=self.is_enabled)

    def _probe(self) -> str | None:
        """Run a program in a cage as a task would be."""
        host, descriptor = self._host, seccomp.open_filter()
        assert host is not None
        work = self.folder / "runs" / "probe"
        try:
            self._make_work_folder(work)
            line = bubblewrap.build_sandbox_command(
                host, RunPlan(("/bin/sh", "-c", "exit 7"), work, SandboxOptions(), 10), descriptor
            )
            done = subprocess.run(  # noqa: S603
                line, pass_fds=(descriptor,), capture_output=True, timeout=PROBE_SECONDS, env={}, check=False
            )
        except subprocess.TimeoutExpired:
            return f"A cage did not end within {PROBE_SECONDS} s."
        finally:
            os.close(descriptor)
            remove_folder(work)
        if done.returncode == 7:
            return None
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        return f"A cage cannot be made here; are user namespaces permitted? bubblewrap said: {said or done.returncode}"


def _traversable_mode() -> int:
    """The mode of folders that the caged user passes and neither lists nor changes."""
    return 0o711 if bubblewrap.is_root() else 0o700


def _find_host(tool: Path) -> SandboxHost:
    """Raises CageUnavailable."""
    if sys.platform != "linux" or not seccomp.is_supported():
        raise SandboxUnavailable("A cage needs Linux on x86-64 or arm64.")
    wanted = {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}
    paths = {name: shutil.which(name) for name in wanted}
    for name, found in paths.items():
        if found is None:
            raise SandboxUnavailable(f"The program {name} is missing: install the package {wanted[name]}.")
    links, folders = bubblewrap.find_usr_links()
    return SandboxHost(
        paths["bwrap"] or "",
        paths["prlimit"] or "",
        paths["setpriv"] or "",
        tool,
        bubblewrap.is_root(),
        links,
        folders,
    )


def check_folder(folder: Path, *, sandboxed: bool = True) -> None:
    """Raises CageUnavailable for a folder that cannot hold cages; it need not exist yet."""
    longest = folder / "runs" / ("0" * 32) / SOCKET_NAME
    if len(os.fsencode(longest)) > MAX_SOCKET_PATH:
        raise SandboxUnavailable(
            f"The path {folder} is too long for a socket beneath it: set SERVICE_CAGE_DIR to a shorter one."
        )
    if not (sandboxed and bubblewrap.is_root()):
        return
    for above in (one for one in (folder, *folder.parents) if one.exists()):
        if not above.stat().st_mode & stat.S_IXOTH:
            raise SandboxUnavailable(
                f"Cages are started as user {bubblewrap.NOBODY_UID}, who cannot pass {above}: set SERVICE_CAGE_DIR to "
                "a folder such as /var/lib/stentor-cage, or run the service as a user of its own."
            )


def remove_folder(folder: Path) -> None:
    """A run's folder, whatever its agent made of it; links are not followed. What stays goes at the next start."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        for line in (["chmod", "-R", "u+rwx", str(folder)], ["rm", "-rf", "--one-file-system", str(folder)]):
            subprocess.run(line, capture_output=True, check=False, timeout=60)  # noqa: S603
        if folder.exists():
            log.warning("the folder %s of a run could not be removed", folder)
