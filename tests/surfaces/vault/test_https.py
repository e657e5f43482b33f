"""HTTPS of the vault server: the self-signed certificate, and what is served without a key."""

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
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
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
def test_client_with_the_downloaded_certificate_connects_over_https(vault: Vault, tmp_path: Path) -> None:
    vault.put("a.md", "over both")
    response = httpx.get(f"{vault.http.base_url}/obsidian-local-rest-api.crt")
    assert response.status_code == 200
    assert b"PRIVATE" not in response.content
    (tmp_path / "trusted.crt").write_bytes(response.content)
    ssl_context = ssl.create_default_context(cafile=tmp_path / "trusted.crt")
    for host in ("127.0.0.1", "localhost"):
        url = vault.https_url.replace("127.0.0.1", host)
        with httpx.Client(base_url=url, headers=vault.http.headers, verify=ssl_context) as https:
            assert https.get("/vault/a.md").text == "over both"
            assert https.put("/vault/b.md", content="b").status_code == 204
    assert vault.http.get("/vault/b.md").text == "b"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(vault.https_url)


@pytest.mark.requirement("vault.https")
def test_certificate_key_file_is_readable_by_its_owner_only(vault: Vault) -> None:
    path = vault.key_file.with_name("vault.pem")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"PRIVATE KEY" in path.read_bytes()
    assert {file.name for file in path.parent.iterdir()} == {"vault.key", "vault.pem"}


@pytest.mark.requirement("vault.key")
def test_root_and_openapi_document_need_no_key(vault: Vault) -> None:
    for path, kind in (("/", "application/json"), ("/openapi.yaml", "application/yaml; charset=utf-8")):
        response = httpx.get(f"{vault.http.base_url}{path}")
        assert (response.status_code, response.headers["content-type"]) == (200, kind)
    for path in ("/openapi.yaml/", "/obsidian-local-rest-api.crt/x"):
        assert httpx.get(f"{vault.http.base_url}{path}").status_code == 401


@pytest.mark.requirement("vault.key")
def test_openapi_lists_401_for_each_operation_that_needs_a_key(vault: Vault) -> None:
    paths = YAML(typ="safe").load(httpx.get(f"{vault.http.base_url}/openapi.yaml").text)["paths"]
    operations = [
        (path, method, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if isinstance(operation, dict) and operation.get("security") != []
    ]
    for path, method, operation in operations:
        assert "401" in operation["responses"], (path, method)
        assert path == "/tags/" or "400" in operation["responses"], (path, method)
        url = f"{vault.http.base_url}{path.replace('{path}', 'n.md')}"
        assert httpx.request(method, url).status_code == 401


@pytest.mark.requirement("vault.https")
def test_certificate_is_renewed_a_month_before_it_expires(tmp_path: Path) -> None:
    clock = Clock(datetime.now(UTC))
    first = ServerCertificate(tmp_path / "keys", "127.0.0.1", lambda: clock.us / 1_000_000)
    first.ensure()
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    second = ServerCertificate(tmp_path / "keys", "127.0.0.1", lambda: clock.us / 1_000_000)
    second.ensure()
    assert second.pem == first.pem
    clock.us += 334 * DAY
    second.ensure()
    assert second.pem == first.pem
    clock.us += 2 * DAY
    second.ensure()
    assert second.pem != first.pem
    assert second.pem is not None
    expires_at = x509.load_pem_x509_certificate(second.pem).not_valid_after_utc
    assert expires_at - datetime.fromtimestamp(clock.us / 1_000_000, UTC) == timedelta(days=365)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind"])
def test_invalid_certificate_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vault.pem").write_bytes(content)
    certificate = ServerCertificate(tmp_path, "127.0.0.1")
    certificate.ensure()
    assert certificate.pem is not None


@pytest.mark.parametrize("key", ["none", "of another certificate", "with a password"])
def test_certificate_without_its_key_is_replaced(tmp_path: Path, key: str) -> None:
    path = tmp_path / "vault.pem"
    ServerCertificate(tmp_path, "127.0.0.1").ensure()
    stored = path.read_bytes()
    certificate = stored[stored.index(b"-----BEGIN CERTIFICATE") :]
    other = ec.generate_private_key(ec.SECP256R1())
    encryption = BestAvailableEncryption(b"secret") if key == "with a password" else NoEncryption()
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    path.write_bytes(certificate if key == "none" else pem + certificate)
    renewed = ServerCertificate(tmp_path, "127.0.0.1")
    renewed.ensure()
    assert renewed.pem is not None
    assert renewed.pem not in certificate


def test_certificate_before_its_key_in_the_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "vault.pem"
    first = ServerCertificate(tmp_path, "127.0.0.1")
    first.ensure()
    stored = path.read_bytes()
    start = stored.index(b"-----BEGIN CERTIFICATE")
    path.write_bytes(stored[start:] + stored[:start])
    second = ServerCertificate(tmp_path, "127.0.0.1")
    second.ensure()
    assert second.pem == first.pem


def test_certificate_for_another_host_is_replaced(tmp_path: Path) -> None:
    pems = []
    for host in ("127.0.0.1", "0.0.0.0", "notes.internal", "notes.internal"):
        certificate = ServerCertificate(tmp_path, host)
        certificate.ensure()
        pems.append(certificate.pem)
    assert pems[0] == pems[1]
    assert pems[1] != pems[2]
    assert pems[2] == pems[3]


def test_two_processes_with_other_names_on_one_folder_do_not_replace_it_forever(tmp_path: Path) -> None:
    first, second = (ServerCertificate(tmp_path, f"{name}.local", more_names=["*", "bü", ""]) for name in ("a", "b"))
    pems = []
    for certificate in (first, second, first, second):
        certificate.ensure()
        pems.append(certificate.pem)
    assert pems[0] != pems[1] == pems[2] == pems[3]
    assert pems[1] is not None
    extensions = x509.load_pem_x509_certificate(pems[1]).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert set(names) == {"localhost", "a.local", "b.local"}


@pytest.mark.parametrize("switch", [["--no-tls"], []])
def test_https_can_be_disabled_by_option_or_variable(tmp_path: Path, switch: list[str]) -> None:
    command = ["vault", str(tmp_path / "notes"), "--data-dir", str(tmp_path / "data")]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | ({} if switch else {"SERVICE_VAULT_TLS": "false"})
    command += ["--port", "0", "--json", *switch]
    with forkserver.Process(command, environ) as process:
        ready = json.loads(process.stdout.readline())
        assert (ready["vault_tls"], ready["certificate_file"]) == (None, None)
        assert httpx.get(f"{ready['vault']}/obsidian-local-rest-api.crt").json()["errorCode"] == 40400
        process.terminate()
        assert process.wait(200) == 0
    assert [path.name for path in (tmp_path / "data" / "keys").iterdir()] == ["vault.key"]


def test_port_in_use_error_names_the_tls_port_option(vault: Vault, tmp_path: Path) -> None:
    port = vault.https_url.rpartition(":")[2]
    command = ["vault", str(tmp_path), "--port", "0", "--tls-port", port]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SERVICE_DATA_DIR": str(tmp_path / "data")}
    process = forkserver.run_text(command, environ)
    assert process.returncode != 0
    assert "--tls-port" in process.stderr
