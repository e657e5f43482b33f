"""The guard before each signing: what is kept outside the database decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor.core import filesystem
from stentor.core.db import Sql, Tx
from stentor.core.errors import RunLogDamaged
from stentor.domains.provenance.checkpoints import CheckpointPublisher, file_sink
from stentor.domains.provenance.signed_note import NoteSigner, generate_signer, open_note, split_notes
from stentor.domains.provenance.signing_guard import Acceptance, ExternalState, SigningGuard
from tests.domains.provenance.conftest import Log
from tests.requirements import requirement

STORED = Sql("select size from provenance_checkpoints order by size")


class Guarded:
    """Checkpoints of a log behind a guard, as after a start; `accepted` are the reasons that were recorded."""

    def __init__(self, log: Log, folder: Path, signer: NoteSigner | None = None) -> None:
        self.log = log
        self.outside = ExternalState(folder, folder / "kept.txt")
        self.accepted: list[str] = []
        self.signer = signer or log.signer
        guard = SigningGuard(log.db, self.outside, lambda: self.signer, lambda: self.signer, self._record)
        self.checkpoints = CheckpointPublisher(
            log.db, log.clock, lambda: self.signer, [file_sink(folder / "kept.txt")], guard
        )

    def _record(self, tx: Tx, acceptance: Acceptance, objection: str) -> None:
        self.accepted.append(acceptance.reason)

    async def sign(self) -> int:
        await self.log.sequencer.drain()
        return (await self.checkpoints.publish()).size

    async def stored(self) -> list[int]:
        return [size for (size,) in await self.log.db.read(lambda tx: tx.rows(STORED))]


@requirement("provenance.held-outside")
async def test_the_state_moves_on_with_each_checkpoint_and_a_fresh_machine_takes_the_stored_one(
    log: Log, tmp_path: Path
) -> None:
    guarded = Guarded(log, tmp_path)
    for size in (2, 4):
        await log.write(2)
        assert await guarded.sign() == size
        assert open_note(str(guarded.outside.read_checkpoint()), [log.signer.verifier]).size == size
    (tmp_path / "provenance.state").unlink()
    await Guarded(log, tmp_path).checkpoints.check()
    assert open_note(str(guarded.outside.read_checkpoint()), [log.signer.verifier]).size == 4


@requirement("provenance.held-outside")
async def test_what_cannot_be_kept_is_not_signed(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(log, tmp_path)
    await log.write(2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "write_atomically", full)
        with pytest.raises(RunLogDamaged, match=r"provenance\.state cannot be written"):
            await guarded.sign()
    assert (await guarded.stored(), "cannot be written" in str(guarded.checkpoints.problem)) == ([], True)
    assert await guarded.sign() == 2
    assert guarded.checkpoints.problem is None


@requirement("provenance.held-outside")
async def test_a_state_that_is_no_checkpoint_of_this_key_stops_the_signing(log: Log, tmp_path: Path) -> None:
    await log.write(2)
    await Guarded(log, tmp_path).sign()
    for text in ("", "nonsense", generate_signer("example.com/log").sign(1, bytes(32))):
        (tmp_path / "provenance.state").write_text(text)
        fresh = Guarded(log, tmp_path)
        await fresh.checkpoints.check()
        assert "another key" in str(fresh.checkpoints.problem)
        with pytest.raises(RunLogDamaged):
            await fresh.sign()


async def test_a_note_that_a_crash_cut_off_the_checkpoint_file_is_passed_over(log: Log, tmp_path: Path) -> None:
    await log.write(2)
    await Guarded(log, tmp_path).sign()
    kept = tmp_path / "kept.txt"
    with kept.open("a") as file:
        file.write("example.com/log\n4\nwPbB2n")
    await log.write(1)
    assert await Guarded(log, tmp_path).sign() == 3
    assert len(split_notes(kept.read_text())) >= 2
    kept.write_text("nothing of the kind\n")
    fresh = Guarded(log, tmp_path)
    await fresh.checkpoints.check()
    assert "has no checkpoint at its end" in str(fresh.checkpoints.problem)


@requirement("provenance.held-outside")
async def test_an_acceptance_of_another_tree_or_key_is_not_taken_and_one_without_need_goes(
    log: Log, tmp_path: Path
) -> None:
    await log.write(2)
    first = Guarded(log, tmp_path)
    await first.sign()
    needless = Acceptance("no need", 2, "00", log.signer.verifier.text)
    first.outside.save_acceptance(needless)
    assert await first.sign() == 2
    assert first.outside.read_acceptance() is None
    other = generate_signer("example.com/log")
    changed = Guarded(log, tmp_path, other)
    root = (await log.db.read(lambda tx: tx.rows(Sql("select root from provenance_checkpoints"))))[0][0]
    for wrong in (Acceptance("r", 2, "00" * 32, other.verifier.text), Acceptance("r", 2, root, needless.key)):
        changed.outside.save_acceptance(wrong)
        with pytest.raises(RunLogDamaged, match="An acceptance is there, but"):
            await changed.sign()
        assert changed.accepted == []
    changed.outside.save_acceptance(Acceptance("the key was stolen", 2, root, other.verifier.text))
    await changed.sign()
    assert (changed.accepted, changed.outside.read_acceptance()) == (["the key was stolen"], None)
    await log.write(1)
    assert await Guarded(log, tmp_path, other).sign() == 3
