"""The signing guard: checkpoints must extend the state that is stored outside the database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stentor.core import filesystem
from stentor.core.db import Sql, Tx
from stentor.core.errors import RunLogDamaged
from stentor.core.runlog import EVENT_COLUMNS, leaf_hash
from stentor.domains.provenance import store
from stentor.domains.provenance.signing.checkpoints import CheckpointPublisher, file_sink
from stentor.domains.provenance.signing.signed_note import NoteSigner, generate_signer, open_note, split_notes
from stentor.domains.provenance.signing.signing_guard import Acceptance, ExternalState, SigningGuard
from stentor.domains.provenance.store import StoredCheckpoint
from tests.domains.provenance.conftest import Log
from tests.requirements import requirement

STORED = Sql("select size from provenance_checkpoints order by size")


class GuardedPublisher:
    """A checkpoint publisher with a signing guard, as after a start of the service."""

    def __init__(self, log: Log, folder: Path, signer: NoteSigner | None = None) -> None:
        self.log = log
        self.external_state = ExternalState(folder, folder / "kept.txt")
        self.accepted_reasons: list[str] = []
        self.signer = signer or log.signer
        guard = SigningGuard(log.db, self.external_state, lambda: self.signer, lambda: self.signer, self._record)
        self.checkpoints = CheckpointPublisher(
            log.db, log.clock, lambda: self.signer, [file_sink(folder / "kept.txt")], guard
        )

    def _record(self, tx: Tx, acceptance: Acceptance, objection: str) -> None:
        self.accepted_reasons.append(acceptance.reason)

    async def sign(self) -> int:
        await self.log.sequencer.drain()
        return (await self.checkpoints.publish()).size

    async def stored(self) -> list[int]:
        return [size for (size,) in await self.log.db.read(lambda tx: tx.rows(STORED))]


def disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@requirement("provenance.held-outside")
async def test_state_follows_each_checkpoint_and_is_restored_from_the_file(log: Log, tmp_path: Path) -> None:
    guarded = GuardedPublisher(log, tmp_path)
    for size in (2, 4):
        await log.write(2)
        assert await guarded.sign() == size
        assert open_note(str(guarded.external_state.read_checkpoint()), [log.signer.verifier]).size == size
    (tmp_path / "provenance.state").unlink()
    await GuardedPublisher(log, tmp_path).checkpoints.check()
    assert open_note(str(guarded.external_state.read_checkpoint()), [log.signer.verifier]).size == 4


@requirement("provenance.held-outside")
async def test_signatures_at_the_same_time_are_made_one_after_the_other(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = GuardedPublisher(log, tmp_path)
    steps: list[str] = []
    save, authorize = SigningGuard.save_checkpoint, SigningGuard.authorize_signing

    async def authorizing(guard: SigningGuard) -> Any:
        steps.append("authorize")
        return await authorize(guard)

    async def saving(guard: SigningGuard, note: str) -> None:
        await save(guard, note)
        steps.append("save")

    monkeypatch.setattr(SigningGuard, "authorize_signing", authorizing)
    monkeypatch.setattr(SigningGuard, "save_checkpoint", saving)
    await log.write(2)
    await log.sequencer.drain()
    await asyncio.gather(guarded.checkpoints.publish(), guarded.checkpoints.publish(), guarded.checkpoints.check())
    assert steps == ["authorize", "save", "authorize", "authorize"]
    assert await guarded.stored() == [2]


@requirement("provenance.held-outside")
async def test_checkpoint_is_not_signed_when_the_state_cannot_be_stored(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guarded = GuardedPublisher(log, tmp_path)
    await log.write(2)
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "write_atomically", disk_full)
        for _ in range(3):
            with pytest.raises(RunLogDamaged, match=r"provenance\.state cannot be written"):
                await guarded.sign()
    assert (await guarded.stored(), "cannot be written" in str(guarded.checkpoints.problem)) == ([], True)
    assert await guarded.sign() == 2
    assert guarded.checkpoints.problem is None
    said = [line.getMessage().split(" reason=")[0] for line in caplog.records if "signing" in line.getMessage()]
    assert said == ["signed checkpoints: signing blocked", "signed checkpoints: signing recovered"]


@requirement("provenance.held-outside")
async def test_invalid_or_foreign_state_stops_signing(log: Log, tmp_path: Path) -> None:
    await log.write(2)
    await GuardedPublisher(log, tmp_path).sign()
    foreign = generate_signer("example.com/log").sign(1, bytes(32))
    for text, problem in (("", "is damaged"), ("nonsense", "is damaged"), (foreign, "another key")):
        (tmp_path / "provenance.state").write_text(text)
        restarted = GuardedPublisher(log, tmp_path)
        await restarted.checkpoints.check()
        assert problem in str(restarted.checkpoints.problem)
        with pytest.raises(RunLogDamaged):
            await restarted.sign()


async def test_truncated_note_in_the_checkpoint_file_is_ignored(log: Log, tmp_path: Path) -> None:
    await log.write(2)
    await GuardedPublisher(log, tmp_path).sign()
    checkpoint_file = tmp_path / "kept.txt"
    with checkpoint_file.open("a") as file:
        file.write("example.com/log\n4\nwPbB2n")
    await log.write(1)
    assert await GuardedPublisher(log, tmp_path).sign() == 3
    notes = split_notes(checkpoint_file.read_text())
    assert [open_note(note, [log.signer.verifier]).size for note in notes] == [2, 3]
    checkpoint_file.write_text("nothing of the kind\n")
    restarted = GuardedPublisher(log, tmp_path)
    await restarted.checkpoints.check()
    assert "has no checkpoint at its end" in str(restarted.checkpoints.problem)


async def test_undelivered_checkpoint_is_delivered_again(log: Log, tmp_path: Path) -> None:
    checkpoint_file = tmp_path / "mount" / "kept.txt"
    log.checkpoints.sinks.append(file_sink(checkpoint_file))
    await log.write(2)
    await log.sequencer.run_once()
    assert "was not delivered" in str(log.checkpoints.delivery_problem)
    checkpoint_file.parent.mkdir()
    log.clock.advance(seconds=3)
    await log.sequencer.run_once()
    assert len(split_notes(checkpoint_file.read_text())) == 1
    assert log.checkpoints.delivery_problem is None


async def test_note_that_does_not_fit_on_the_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_file = tmp_path / "kept.txt"
    checkpoint_file.write_text("the last note\n\n")
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        await file_sink(checkpoint_file)(StoredCheckpoint(1, "00", "a note\n", 0))
    assert checkpoint_file.read_text() == "the last note\n\n"


@requirement("provenance.held-outside")
async def test_acceptance_must_match_tree_and_key_and_is_dropped_if_unneeded(log: Log, tmp_path: Path) -> None:
    await log.write(2)
    first = GuardedPublisher(log, tmp_path)
    await first.sign()
    unneeded = Acceptance("no need", 2, "00", log.signer.verifier.text)
    first.external_state.save_acceptance(unneeded)
    assert await first.sign() == 2
    assert first.external_state.read_acceptance() is None
    other = generate_signer("example.com/log")
    with_new_key = GuardedPublisher(log, tmp_path, other)
    root = (await log.db.read(lambda tx: tx.rows(Sql("select root from provenance_checkpoints"))))[0][0]
    for mismatched in (Acceptance("r", 2, "00" * 32, other.verifier.text), Acceptance("r", 2, root, unneeded.key)):
        with_new_key.external_state.save_acceptance(mismatched)
        with pytest.raises(RunLogDamaged, match="An acceptance is there, but"):
            await with_new_key.sign()
        assert with_new_key.accepted_reasons == []
    with_new_key.external_state.save_acceptance(Acceptance("the key was stolen", 2, root, other.verifier.text))
    await with_new_key.sign()
    assert (with_new_key.accepted_reasons, with_new_key.external_state.read_acceptance()) == (
        ["the key was stolen"],
        None,
    )
    await log.write(1)
    assert await GuardedPublisher(log, tmp_path, other).sign() == 3


def rewrite_first_event(tx: Tx) -> None:
    """Change an event and recompute its leaf and tile, as somebody who can write to the database."""
    tx.run(Sql("update events set message = 'other' where event_id = (select min(event_id) from events)"))
    rows = tx.rows(Sql(f"select {', '.join(EVENT_COLUMNS)} from events order by event_id"))
    leaves = [leaf_hash(row) for row in rows]
    tx.run(Sql("update provenance_leaves set hash = :hash where number = 0"), hash=leaves[0].hex())
    tx.run(Sql("update provenance_tiles set hashes = :hashes where level = 0"), hashes=b"".join(leaves))


def remove_last_event(tx: Tx) -> None:
    """Remove an event with its leaf and its hash in the tile, but not the checkpoint over it."""
    tx.run(Sql("delete from events where event_id = (select max(event_id) from events)"))
    last = store.tree_size(tx) - 1
    tx.run(Sql("delete from provenance_leaves where number = :last"), last=last)
    (tile,) = tx.rows(Sql("select hashes from provenance_tiles where level = 0"))[0]
    tx.run(Sql("update provenance_tiles set hashes = :hashes where level = 0"), hashes=bytes(tile)[: last * 32])


@requirement("provenance.held-outside")
@pytest.mark.parametrize("change", [rewrite_first_event, remove_last_event])
async def test_accepted_history_is_signed_though_the_database_still_has_the_old_checkpoint(
    log: Log, tmp_path: Path, change: Callable[[Tx], None]
) -> None:
    await log.write(3)
    await GuardedPublisher(log, tmp_path).sign()
    await log.db.write(change)
    log.sequencer = log.new_sequencer()  # the other one remembers the tiles
    restarted = GuardedPublisher(log, tmp_path)
    with pytest.raises(RunLogDamaged):
        await restarted.sign()
    size = await log.db.read(store.tree_size)
    root = (await log.db.read(lambda tx: store.root_at(tx, size))).hex()
    restarted.external_state.save_acceptance(Acceptance("repaired", size, root, log.signer.verifier.text))
    assert await restarted.sign() == size
    await log.write(2)
    assert await GuardedPublisher(log, tmp_path).sign() == size + 2
    assert (restarted.accepted_reasons, await restarted.stored()) == (["repaired"], [size, size + 2])


@requirement("provenance.held-outside")
async def test_stored_checkpoint_that_the_tree_does_not_extend_can_be_accepted(log: Log, tmp_path: Path) -> None:
    await log.write(3)
    guarded = GuardedPublisher(log, tmp_path)
    await guarded.sign()
    await log.db.write(lambda tx: tx.run(Sql("update provenance_checkpoints set root = 'other'")))
    with pytest.raises(RunLogDamaged, match="accept"):
        await guarded.sign()
    root = (await log.db.read(lambda tx: store.root_at(tx, 3))).hex()
    guarded.external_state.save_acceptance(Acceptance("repaired", 3, root, log.signer.verifier.text))
    assert await guarded.sign() == 3
