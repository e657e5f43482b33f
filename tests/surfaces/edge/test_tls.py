"""TLS on every port: a real service, real handshakes, each verified against the certificate."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from stentor_worker import ServiceError, Worker
from stentor_worker.http.client import Client
from tests import forkserver
from tests.authority import Authority
from tests.cli.program import SUMMARIZE, TEXT, Program
from tests.patience import until
from tests.ports import free_port
from tests.requirements import requirement
from tests.service import ADMIN, Service
from tests.surfaces.edge.sockets import LIVE, connected, is_alive, until_end
from tests.surfaces.edge.test_slow_clients import hold
from tests.surfaces.memory_mcp.conftest import call
from tests.surfaces.memory_mcp.test_stdio import start_client

Start = Callable[..., Service]
PORTS = ("gateway", "dashboard", "vault", "notes", "mcp")
ON = {"SERVICE_TLS": "true", "SERVICE_GRPC_PORT": "0"}


def trust(service: Service) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=service.ready["certificate_file"])


def served_pem(address: str, context: ssl.SSLContext, host: str = "") -> str:
    """The certificate that a port serves to a client that verifies it."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    assert parts.hostname
    plain = socket.create_connection((parts.hostname, parts.port or 0), 60)
    with closing(plain), context.wrap_socket(plain, server_hostname=host or parts.hostname) as secure:
        assert secure.version() in ("TLSv1.2", "TLSv1.3")
        return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"")


def program_of(service: Service, **environ: str) -> Program:
    return Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **environ})


@requirement("http.tls")
def test_every_port_speaks_tls_with_a_certificate_for_the_names_of_this_machine(start: Start) -> None:
    service = start(**ON, SERVICE_ALLOWED_HOSTS="stentor.local")
    assert all(service.ready[name].startswith("https://") for name in PORTS)
    assert "vault_tls" not in service.ready
    context = trust(service)
    for name in PORTS:
        for host in ("127.0.0.1", "localhost", "::1", "stentor.local", socket.gethostname()):
            served_pem(service.ready[name], context, host)
        status = httpx.get(service.ready[name], verify=context).status_code
        assert status < 500
    keys = service.data_dir / "keys"
    for file in ("tls.pem", "tls.crt"):
        assert stat.S_IMODE((keys / file).stat().st_mode) == 0o600
    assert b"PRIVATE" not in (keys / "tls.crt").read_bytes()
    assert service.ready["certificate_file"] == str(keys / "tls.crt")
    assert not (keys / "vault.pem").exists()


@requirement("http.tls")
def test_grpc_speaks_tls_too(start: Start) -> None:
    service = start(**ON)
    trusted = Path(service.ready["certificate_file"]).read_bytes()
    with grpc.secure_channel(service.ready["grpc"], grpc.ssl_channel_credentials(trusted)) as channel:
        grpc.channel_ready_future(channel).result(60)
    plain = served_pem(service.ready["grpc"], trust(service))
    assert plain == trusted.decode()


@requirement("http.tls")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_of_tls_are_refused(start: Start, version: ssl.TLSVersion) -> None:
    service = start(**ON)
    for name in (*PORTS, "grpc"):
        context = trust(service)
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.minimum_version = context.maximum_version = version
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served_pem(service.ready[name], context)


@requirement("http.tls")
def test_a_restart_keeps_the_certificate_and_another_name_replaces_it_once(start: Start) -> None:
    fingerprints = []
    for hosts in ("", "", "other.local", ""):
        service = start(**ON, SERVICE_ALLOWED_HOSTS=hosts)
        fingerprints.append(service.ready["certificate_sha256"])
        service.process.terminate()
        assert service.process.wait(200) == 0
    assert fingerprints[0] == fingerprints[1] != fingerprints[2] == fingerprints[3]


@requirement("http.tls")
def test_the_cookie_of_a_session_is_for_tls_only(start: Start) -> None:
    service = start(**ON)
    with httpx.Client(base_url=service.ready["dashboard"], verify=trust(service)) as browser:
        answer = browser.post("/sign-in", data={"key": service.key})
        assert answer.status_code == 303
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-stentor_session=")
        assert "; Secure" in cookie
        assert browser.get("/tasks").status_code == 200
        assert "strict-transport-security" not in browser.get("/tasks").headers


@requirement("http.tls-clients")
def test_commands_work_without_settings_and_refuse_another_certificate(start: Start, tmp_path: Path) -> None:
    service = start(**ON)
    program = program_of(service)
    done = program("task", "submit", *SUMMARIZE, "--file", "-", "--wait", "--json", stdin=TEXT)
    assert done.code == 0, done.err
    assert program("call", "tasks.list").code == 0
    assert program("task", "list", "--url", service.address.replace("127.0.0.1", "localhost")).code == 0
    shown = program("doctor", "--json").json
    texts = [finding["message"] for finding in shown["checks"]]
    assert any(service.ready["certificate_sha256"] in text for text in texts)
    assert f"{service.address} is healthy." in texts
    elsewhere = Program(tmp_path / "elsewhere", {"SERVICE_CLIENT_KEY": service.key, "SERVICE_URL": service.address})
    refused = elsewhere("task", "list")
    assert refused.code == 4
    assert "has a certificate that is not trusted (self-signed certificate). Set SSL_CERT_FILE" in " ".join(
        refused.err.split()
    )
    elsewhere.environ["SSL_CERT_FILE"] = service.ready["certificate_file"]
    assert elsewhere("task", "list").code == 0
    elsewhere.environ["SSL_CERT_FILE"] = str(tmp_path / "none")
    assert "SSL_CERT_FILE cannot be used" in elsewhere("task", "list").err


@requirement("http.tls-clients")
def test_an_expired_certificate_and_one_for_another_name_are_refused_with_what_to_do(
    start: Start, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    elsewhere = Program(tmp_path / "elsewhere", {"SERVICE_CLIENT_KEY": "x", "SSL_CERT_FILE": str(authority.file)})

    def refusal(*names: str, days: float) -> str:
        authority.issue(*names, days=days)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.certificate_file, authority.key_file)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=fail_handshake, args=(listening, context))
            thread.start()
            done = elsewhere("task", "list", "--url", f"https://127.0.0.1:{listening.getsockname()[1]}")
            thread.join(200)
        assert done.code == 4
        return " ".join(done.err.split())

    assert "has expired. Renew it." in refusal("127.0.0.1", days=-1)
    assert "Use an address that it names" in refusal("other.example.com", days=1)


def fail_handshake(listening: socket.socket, context: ssl.SSLContext) -> None:
    with listening.accept()[0] as client, suppress(OSError), context.wrap_socket(client, server_side=True) as secure:
        secure.recv(1)
        raise AssertionError("the client trusts it")


@requirement("http.tls-clients")
def test_commands_do_not_speak_with_a_server_that_took_the_port(start: Start, tmp_path: Path) -> None:
    """The nastiest: another user of the machine listens there, with a certificate of a trusted authority."""
    authority = Authority(tmp_path)
    authority.issue("127.0.0.1")
    service = start(**authority.settings, SSL_CERT_FILE=str(authority.file))
    lock = service.data_dir / "stentor.lock"
    other = json.loads(lock.read_text())
    (elsewhere := tmp_path / "elsewhere").mkdir()  # not over the files of the service, which would read them again
    other["certificate"] = Authority(elsewhere).issue("127.0.0.1")  # what the real service would have
    lock.write_text(json.dumps(other))
    refused = program_of(service, SSL_CERT_FILE=str(authority.file))("task", "list")
    assert refused.code == 4
    assert "is not trusted" in refused.err


@requirement("http.tls-clients")
def test_a_dashboard_in_a_process_of_its_own_reaches_the_gateway(start: Start) -> None:
    service = start(**ON, SERVICE_DASHBOARD="false")
    command = ["dashboard", "--json", "--port", "0", "--data-dir", str(service.data_dir)]
    with forkserver.Process(command, {**service.environ, "SERVICE_TLS": "true"}) as process:
        address = json.loads(process.stdout.readline())["dashboard"]
        assert address.startswith("https://")
        with httpx.Client(base_url=address, verify=trust(service)) as browser:
            assert browser.post("/sign-in", data={"key": service.key}).status_code == 303
            assert browser.get("/tasks").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 0


@requirement("http.tls-clients")
def test_the_note_store_reaches_the_vault_and_verifies_it(start: Start) -> None:
    service = start(**ON, MCP_API_KEY="note-key-7c1e")
    with httpx.Client(
        base_url=service.ready["notes"], headers={"Authorization": "Bearer note-key-7c1e"}, verify=trust(service)
    ) as notes:
        done = notes.post("/api/appendContext", json={"path": "a.md", "content": "kept"})
        assert done.status_code == 200, done.text
    assert (service.data_dir / "vault/a.md").read_text().strip() == "kept"


@requirement("http.tls")
def test_a_witness_and_a_note_store_alone_follow_the_setting(start: Start, tmp_path: Path) -> None:
    log, own = start().data_dir / "keys/provenance.pub", tmp_path / "own"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SERVICE_TLS": "true", "SERVICE_DATA_DIR": str(own)}
    environ |= {"MCP_API_KEY": "note-key-7c1e", "NOTES_BASE_URL": "http://127.0.0.1:1", "NOTES_API_KEY": "x"}
    witness = ["provenance", "witness", "--watch", str(log), "--folder", str(tmp_path / "w"), "--name", "example.com/w"]
    for name, command in (("notes", ["notes"]), ("witness", witness)):
        with forkserver.Process([*command, "--port", "0", "--json"], environ) as process:
            ready = json.loads(process.stdout.readline())
            served_pem(ready[name], ssl.create_default_context(cafile=own / "keys/tls.crt"))
            process.terminate()
            assert process.wait(200) == 0


@requirement("http.tls-clients")
def test_the_vault_alone_has_one_port_with_tls(tmp_path: Path) -> None:
    command = ["vault", str(tmp_path / "notes"), "--data-dir", str(tmp_path / "data"), "--tls-port", "0", "--json"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SERVICE_TLS": "true"}
    with forkserver.Process(command, environ) as process:
        ready = json.loads(process.stdout.readline())
        assert ready["vault"].startswith("https://")
        assert ready["vault_tls"] is None
        context = ssl.create_default_context(cafile=tmp_path / "data/keys/tls.crt")
        downloaded = httpx.get(f"{ready['vault']}/obsidian-local-rest-api.crt", verify=context).text
        assert downloaded == (tmp_path / "data/keys/tls.crt").read_text()
        process.terminate()
        assert process.wait(200) == 0


@pytest.mark.slow
@requirement("http.tls-clients")
def test_a_worker_trusts_a_file_and_follows_a_renewal(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    port = str(free_port())
    service = start(**ON, SERVICE_GATEWAY_PORT=port)
    with pytest.raises(ServiceError, match="not trusted: name its file with ca_file"):
        Client(service.address, service.key, threading.Event()).call("GET", "/tasks", tries=1)
    worker = Worker.register(
        service.address, service.key, "count", ["count"], ca_file=service.ready["certificate_file"]
    )
    worker.handler(lambda task: len(task.input))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        program = program_of(service)
        submit = ("task", "submit", "--type", "count", "--capability", "count", "--input", TEXT, "--wait", "--json")
        assert program(*submit).json["result"] == len(TEXT)
        service.process.terminate()
        service.process.wait(60)
        (service.data_dir / "keys/tls.pem").unlink()
        again = start(**ON, SERVICE_GATEWAY_PORT=port)
        assert again.ready["certificate_sha256"] != service.ready["certificate_sha256"]
        assert program(*submit).json["result"] == len(TEXT)
    finally:
        worker.stop()
        thread.join(200)
    assert not thread.is_alive()


@requirement("http.tls-clients")
async def test_the_memory_over_standard_input_reaches_the_service(start: Start) -> None:
    service = start(**ON)
    async with start_client(service.data_dir) as client:
        assert (await call(client, "write-memory", namespace="notes", key="a", content="x"))["version"] == 1
        assert (await call(client, "read-memory", namespace="notes", key="a"))["content"] == "x"
    assert (service.data_dir / "stentor.lock").read_bytes(), "the service has held the folder all the time"


@requirement("http.tls-clients")
@pytest.mark.parametrize("environ", [{}, ON])
def test_the_health_check_of_the_image_follows_the_setting(start: Start, environ: dict[str, str]) -> None:
    service = start(**environ)
    port = str(urlsplit(service.address).port)
    env = {**service.environ, "SERVICE_DATA_DIR": str(service.data_dir), "SERVICE_GATEWAY_PORT": port}
    check = [sys.executable, "-m", "stentor.container_health"]
    until(lambda: subprocess.run(check, env=env, timeout=200).returncode == 0)  # it waits for seconds only
    service.kill()
    failed = subprocess.run(check, env=env, timeout=200, capture_output=True, text=True)
    assert (failed.returncode, "Connection refused" in failed.stderr) == (1, True)


@requirement("http.tls-own")
def test_a_certificate_of_ones_own_is_served_on_every_port_and_commands_need_no_name_in_it(
    start: Start, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("stentor.example.com")
    service = start(**authority.settings, SERVICE_GRPC_PORT="0")
    context = ssl.create_default_context(cafile=authority.file)
    for name in (*PORTS, "grpc"):
        assert served_pem(service.ready[name], context, "stentor.example.com") == pem
        with pytest.raises(ssl.SSLCertVerificationError):
            served_pem(service.ready[name], context, "other.example.com")
    assert program_of(service)("task", "list").code == 0
    assert not list((service.data_dir / "keys").glob("tls*"))


@requirement("http.tls-own")
def test_files_that_cannot_be_used_stop_the_start_with_the_file_and_the_reason(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def start_fails_with(*texts: str, **settings: str) -> None:
        environ = {"SERVICE_GATEWAY_PORT": "0", "SERVICE_LLM_FIND_OLLAMA": "0", **(settings or authority.settings)}
        done = Program(tmp_path / "data", environ)("serve")
        assert done.code != 0
        error = " ".join(done.err.split())
        for text in texts:
            assert text in error
        assert "PRIVATE KEY" not in error
        assert not (tmp_path / "data/stentor.db").exists(), "nothing was touched before the check"

    start_fails_with("fullchain.pem", "No such file or directory")
    authority.issue("a.example.com")
    key = authority.key_file.read_bytes()
    authority.issue("a.example.com")
    authority.key_file.write_bytes(key)
    start_fails_with("privkey.pem is not the private key of the HTTPS certificate")
    authority.issue("a.example.com", days=-1)
    start_fails_with("fullchain.pem expired on", "renew it")
    authority.issue("a.example.com", starts_in=timedelta(days=1))
    start_fails_with("fullchain.pem is valid from", "check the clock")
    authority.issue("a.example.com", password=b"secret")
    start_fails_with("privkey.pem", "without a password")
    authority.issue("a.example.com", is_reversed=True)
    start_fails_with("fullchain.pem", "wrong order")
    authority.issue("a.example.com")
    authority.certificate_file.write_text("nothing")
    start_fails_with("fullchain.pem", "no valid certificate in PEM")
    authority.key_file.write_text("nothing")
    authority.issue("a.example.com")
    authority.key_file.write_text("nothing")
    start_fails_with("privkey.pem", "no private key in PEM")
    start_fails_with("SERVICE_TLS_CERT and SERVICE_TLS_KEY", SERVICE_TLS_KEY=str(authority.key_file))
    start_fails_with("cannot be combined", **authority.settings, SERVICE_TLS="false")
    start_fails_with("SERVICE_VAULT_TLS=false", SERVICE_TLS="true", SERVICE_VAULT_TLS="false")


@requirement("http.tls-own")
def test_a_kind_of_key_that_grpc_cannot_serve_is_told_at_the_start(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("127.0.0.1", curve=ec.SECP521R1())
    service = start(**authority.settings, SERVICE_GRPC_PORT="0")
    assert any("gRPC clients cannot connect" in warning for warning in service.ready["warnings"])
    assert served_pem(service.address, ssl.create_default_context(cafile=authority.file)) == pem


@requirement("http.tls-renewal")
def test_a_renewed_certificate_is_served_without_a_restart_and_a_wrong_one_is_not(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.issue("127.0.0.1")
    service = start(**authority.settings, SERVICE_GRPC_PORT="0")
    context = ssl.create_default_context(cafile=authority.file)
    with httpx.Client(base_url=service.address, verify=context, headers=ADMIN) as kept:
        assert kept.get("/api/v1/tasks").status_code == 200
        second = authority.issue("127.0.0.1")
        for name in (*PORTS, "grpc"):
            until(lambda: served_pem(service.ready[name], context) == second)  # noqa: B023 - asked at once
        assert kept.get("/api/v1/tasks").status_code == 200, "a connection that was open goes on"
    assert program_of(service)("task", "list").code == 0
    authority.key_file.write_bytes(Authority(tmp_path).pem)
    assert service.process.stderr is not None
    lines = iter(service.process.stderr.readline, "")
    rejected = next(line for line in lines if "new certificate rejected" in line)
    assert "no private key in PEM" in rejected
    assert served_pem(service.ready["grpc"], context) == served_pem(service.address, context) == second != first
    assert program_of(service)("task", "list").code == 0


@requirement("http.tls-renewal")
def test_the_made_certificate_is_replaced_while_the_service_runs(start: Start) -> None:
    service = start(**ON)
    keys = service.data_dir / "keys"
    before = (keys / "tls.crt").read_text()
    (keys / "tls.pem").unlink()
    until(lambda: (keys / "tls.crt").read_text() != before)
    until(lambda: program_of(service)("task", "list").code == 0)
    after = (keys / "tls.crt").read_text()
    until(lambda: served_pem(service.address, trust(service)) == after)


@requirement("http.tls-plain")
def test_plain_http_on_a_port_with_tls_is_answered_with_a_hint(start: Start) -> None:
    service = start(**ON)
    for name in PORTS:
        answer = httpx.get(service.ready[name].replace("https", "http"))
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "This port speaks HTTPS: use https:// in place of http://."
    program = program_of(service, SERVICE_URL=service.address.replace("https", "http"))
    assert "use https://" in program("task", "list").err
    for nonsense in (b"\x00", b"\xff" * 100_000, b"\n"):
        with connected(service.address.replace("https", "http")) as client:
            client.sendall(nonsense)
            assert until_end(client)[:13] in (b"HTTP/1.1 400 ", b""), "never a hang"
    assert is_alive(service.address)


@pytest.mark.slow
@requirement("http.tls-plain")
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
def test_1100_handshakes_that_never_end_keep_nobody_out_of_the_gateway(start: Start, sent: bytes) -> None:
    service = start(**ON)
    held = hold(service.address.replace("https", "http"), 1_100, sent)
    try:
        assert is_alive(service.address)
        with connected(service.address) as other:
            other.sendall(LIVE + b"Connection: close\r\n\r\n")
            assert until_end(other).startswith(b"HTTP/1.1 200 ")
    finally:
        for client in held:
            client.close()


@requirement("http.connection-limits")
def test_a_new_connection_over_tls_takes_the_place_of_the_oldest_idle_one(start: Start) -> None:
    service = start(**ON, SERVICE_MAX_CONNECTIONS_PER_ADDRESS="3")
    # Another address than that of the service, which has connections to itself.
    idle = [connected(service.address, "127.0.0.2") for _ in range(3)]
    for client in idle:
        client.sendall(LIVE + b"\r\n")
        assert client.recv(65_536).startswith(b"HTTP/1.1 200 ")
    with connected(service.address, "127.0.0.2") as other:
        other.sendall(LIVE + b"\r\n")
        assert other.recv(65_536).startswith(b"HTTP/1.1 200 ")
        idle[1].sendall(LIVE + b"Connection: close\r\n\r\n")
        assert until_end(idle[1]).startswith(b"HTTP/1.1 200 "), "only one gave way"
    assert until_end(idle[0]) == b""
    for client in idle:
        client.close()


@requirement("http.tls")
def test_nothing_of_the_key_is_in_logs_answers_or_the_lock_file(start: Start) -> None:
    service = start(**ON, SERVICE_LOG_LEVEL="debug")
    body = [line for line in (service.data_dir / "keys/tls.pem").read_text().split("-----") if "\n" in line.strip()]
    key = body[0].split()[0]
    x509.load_pem_x509_certificate((service.data_dir / "keys/tls.crt").read_bytes())
    lock = (service.data_dir / "stentor.lock").read_text()
    downloaded = httpx.get(f"{service.ready['vault']}/obsidian-local-rest-api.crt", verify=trust(service)).text
    service.process.terminate()
    service.process.wait(60)
    assert service.process.stdout
    assert service.process.stderr
    out, err = service.process.stdout.read(), service.process.stderr.read()
    for text in (lock, downloaded, out, err, json.dumps(service.ready)):
        assert key not in text
        assert "PRIVATE KEY" not in text
