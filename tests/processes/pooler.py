"""A PgBouncer in transaction mode, with fewer connections to the server than it has clients."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from tests.patience import until
from tests.ports import free_port
from tests.system import need

POOL_SIZE = 3
_SETTINGS = """
[databases]
{name} = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
logfile = {folder}/log
"""


@contextmanager
def pooling(url: str) -> Iterator[str]:
    """Yields the address of a pooler before the database. Skips where PgBouncer is missing."""
    program = need("pgbouncer")
    database = psycopg.conninfo.conninfo_to_dict(url)
    server = " ".join(f"{name}={database[name]}" for name in ("host", "port", "user", "password") if database.get(name))
    # Not in the folder of the test, which its user may not enter: PgBouncer does not run as root.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    port, name = free_port(), database["dbname"]
    settings = folder / "pgbouncer.ini"
    settings.write_text(_SETTINGS.format(name=name, server=server, port=port, size=POOL_SIZE, folder=folder))
    user: dict[str, str] = {}
    if os.geteuid() == 0:
        # The owner of the server's socket may open it.
        user = {"user": pwd.getpwuid(Path(str(database["host"])).stat().st_uid).pw_name}
        shutil.chown(folder, user["user"])
    process = subprocess.Popen([program, "-q", str(settings)], **user)  # type: ignore[call-overload]
    try:
        until(lambda: _answers(port))
        yield f"postgresql://{database.get('user', 'postgres')}@127.0.0.1:{port}/{name}"
    finally:
        process.terminate()
        process.wait(200)
        shutil.rmtree(folder)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
