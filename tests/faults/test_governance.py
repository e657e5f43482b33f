"""kill -9 while a patch is being deployed: the next process brings it to its end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.domains.governance.conftest import proposal
from tests.patience import until
from tests.requirements import requirement
from tests.service import SHORT_LEASE


class Silent:
    """A listener that answers nothing until it is told to, and counts who came."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.came = threading.Event()
        self.talks = False
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}/do"

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self.socket.accept()
            except OSError:
                return
            caller.recv(65_536)
            if self.talks:
                caller.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._open.append(caller)  # closed with the listener
            self.came.set()

    def close(self) -> None:
        for each in (self.socket, *self._open):
            each.close()


@pytest.mark.slow
@requirement("governance.survives-a-kill")
@pytest.mark.fault
@pytest.mark.parametrize("alive", [True, False], ids=["the agent answers later", "the agent never answers"])
def test_a_deployment_is_carried_to_its_end_after_a_kill(serve: Callable[..., Any], alive: bool) -> None:
    agents = Silent()
    allowed = {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1", "SERVICE_MEMORY": "0", **SHORT_LEASE}
    service = serve(**allowed)
    with service.client() as client:
        register = {"name": "ann", "capabilities": ["echo", "sum"], "runtime": {"kind": "http", "endpoint": agents.url}}
        agent = client.post("/api/v1/registry/agents", json=register).json()["agent_id"]
        client.put(f"/api/v1/trust/{agent}", json={"score": 1.0})
        body = proposal(agent, {"agent_patch": {"capabilities": ["echo"]}})
        assert client.post("/api/v1/governance/updates", json=body).json()["status"] == "approved"
        assert agents.came.wait(200), "it is being probed"
        path = f"/api/v1/governance/updates/{body['update_id']}"
        assert client.get(path).json()["status"] == "deploying"
    service.kill()
    if alive:
        agents.talks = True
    else:
        agents.close()
    again = serve(service.data_dir, **allowed)
    with again.client() as client:
        update = until(lambda: (found := client.get(path).json())["status"] != "deploying" and found)
        assert update["status"] == ("deployed" if alive else "rolled_back")
        known = client.get(f"/api/v1/registry/agents/{agent}").json()
        assert known["capabilities"] == (["echo"] if alive else ["echo", "sum"])
        events = [update[name] is not None for name in ("deployed_at", "rolled_back_at")]
        assert events == [alive, not alive]
    agents.close()
