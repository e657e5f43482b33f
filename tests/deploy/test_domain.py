"""The tutorial "Behind a domain with TLS": Debian's Caddy and nginx with TLS before a service."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.authority import Authority
from tests.conftest import Service
from tests.identity_provider import identity_provider
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


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed (Debian package nginx)")
@requirement("documentation.tutorials-run")
def test_people_sign_in_with_a_key_and_with_a_provider_behind_nginx(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    (location,) = (
        block.text for block in blocks(ROOT / "docs" / "tutorials" / "domain.md") if block.language == "nginx"
    )
    name, port = "stentor.localhost", free_port()
    authority = Authority(tmp_path)
    authority.issue(name)
    with identity_provider(time.time) as provider:
        service = serve(SERVICE_ALLOWED_HOSTS=name, **provider.settings)
        location = location.replace("http://127.0.0.1:8080", str(service.ready["dashboard"]))
        location = location.replace("Host $host;", "Host $host:$server_port;")  # what the page says for this port
        folders = "".join(
            f"{kind}_temp_path {tmp_path}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = tmp_path / "nginx.conf"
        config.write_text(
            f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
            f"http {{ access_log off; {folders}\nserver {{ listen 127.0.0.1:{port} ssl; server_name {name};\n"
            f"ssl_certificate {authority.certificate_file};\nssl_certificate_key {authority.key_file};\n"
            f"{location}}}}}\n"
        )
        nginx = subprocess.Popen(["nginx", "-c", str(config), "-p", str(tmp_path)], stderr=subprocess.DEVNULL)
        try:
            context = ssl.create_default_context(cafile=str(authority.file))
            with httpx.Client(verify=context, base_url=f"https://127.0.0.1:{port}") as client:

                def ask(method: str, path: str, **fields: Any) -> httpx.Response | None:
                    request = client.build_request(method, path, **fields)
                    request.headers["Host"] = f"{name}:{port}"
                    request.extensions["sni_hostname"] = name
                    try:
                        return client.send(request)
                    except httpx.ConnectError:
                        return None  # it does not listen yet

                origin = {"Origin": f"https://{name}:{port}"}
                signed_in = until(lambda: ask("POST", "/sign-in", data={"key": service.key}, headers=origin))
                assert signed_in is not None
                assert signed_in.headers["Set-Cookie"].startswith("__Host-stentor_session="), signed_in.text
                redirect = ask("GET", "/sign-in/provider")
                assert redirect is not None
                (back,) = parse_qs(urlsplit(redirect.headers["Location"]).query)["redirect_uri"]
                assert back == f"https://{name}:{port}/sign-in/callback"
        finally:
            nginx.terminate()
            nginx.wait(60)
