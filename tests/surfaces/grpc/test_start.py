"""When gRPC is served, and what a start says when it cannot be."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stentor.surfaces.grpc.server import VERSION, is_version_safe
from tests.cli.program import Program
from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import connected
from tests.surfaces.grpc.protos import GENERATED, PROTOS, generate

Serve = Callable[..., Service]
LEAN = {"SERVICE_MEMORY": "0", "SERVICE_DASHBOARD": "0", "SERVICE_GATEWAY_PORT": "0"}
WITHOUT = 'import sys\n\nsys.modules["grpc"] = None\n'


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "data", dict(LEAN))


@pytest.fixture
def without(program: Program, tmp_path: Path) -> Program:
    """The program where the package is not installed."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    program.environ["PYTHONPATH"] = str(tmp_path)
    return program


@contextmanager
def ready(program: Program, *args: str) -> Iterator[dict[str, object]]:
    """The line that the start prints."""
    process = program.start("serve", "--json", "--gateway-port", "0", *args)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate(timeout=200)


@requirement("scale.grpc-optional")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")
def test_nothing_is_served_and_nothing_imported_unless_a_port_is_chosen(serve: Serve) -> None:
    service = serve(**LEAN)
    assert "grpc" not in service.ready
    assert "warnings" not in service.ready
    maps = Path(f"/proc/{service.process.pid}/maps")
    assert "cygrpc" not in maps.read_text()
    assert (
        "cygrpc"
        in Path(f"/proc/{serve(service.data_dir / 'more', SERVICE_GRPC_PORT='0').process.pid}/maps").read_text()
    )


@requirement("scale.grpc-optional")
def test_the_option_chooses_a_port_and_the_line_names_it(program: Program) -> None:
    with ready(program, "--grpc-port", "0") as line:
        host, port = str(line["grpc"]).split(":")
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port)), timeout=200):
            pass


@requirement("scale.grpc-optional")
@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_it_listens_where_the_service_does(serve: Serve) -> None:
    try:
        service = serve(SERVICE_GRPC_PORT="0", SERVICE_HOST="::1", **LEAN)
    except AssertionError as error:
        if "cannot be used" in str(error):
            pytest.skip("this machine has no ::1")
        raise
    assert service.ready["grpc"].startswith("[::1]:")
    with connected(service) as client:
        assert client.submit()


@requirement("scale.grpc-optional")
def test_a_port_that_is_taken_stops_the_start_before_the_folder_is_touched(program: Program) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        done = program("serve", "--gateway-port", "0", "--grpc-port", port)
    assert done.code != 0
    assert f"Port {port} on 127.0.0.1 cannot be used" in done.err
    assert "--grpc-port" in done.err
    assert not program.data_dir.exists()


@requirement("scale.grpc-optional")
def test_a_start_that_is_refused_after_the_port_was_taken_ends_cleanly(program: Program, serve: Serve) -> None:
    service = serve(SERVICE_GRPC_PORT="0", **LEAN)
    program.data_dir = service.data_dir
    done = program("serve", "--gateway-port", "0", "--grpc-port", "0")
    assert done.code != 0
    assert f"process {service.process.pid}" in done.err
    assert done.err.count("\n") <= 3, done.err


@requirement("scale.grpc-optional")
def test_two_services_never_share_a_port(program: Program, serve: Serve) -> None:
    service = serve(SERVICE_GRPC_PORT="0", **LEAN)
    done = program("serve", "--gateway-port", "0", "--grpc-port", service.ready["grpc"].split(":")[1])
    assert done.code != 0
    assert "cannot be used" in done.err


@requirement("scale.grpc-optional")
def test_without_its_packages_the_service_starts_with_a_warning_when_a_port_was_asked_for(without: Program) -> None:
    with ready(without, "--grpc-port", "0") as line:
        assert "grpc" not in line
        assert line["warnings"] == [
            "gRPC is not served: the package grpc is missing. Install it: pip install '.[grpc]' in a checkout."
        ]


@requirement("scale.grpc-optional")
def test_a_version_that_anybody_can_end_is_not_served(program: Program, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text('import grpc\n\ngrpc.__version__ = "1.85.1"\n')
    program.environ["PYTHONPATH"] = str(tmp_path)
    with ready(program, "--grpc-port", "0") as line:
        assert "grpc" not in line
        assert "grpcio 1.85.1" in str(line["warnings"])


@requirement("scale.grpc-optional")
@pytest.mark.parametrize(("version", "sound"), [("1.83.2", True), ("1.84.0", False), ("1.85.1", False), ("2.0", False)])
def test_which_versions_are_sound(version: str, *, sound: bool) -> None:
    assert is_version_safe(version) is sound
    assert is_version_safe(VERSION)


@pytest.mark.slow
@requirement("scale.grpc-optional")
def test_without_its_packages_and_a_port_nothing_is_said(without: Program) -> None:
    with ready(without) as line:
        assert "warnings" not in line


@requirement("scale.grpc-optional")
def test_the_doctor_tells_of_it(program: Program) -> None:
    def told() -> dict[str, str]:
        found = program("doctor", "--json").json["checks"]
        return {one["level"]: one["message"] for one in found if one["check"] == "gRPC"}

    assert told() == {"ok": "Off, unless `stentor serve` got --grpc-port: SERVICE_GRPC_PORT is not set."}
    program.environ["SERVICE_GRPC_PORT"] = "50051"
    assert told() == {"ok": "Served on port 50051."}


@pytest.mark.slow
@requirement("scale.grpc-optional")
def test_the_doctor_tells_what_is_missing(without: Program) -> None:
    without.environ["SERVICE_GRPC_PORT"] = "50051"
    found = without("doctor", "--json").json["checks"]
    assert [one["level"] for one in found if one["check"] == "gRPC"] == ["warning"]
    assert any("pip install '.[grpc]'" in one["message"] for one in found)


@requirement("scale.grpc-optional")
@pytest.mark.parametrize("value", ["x", "-1", "65536"])
def test_a_port_that_is_none_stops_the_start(program: Program, value: str) -> None:
    program.environ["SERVICE_GRPC_PORT"] = value
    done = program("serve", "--gateway-port", "0")
    assert done.code != 0
    assert "SERVICE_GRPC_PORT must be a whole number from 0 to 65535" in done.err


@requirement("scale.grpc-optional")
def test_the_generated_code_is_what_the_protos_say() -> None:
    made = generate()
    assert {path.name: path.read_text("utf-8") for path in GENERATED.glob("*.py*")} == made, "run `make protos`"
    assert len(made) == 1 + 3 * len(list(PROTOS.rglob("*.proto")))


@requirement("scale.grpc-optional")
def test_every_message_field_and_method_of_the_protos_is_explained() -> None:
    """By a comment above it or above the block that it stands in; names that say it all are few."""
    for path in PROTOS.rglob("*.proto"):
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
        for at, line in enumerate(lines):
            if line.startswith(("service ", "rpc ", "enum ")):
                assert lines[at - 1].startswith("//"), f"{path.name}:{at + 1}: {line}"
