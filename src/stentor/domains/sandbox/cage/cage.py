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
from stentor.domains.sandbox.cage import plan, process, seccomp
from stentor.domains.sandbox.cage.plan import Host, Options, Plan
from stentor.domains.sandbox.cage.process import Caged

TOOL = Path(__file__).with_name("stentor_tool.py")
SOCKET = "tools.sock"
MAX_SOCKET_PATH = 100
PROBE_SECONDS = 10
log = logging.getLogger(__name__)


class Room:
    """The folders of one run: `work` for the agent, `socket` for its broker."""

    def __init__(self, top: Path, work: Path) -> None:
        self.work = work
        self.socket = top / SOCKET
        self.top = top


class Cage:
    """`on` False runs programs without a cage, which the operator chose. `problem` says why there is none, or is None.

    `folder` is for one service alone: what an earlier process left in `runs` is removed at its start.
    """

    def __init__(self, folder: Path, roots: Mapping[str, tuple[Path, bool]], *, on: bool = True) -> None:
        self.folder = folder.absolute()
        self.roots = dict(roots)
        self.on = on
        self.problem: str | None = "The cage was not opened yet."
        self._host: Host | None = None

    def open(self) -> None:
        """Make the folders and try the cage out; afterwards `problem` is known."""
        try:
            self._make_folders()
            self._host = _host(self.folder / "stentor-tool")
            self.problem = self._try() if self.on else None
        except SandboxUnavailable as error:
            self.problem = error.message
        except OSError as error:
            self.problem = f"The folder {self.folder} of the cages cannot be made ready: {error.strerror}."

    def require(self) -> Host:
        """Raises CageUnavailable, with the reason."""
        if self.problem is not None or self._host is None:
            raise SandboxUnavailable(self.problem or "There is no cage.")
        return self._host

    @asynccontextmanager
    async def room(self, keeper: str | None = None) -> AsyncIterator[Room]:
        """Folders for a run, removed at its end; with a `keeper`, the id of an agent, its kept work folder."""
        self.require()
        top = self.folder / "runs" / ids.new_id().replace("-", "")
        top.mkdir()
        top.chmod(_passable())  # the service's own: nobody may put another folder in the place of `work`
        work = self.folder / "kept" / keeper if keeper else top / "work"
        try:
            self._own(work)
            yield Room(top, work)
        finally:
            await asyncio.shield(asyncio.to_thread(remove, top))

    @asynccontextmanager
    async def running(self, run: Plan, most: int) -> AsyncIterator[Caged]:
        """The program of a plan; everything it started is gone at the end of the block. Raises CageUnavailable."""
        host = self.require()
        if not self.on:
            environ = plan.environment(str(run.socket or "")) | {"HOME": str(run.work), "TMPDIR": str(run.work)}
            environ["PATH"] = f"{self.folder}:{plan.PATH}"
            line = plan.limited(host.prlimit, run)
            async with process.started(line, most, environ=environ, folder=run.work, alone=True) as caged:
                yield caged
            return
        descriptor = seccomp.descriptor()
        try:
            line = plan.caged(host, run, descriptor)
            async with process.started(line, most, descriptors=(descriptor,)) as caged:
                yield caged
        finally:
            os.close(descriptor)

    def own(self, path: Path, mode: int) -> None:
        """Let the caged user have a file or folder that the service made."""
        if plan.is_root() and self.on:
            os.chown(path, plan.NOBODY, plan.NOBODY, follow_symlinks=False)
        path.chmod(mode)

    def _own(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(mode=0o700)
            self.own(folder, 0o700)

    def _make_folders(self) -> None:
        for folder in (self.folder, self.folder / "runs", self.folder / "kept"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_passable())
        for left in (self.folder / "runs").iterdir():
            remove(left)
        tool = self.folder / "stentor-tool"
        shutil.copyfile(TOOL, tool)
        tool.chmod(0o755)
        check_folder(self.folder, caged=self.on)

    def _try(self) -> str | None:
        """Run a program in a cage as a task would be."""
        host, descriptor = self._host, seccomp.descriptor()
        assert host is not None
        work = self.folder / "runs" / "probe"
        try:
            self._own(work)
            line = plan.caged(host, Plan(("/bin/sh", "-c", "exit 7"), work, Options(), 10), descriptor)
            done = subprocess.run(  # noqa: S603
                line, pass_fds=(descriptor,), capture_output=True, timeout=PROBE_SECONDS, env={}, check=False
            )
        except subprocess.TimeoutExpired:
            return f"A cage did not end within {PROBE_SECONDS} s."
        finally:
            os.close(descriptor)
            remove(work)
        if done.returncode == 7:
            return None
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        return f"A cage cannot be made here; are user namespaces permitted? bubblewrap said: {said or done.returncode}"


def _passable() -> int:
    """The mode of folders that the caged user passes and neither lists nor changes."""
    return 0o711 if plan.is_root() else 0o700


def _host(tool: Path) -> Host:
    """Raises CageUnavailable."""
    if sys.platform != "linux" or not seccomp.supported():
        raise SandboxUnavailable("A cage needs Linux on x86-64 or arm64.")
    wanted = {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}
    paths = {name: shutil.which(name) for name in wanted}
    for name, found in paths.items():
        if found is None:
            raise SandboxUnavailable(f"The program {name} is missing: install the package {wanted[name]}.")
    links, folders = plan.look()
    return Host(
        paths["bwrap"] or "",
        paths["prlimit"] or "",
        paths["setpriv"] or "",
        tool,
        plan.is_root(),
        links,
        folders,
    )


def check_folder(folder: Path, *, caged: bool = True) -> None:
    """Raises CageUnavailable for a folder that cannot hold cages; it need not exist yet."""
    longest = folder / "runs" / ("0" * 32) / SOCKET
    if len(os.fsencode(longest)) > MAX_SOCKET_PATH:
        raise SandboxUnavailable(
            f"The path {folder} is too long for a socket beneath it: set SERVICE_CAGE_DIR to a shorter one."
        )
    if not (caged and plan.is_root()):
        return
    for above in (one for one in (folder, *folder.parents) if one.exists()):
        if not above.stat().st_mode & stat.S_IXOTH:
            raise SandboxUnavailable(
                f"Cages are started as user {plan.NOBODY}, who cannot pass {above}: set SERVICE_CAGE_DIR to a folder "
                "such as /var/lib/stentor-cage, or run the service as a user of its own."
            )


def remove(folder: Path) -> None:
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
