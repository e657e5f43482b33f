"""Two processes that keep each other honest: a service and a witness of its run log."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stentor.domains.provenance.signing.signed_note import cosigned_at, parse_witness_key
from tests.cli.program import Program
from tests.cli.test_rewritten import act, provenance, stop
from tests.conftest import Service
from tests.patience import until
from tests.ports import free_port
from tests.requirements import requirement


@contextmanager
def witnessing(program: Program, folder: Path, log: Path, port: int = 0) -> Iterator[tuple[str, str]]:
    """A witness of one log; answers its key and its address."""
    words = ("--watch", str(log), "--folder", str(folder), "--name", "witness.example/w1", "--port", str(port))
    process = program.start("provenance", "witness", *words, "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    ready = json.loads(line)
    try:
        yield ready["key"], ready["witness"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=200)


def figures(service: Service) -> dict[str, float]:
    with service.client() as http:
        lines = http.get("/metrics").text.splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith("stentor_provenance_"))
    return {name: float(value) for name, value in found}


WITNESS = '{witness="witness.example/w1"}'


@requirement("provenance.witnessed")
def test_checkpoints_are_signed_by_the_witness_and_verified_with_it(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    program = Program(data)
    assert program("keys", "make").code == 0
    with witnessing(program, tmp_path / "witness", data / "keys" / "provenance.pub") as (key, address):
        service = serve(data, SERVICE_PROVENANCE_WITNESSES=f"{key} {address}")
        act(service)

        def signed() -> bool:
            found = figures(service)
            return found[f"stentor_provenance_witness_events{WITNESS}"] == found["stentor_provenance_checkpoint_events"]

        until(signed)
        with service.client() as http:
            note = http.get("/api/v1/provenance/checkpoint", headers={"Accept": "text/plain"}).text
        assert cosigned_at(note, parse_witness_key(key)) is not None
        assert "1 of 1 witnesses sign" in provenance(service)[1]
        stop(service)
        state = {**service.state, "SERVICE_PROVENANCE_WITNESSES": f"{key} {address}"}
        configured = Program(data, state)("provenance", "verify", "--json")
        assert configured.code == 0, configured.out
        assert configured.json["witnessed"]["witness.example/w1"] == configured.json["size"]
    alone = Program(data, service.state)
    assert alone("provenance", "verify", "--witness", key).code == 0
    other = alone("provenance", "verify", "--witness", "w+6d2b8c1a+BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
    assert (other.code, "is not the key of a witness" in other.err) == (2, True)


@requirement("provenance.witnessed")
@pytest.mark.only("sqlite", reason="the copy is of a folder with the database in it")
def test_an_older_copy_of_the_whole_folder_is_found_by_the_witness(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    program = Program(data)
    assert program("keys", "make").code == 0
    with witnessing(program, tmp_path / "witness", data / "keys" / "provenance.pub") as (key, address):
        witness = {"SERVICE_PROVENANCE_WITNESSES": f"{key} {address}"}
        service = serve(data, **witness)
        act(service)
        stop(service)
        shutil.copytree(data, tmp_path / "older")
        service = serve(data, **witness)
        act(service)
        stop(service)
        fork = serve(tmp_path / "older", **witness)
        for _ in range(3):
            act(fork)
        until(lambda: provenance(fork)[0] == "unavailable")
        assert "has seen another history of this log" in provenance(fork)[1]
        assert figures(fork)[f"stentor_provenance_witness_failing{WITNESS}"] == 1
        stop(fork)
        verified = Program(tmp_path / "older", witness)("provenance", "verify", "--json")
        assert (verified.code, verified.json["intact"]) == (1, False)
        assert any(address in one["source"] and not one["holds"] for one in verified.json["checkpoints"])


@requirement("provenance.witnessed")
def test_a_witness_that_is_away_stops_nothing_and_is_caught_up_with(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    data, port = tmp_path / "data", free_port()
    program = Program(data)
    assert program("keys", "make").code == 0
    with witnessing(program, tmp_path / "witness", data / "keys" / "provenance.pub") as (key, _):
        pass
    service = serve(data, SERVICE_PROVENANCE_WITNESSES=f"{key} http://127.0.0.1:{port}")
    act(service)
    until(lambda: figures(service)[f"stentor_provenance_witness_failing{WITNESS}"] == 1)
    assert provenance(service)[0] == "available"
    with witnessing(program, tmp_path / "witness", data / "keys" / "provenance.pub", port):
        act(service)
        until(lambda: figures(service)[f"stentor_provenance_witness_failing{WITNESS}"] == 0)


WRONG = {
    "no key": ("nonsense http://localhost", "is not a witness key"),
    "the key of a log": (
        "x+5e6d1b3a+AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA http://localhost",
        "for cosignatures",
    ),
}


@pytest.mark.only("sqlite", reason="the settings are read before any database")
@pytest.mark.parametrize(("value", "sentence"), WRONG.values(), ids=WRONG)
def test_a_witness_that_cannot_be_read_stops_the_start(tmp_path: Path, value: str, sentence: str) -> None:
    started = Program(tmp_path / "data", {"SERVICE_PROVENANCE_WITNESSES": value})("serve", "--gateway-port", "0")
    assert (started.code, sentence in started.err.replace("\n", " ")) == (3, True), started.err
