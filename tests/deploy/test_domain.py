"""The tutorial "Behind a domain with TLS": Debian's Caddy with certificates of its own before a service."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Service
from tests.patience import until
from tests.ports import free_port
from tests.readme.blocks import ROOT, blocks
from tests.requirements import requirement
from tests.system import need

API, DASHBOARD = "agents.localhost", "stentor.localhost"
pytestmark = [pytest.mark.slow, pytest.mark.only("sqlite", reason="nothing here asks the database")]


@requirement("documentation.tutorials-run")
def test_both_names_answer_over_tls_and_the_session_is_for_tls_only(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    need("caddy")
    start, proxy, _ = blocks(ROOT / "docs" / "tutorials" / "domain.md")
    names = {"agents.example.com": API, "stentor.example.com": DASHBOARD}
    hosts, _ = start.text.split(" ", 1)
    commands = proxy.text
    for name, local in names.items():
        hosts, commands = hosts.replace(name, local), commands.replace(name, local)
    variable, _, value = hosts.partition("=")
    port = free_port()
    service = serve(**{variable: value})
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "STENTOR_HTTP_PORT": str(free_port()),
        "STENTOR_HTTPS_PORT": str(port),
        "STENTOR_API": service.address.removeprefix("http://"),
        "STENTOR_DASHBOARD": str(service.ready["dashboard"]).removeprefix("http://"),
    }
    root = tmp_path / ".local" / "share" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    last = commands.rstrip().replace("\ncaddy", "\nexec caddy")
    with (tmp_path / "caddy.log").open("w") as log:
        caddy = subprocess.Popen(["bash", "-euc", last], cwd=ROOT, env=environ, stdout=log, stderr=log)
    try:
        until(lambda: root.exists() or caddy.poll() is not None)
        assert caddy.poll() is None, (tmp_path / "caddy.log").read_text()

        def ask(name: str, method: str, path: str, **fields: Any) -> httpx.Response | None:
            try:
                with httpx.Client(verify=ssl.create_default_context(cafile=str(root))) as client:
                    request = client.build_request(method, f"https://127.0.0.1:{port}{path}", **fields)
                    request.headers["Host"] = name
                    request.extensions["sni_hostname"] = name
                    return client.send(request)
            except httpx.TransportError:
                return None  # its certificate is being made

        tasks = until(lambda: ask(API, "GET", "/api/v1/tasks", headers={"X-API-Key": service.key}))
        assert tasks is not None
        assert tasks.status_code == 200
        form = {"key": service.key}
        origin = {"Origin": f"https://{DASHBOARD}"}
        signed_in = until(lambda: ask(DASHBOARD, "POST", "/sign-in", data=form, headers=origin))
        assert signed_in is not None
        assert signed_in.headers["Set-Cookie"].startswith("__Host-stentor_session="), signed_in.text
        assert "Secure" in signed_in.headers["Set-Cookie"]
    finally:
        caddy.terminate()
        caddy.wait(60)
