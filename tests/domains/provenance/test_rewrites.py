"""A log rewritten with the real signing key is consistent in itself; only the witness's checkpoint detects it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stentor.core import ids
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.runlog import EVENT_COLUMNS, leaf_hash
from stentor.domains.provenance import merkle
from stentor.domains.provenance.audit.checkpoint_claims import parse_claim
from stentor.domains.provenance.audit.verification import WitnessPolicy, verify_run_log
from stentor.domains.provenance.signing.signed_note import generate_signer
from stentor.domains.provenance.witness.wire import WitnessSubmission
from stentor.domains.provenance.witness.witness import Witness, WitnessFolder
from stentor.testing import FixedClock
from tests.databases import Databases
from tests.requirements import requirement

SIGNER = generate_signer("example.com/log")
SIZES = (10, 25, 40)
REWRITES = 1_000
Rows = list[tuple[Any, ...]]


def event(number: int, message: str = "it happened") -> tuple[Any, ...]:
    fields = {"event_id": ids.new_id(), "tenant": "default", "happened_at": number, "event_type": "tool_called"}
    fields |= {"component": "test", "message": f"{message} {number}", "metadata": "{}"}
    return tuple(fields.get(name) for name in EVENT_COLUMNS)


def edit(log: Rows, rng: random.Random) -> None:
    index = rng.randrange(len(log))
    log[index] = (*log[index][:8], f"something else {rng.random()}", *log[index][9:])


def remove(log: Rows, rng: random.Random) -> None:
    del log[rng.randrange(len(log))]


def insert(log: Rows, rng: random.Random) -> None:
    log.insert(rng.randrange(len(log)), event(rng.randrange(1000), "it was never so"))


def reorder(log: Rows, rng: random.Random) -> None:
    first, second = rng.sample(range(len(log)), 2)
    log[first], log[second] = log[second], log[first]


def truncate(log: Rows, rng: random.Random) -> None:
    del log[rng.randrange(len(log)) :]


def substitute(log: Rows, rng: random.Random) -> None:
    """Replace the end of the log with other events, at least as many."""
    index = rng.randrange(len(log))
    missing = len(log) - index + rng.randrange(5)
    log[index:] = [event(n, "another end") for n in range(missing)]


REWRITE_KINDS: list[Callable[[Rows, random.Random], None]] = [edit, remove, insert, reorder, truncate, substitute]


def write(connection: sqlite3.Connection, log: Rows) -> None:
    """Write the whole log with matching leaves, tiles and checkpoints, signed with the real key."""
    hashes = [leaf_hash(row) for row in log]
    for table in ("events", "events_waiting", "provenance_leaves", "provenance_tiles", "provenance_checkpoints"):
        connection.execute(f"delete from {table}")
    connection.executemany(
        f"insert into events ({', '.join(EVENT_COLUMNS)}) values ({', '.join('?' * len(EVENT_COLUMNS))})", log
    )
    connection.executemany(
        "insert into provenance_leaves values (?, ?, ?)", [(n, row[0], hashes[n].hex()) for n, row in enumerate(log)]
    )
    connection.executemany("insert into provenance_tiles values (?, ?, ?)", merkle.TreeFrontier().append(hashes)[1])
    for size in {min(size, len(log)) for size in SIZES}:
        root = merkle.compute_root(hashes[:size])
        signed = (size, root.hex(), SIGNER.sign(size, root), size)
        connection.execute("insert into provenance_checkpoints values (?, ?, ?, ?)", signed)
    connection.commit()


@pytest.mark.slow
@requirement("provenance.witnessed")
def test_witness_detects_each_of_1000_rewrites(databases: Databases, tmp_path: Path, clock: FixedClock) -> None:
    path, rng = databases.sqlite(tmp_path / "stentor.db"), random.Random(1847)
    original = [event(n) for n in range(max(SIZES))]
    witness = Witness(WitnessFolder(tmp_path / "witness", "w"), [SIGNER.verifier], clock)
    witnessed_size, policy = 0, WitnessPolicy([witness.verifier], 1)
    hashes = [leaf_hash(row) for row in original]
    for size in SIZES:
        proof = (
            merkle.consistency_proof(lambda level, at: _node(hashes, level, at), witnessed_size, size)
            if witnessed_size
            else []
        )
        witness.add_checkpoint(
            WitnessSubmission(witnessed_size, proof, SIGNER.sign(size, merkle.compute_root(hashes[:size]))).text
        )
        witnessed_size = size
    witnessed_note = witness.newest_note("example.com/log")
    assert witnessed_note is not None
    claim = parse_claim(witnessed_note, [SIGNER.verifier], "the witness", [witness.verifier])
    driver, detected = SqliteDriver(path), 0
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma synchronous = off")
        write(connection, original)
        untouched = verify_run_log(driver, [SIGNER.verifier], [claim], witness_policy=policy)
        assert (untouched.findings, untouched.witnessed) == ([], {"w": 40})
        for number in range(REWRITES):
            log = original[:]
            REWRITE_KINDS[number % len(REWRITE_KINDS)](log, rng)
            for _ in range(rng.randrange(3)):  # Later events, so that the sizes reveal nothing.
                log.append(event(rng.randrange(1000), "later"))
            write(connection, log)
            if number % 50 == 0:
                assert verify_run_log(driver, [SIGNER.verifier]).is_intact, (
                    "consistent in itself: without the witness it is not detected"
                )
                assert not verify_run_log(driver, [SIGNER.verifier], witness_policy=policy).is_intact, (
                    "the cosignature is missing"
                )
            detected += not verify_run_log(driver, [SIGNER.verifier], [claim]).is_intact
    assert detected == REWRITES


def _node(hashes: list[bytes], level: int, index: int) -> bytes:
    return merkle.compute_root(hashes[index << level : (index + 1) << level])
