"""Who has the database and the signing key can make another log that is sound in itself. A witness finds it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from stentor.core import ids
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.runlog import EVENT_COLUMNS, leaf_hash
from stentor.domains.provenance import merkle
from stentor.domains.provenance.audit.checkpoint_claims import parse_claim
from stentor.domains.provenance.audit.verification import WitnessPolicy, verify_run_log
from stentor.domains.provenance.signed_note import generate_signer
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
    found = {"event_id": ids.new_id(), "tenant": "default", "happened_at": number, "event_type": "tool_called"}
    found |= {"component": "test", "message": f"{message} {number}", "metadata": "{}"}
    return tuple(found.get(name) for name in EVENT_COLUMNS)


def edit(log: Rows, dice: random.Random) -> None:
    at = dice.randrange(len(log))
    log[at] = (*log[at][:8], f"something else {dice.random()}", *log[at][9:])


def remove(log: Rows, dice: random.Random) -> None:
    del log[dice.randrange(len(log))]


def insert(log: Rows, dice: random.Random) -> None:
    log.insert(dice.randrange(len(log)), event(dice.randrange(1000), "it was never so"))


def reorder(log: Rows, dice: random.Random) -> None:
    first, second = dice.sample(range(len(log)), 2)
    log[first], log[second] = log[second], log[first]


def truncate(log: Rows, dice: random.Random) -> None:
    del log[dice.randrange(len(log)) :]


def substitute(log: Rows, dice: random.Random) -> None:
    """Cut the end off and go on with another one, at least as long."""
    at = dice.randrange(len(log))
    missing = len(log) - at + dice.randrange(5)
    log[at:] = [event(n, "another end") for n in range(missing)]


KINDS: list[Callable[[Rows, random.Random], None]] = [edit, remove, insert, reorder, truncate, substitute]


def write(raw: sqlite3.Connection, log: Rows) -> None:
    """The whole log with leaves, tiles and checkpoints that fit, signed with the real key."""
    hashes = [leaf_hash(row) for row in log]
    for table in ("events", "events_waiting", "provenance_leaves", "provenance_tiles", "provenance_checkpoints"):
        raw.execute(f"delete from {table}")
    raw.executemany(
        f"insert into events ({', '.join(EVENT_COLUMNS)}) values ({', '.join('?' * len(EVENT_COLUMNS))})", log
    )
    raw.executemany(
        "insert into provenance_leaves values (?, ?, ?)", [(n, row[0], hashes[n].hex()) for n, row in enumerate(log)]
    )
    raw.executemany("insert into provenance_tiles values (?, ?, ?)", merkle.TreeFrontier().append(hashes)[1])
    for size in {min(size, len(log)) for size in SIZES}:
        root = merkle.compute_root(hashes[:size])
        signed = (size, root.hex(), SIGNER.sign(size, root), size)
        raw.execute("insert into provenance_checkpoints values (?, ?, ?, ?)", signed)
    raw.commit()


@requirement("provenance.witnessed")
def test_each_of_a_thousand_rewrites_of_witnessed_history_is_found(
    databases: Databases, tmp_path: Path, clock: FixedClock
) -> None:
    path, dice = databases.sqlite(tmp_path / "stentor.db"), random.Random(1847)
    true = [event(n) for n in range(max(SIZES))]
    witness = Witness(WitnessFolder(tmp_path / "witness", "w"), [SIGNER.verifier], clock)
    seen, asked = 0, WitnessPolicy([witness.verifier], 1)
    hashes = [leaf_hash(row) for row in true]
    for size in SIZES:
        path_there = merkle.consistency_proof(lambda level, at: _node(hashes, level, at), seen, size) if seen else []
        witness.add_checkpoint(
            WitnessSubmission(seen, path_there, SIGNER.sign(size, merkle.compute_root(hashes[:size]))).text
        )
        seen = size
    kept = witness.newest_note("example.com/log")
    assert kept is not None
    claim = parse_claim(kept, [SIGNER.verifier], "the witness", [witness.verifier])
    driver, found = SqliteDriver(path), 0
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("pragma synchronous = off")
        write(raw, true)
        sound = verify_run_log(driver, [SIGNER.verifier], [claim], witness_policy=asked)
        assert (sound.findings, sound.witnessed) == ([], {"w": 40})
        for turn in range(REWRITES):
            log = true[:]
            KINDS[turn % len(KINDS)](log, dice)
            for _ in range(dice.randrange(3)):  # and it goes on, so that the sizes tell nothing
                log.append(event(dice.randrange(1000), "later"))
            write(raw, log)
            if turn % 50 == 0:
                assert verify_run_log(driver, [SIGNER.verifier]).is_intact, (
                    "sound in itself: nothing else would find it"
                )
                assert not verify_run_log(driver, [SIGNER.verifier], witness_policy=asked).is_intact, (
                    "the signature is missing"
                )
            found += not verify_run_log(driver, [SIGNER.verifier], [claim]).is_intact
    assert found == REWRITES


def _node(hashes: list[bytes], level: int, index: int) -> bytes:
    return merkle.compute_root(hashes[index << level : (index + 1) << level])
