"""HTTPS beside HTTP: one application, a certificate of its own that a client can download and trust."""

from __future__ import annotations

import json
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from ruamel.yaml import YAML

from stentor.core.clock import DAY
from stentor_vault.server.certificate import ServerCertificate
from tests import forkserver
from tests.surfaces.vault.conftest import Vault


class Clock:
    def __init__(self, now: datetime) -> None:
        self.us = int(now.timestamp()) * 1_000_000

    def now(self) -> int:
        return self.us


@pytest.mark.requirement("vault.https")
def test_a_client_that_trusts_the_downloaded_certificate_reads_over_https(vault: Vault, tmp_path: Path) -> None:
    vault.put("a.md", "over both")
    answer = httpx.get(f"{vault.http.base_url}/obsidian-local-rest-api.crt")
    assert answer.status_code == 200
    assert b"PRIVATE" not in answer.content
    (tmp_path / "trusted.crt").write_bytes(answer.content)
    trusting = ssl.create_default_context(cafile=tmp_path / "trusted.crt")
    for host in ("127.0.0.1", "localhost"):
        address = vault.secure.replace("127.0.0.1", host)
        with httpx.Client(base_url=address, headers=vault.http.headers, verify=trusting) as https:
            assert https.get("/vault/a.md").text == "over both"
            assert https.put("/vault/b.md", content="b").status_code == 204
    assert vault.http.get("/vault/b.md").text == "b"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(vault.secure)


@pytest.mark.requirement("vault.https")
def test_the_key_of_the_certificate_is_for_its_owner_alone(vault: Vault) -> None:
    path = vault.key_file.with_name("vault.pem")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"PRIVATE KEY" in path.read_bytes()
    assert {file.name for file in path.parent.iterdir()} == {"vault.key", "vault.pem"}


@pytest.mark.requirement("vault.key")
def test_what_needs_no_key_is_answered_without_one(vault: Vault) -> None:
    for path, kind in (("/", "application/json"), ("/openapi.yaml", "application/yaml; charset=utf-8")):
        answer = httpx.get(f"{vault.http.base_url}{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    for path in ("/openapi.yaml/", "/obsidian-local-rest-api.crt/x"):
        assert httpx.get(f"{vault.http.base_url}{path}").status_code == 401


@pytest.mark.requirement("vault.key")
def test_the_description_names_401_wherever_a_key_is_needed(vault: Vault) -> None:
    paths = YAML(typ="safe").load(httpx.get(f"{vault.http.base_url}/openapi.yaml").text)["paths"]
    operations = [
        (path, method, one)
        for path, known in paths.items()
        for method, one in known.items()
        if isinstance(one, dict) and one.get("security") != []
    ]
    for path, method, one in operations:
        assert "401" in one["responses"], (path, method)
        assert path == "/tags/" or "400" in one["responses"], (path, method)
        address = f"{vault.http.base_url}{path.replace('{path}', 'n.md')}"
        assert httpx.request(method, address).status_code == 401


@pytest.mark.requirement("vault.https")
def test_a_certificate_is_kept_until_a_month_before_its_end(tmp_path: Path) -> None:
    clock = Clock(datetime.now(UTC))
    first = ServerCertificate(tmp_path / "keys", "127.0.0.1", lambda: clock.us / 1_000_000)
    first.ensure()
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    again = ServerCertificate(tmp_path / "keys", "127.0.0.1", lambda: clock.us / 1_000_000)
    again.ensure()
    assert again.pem == first.pem
    clock.us += 334 * DAY
    again.ensure()
    assert again.pem == first.pem
    clock.us += 2 * DAY
    again.ensure()
    assert again.pem != first.pem
    assert again.pem is not None
    ends = x509.load_pem_x509_certificate(again.pem).not_valid_after_utc
    assert ends - datetime.fromtimestamp(clock.us / 1_000_000, UTC) == timedelta(days=365)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind"])
def test_a_file_that_is_no_certificate_is_made_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vault.pem").write_bytes(content)
    certificate = ServerCertificate(tmp_path, "127.0.0.1")
    certificate.ensure()
    assert certificate.pem is not None


def test_a_certificate_that_does_not_name_the_host_is_made_anew(tmp_path: Path) -> None:
    found = []
    for host in ("127.0.0.1", "0.0.0.0", "notes.internal", "notes.internal"):
        certificate = ServerCertificate(tmp_path, host)
        certificate.ensure()
        found.append(certificate.pem)
    assert found[0] == found[1]
    assert found[1] != found[2]
    assert found[2] == found[3]


@pytest.mark.parametrize("switch", [["--no-tls"], []])
def test_https_can_be_switched_off(tmp_path: Path, switch: list[str]) -> None:
    command = ["vault", str(tmp_path / "notes"), "--data-dir", str(tmp_path / "data")]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | ({} if switch else {"SERVICE_VAULT_TLS": "false"})
    command += ["--port", "0", "--json", *switch]
    with forkserver.Process(command, environ) as process:
        ready = json.loads(process.stdout.readline())
        assert (ready["vault_tls"], ready["certificate_file"]) == (None, None)
        assert httpx.get(f"{ready['vault']}/obsidian-local-rest-api.crt").json()["errorCode"] == 40400
        process.terminate()
        assert process.wait(60) == 0
    assert [path.name for path in (tmp_path / "data" / "keys").iterdir()] == ["vault.key"]


def test_a_taken_port_is_named_with_its_option(vault: Vault, tmp_path: Path) -> None:
    taken = vault.secure.rpartition(":")[2]
    command = ["vault", str(tmp_path), "--port", "0", "--tls-port", taken]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SERVICE_DATA_DIR": str(tmp_path / "data")}
    done = forkserver.run_text(command, environ)
    assert done.returncode != 0
    assert "--tls-port" in done.stderr
