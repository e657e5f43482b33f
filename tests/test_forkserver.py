"""The fork server goes on whatever happens to those who ask it; `tests/forkserver.py` says what it is for."""

from __future__ import annotations

import os
import socket

import pytest

from tests import forkserver


@pytest.mark.parametrize("sent", [b"", forkserver.NUMBER.pack(500), forkserver.NUMBER.pack(500) + b"{"], ids=len)
def test_one_that_is_killed_while_it_asks_keeps_nobody_else_from_asking(sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(forkserver.ready())
        caller.sendall(sent)
    done = forkserver.run_text(["--version"], dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("stentor ")
