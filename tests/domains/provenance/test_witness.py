"""A witness cosigns only checkpoints that extend the last one it signed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import pytest
from starlette.testclient import TestClient

from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.http_client.outbound import OutboundHttp
from stentor.domains.provenance import merkle, store
from stentor.domains.provenance.signing.signed_note import (
    Cosigner,
    NoteError,
    NoteSigner,
    add_cosignature,
    cosigned_at,
    generate_signer,
    parse_witness_key,
)
from stentor.domains.provenance.witness.client import WitnessClient, WitnessTarget, parse_targets
from stentor.domains.provenance.witness.wire import WitnessSubmission, checkpoint_path, parse_submission
from stentor.domains.provenance.witness.witness import Witness, WitnessFolder
from stentor.surfaces import witness as surface
from stentor.testing import FixedClock
from tests.domains.provenance.conftest import Log
from tests.requirements import requirement

# The example in the C2SP tlog-cosignature specification.
PUBLISHED = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
)


@dataclass
class Tree:
    """A log in memory: leaves and the key that signs its checkpoints."""

    leaves: list[bytes]
    signer: NoteSigner = field(default_factory=lambda: generate_signer("example.com/log"))

    def node(self, level: int, index: int) -> bytes:
        return merkle.compute_root(self.leaves[index << level : (index + 1) << level])

    def root(self, size: int) -> bytes:
        return merkle.subtree_hash(self.node, 0, size)

    def note(self, size: int) -> str:
        return self.signer.sign(size, self.root(size))

    def submit(self, old: int, new: int) -> str:
        proof = merkle.consistency_proof(self.node, old, new) if 0 < old < new else []
        return WitnessSubmission(old, proof, self.note(new)).text


def leaves(count: int, mark: bytes = b"") -> list[bytes]:
    return [sha256(b"\0" + mark + bytes([n])).digest() for n in range(count)]


@dataclass
class RunningWitness:
    """A witness of one log, with an HTTP client for it."""

    tree: Tree
    folder: Path
    clock: FixedClock
    client: TestClient
    witness_folder: WitnessFolder
    witness: Witness

    def post(self, body: str) -> tuple[int, str]:
        response = self.client.post("/add-checkpoint", content=body.encode())
        return response.status_code, response.text


def open_witness(folder: Path, log: Tree, clock: FixedClock) -> RunningWitness:
    witness_folder = WitnessFolder(folder, "witness.example/w1")
    witness = Witness(witness_folder, [log.signer.verifier], clock)
    return RunningWitness(log, folder, clock, TestClient(surface.app(witness)), witness_folder, witness)


@pytest.fixture
def running(tmp_path: Path, clock: FixedClock) -> Iterator[RunningWitness]:
    opened = open_witness(tmp_path / "witness", Tree(leaves(40)), clock)
    yield opened
    opened.witness_folder.close()


@requirement("provenance.witness")
def test_witness_cosigns_each_tree_that_extends_the_last(running: RunningWitness) -> None:
    for old, new in ((0, 7), (7, 8), (8, 8), (8, 40)):
        status, line = running.post(running.tree.submit(old, new))
        assert status == 200, line
        assert cosigned_at(running.tree.note(new) + line, running.witness.verifier) == running.clock.now() // 1_000_000
    response = running.client.get(f"/{checkpoint_path('example.com/log')}")
    assert response.status_code == 200
    assert response.text == running.tree.note(40) + line
    assert running.client.get(f"/{checkpoint_path('example.com/other')}").status_code == 404


@requirement("provenance.witness")
def test_proof_from_another_size_returns_409_with_the_signed_size(running: RunningWitness) -> None:
    assert running.post(running.tree.submit(0, 20))[0] == 200
    response = running.client.post("/add-checkpoint", content=running.tree.submit(0, 30).encode())
    assert (response.status_code, response.text, response.headers["content-type"]) == (409, "20\n", "text/x.tlog.size")
    assert running.post(running.tree.submit(0, 10)) == (409, "20\n")


@requirement("provenance.witness")
@pytest.mark.parametrize("size", [20, 21, 39])
def test_rewritten_log_is_rejected_and_stored_as_evidence(running: RunningWitness, size: int) -> None:
    assert running.post(running.tree.submit(0, 20))[0] == 200
    fork = Tree(leaves(40, b"other"), running.tree.signer)
    assert running.post(fork.submit(20, size))[0] == 422
    (evidence,) = running.folder.glob("evidence-*.txt")
    assert evidence.read_text() == fork.submit(20, size)
    assert running.post(running.tree.submit(20, 25))[0] == 200, "the true log is still accepted"


@requirement("provenance.witness")
def test_wrong_proof_of_a_genuine_checkpoint_neither_looks_like_a_rewrite_nor_replaces_evidence(
    running: RunningWitness, caplog: pytest.LogCaptureFixture
) -> None:
    assert running.post(running.tree.submit(0, 20))[0] == 200
    for size in (20, 21):
        assert running.post(WitnessSubmission(20, [bytes(32)], running.tree.note(size)).text)[0] == 422
    assert _rewrites(caplog) == []
    fork = Tree(leaves(40, b"other"), running.tree.signer)
    for _ in range(2):
        assert running.post(fork.submit(20, 20))[0] == 422
    assert len(_rewrites(caplog)) == 1, "one line for each checkpoint, however often it is submitted"
    assert running.post(WitnessSubmission(20, [bytes(32)], running.tree.note(21)).text)[0] == 422
    texts = [path.read_text() for path in running.folder.glob("evidence-*.txt")]
    assert fork.submit(20, 20) in texts
    assert len(texts) == 2


def _rewrites(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines that the witness itself has logged: threads of other tests log too."""
    lines = [record.getMessage() for record in caplog.records if record.name == Witness.__module__]
    return [line for line in lines if line.startswith("witness: log rewritten")]


@requirement("provenance.witness")
def test_many_wrong_proofs_leave_room_for_the_evidence_of_a_rewrite(
    running: RunningWitness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.domains.provenance.witness.witness.MAX_EVIDENCE", 3)
    assert running.post(running.tree.submit(0, 20))[0] == 200
    for size in range(21, 26):
        assert running.post(WitnessSubmission(20, [bytes(32)], running.tree.note(size)).text)[0] == 422
    fork = Tree(leaves(40, b"other"), running.tree.signer)
    for size in (20, 30):
        assert running.post(fork.submit(20, size))[0] == 422
    texts = [path.read_text() for path in running.folder.glob("evidence-*.txt")]
    assert len(texts) == 1 + 3
    assert {fork.submit(20, 20), fork.submit(20, 30)} <= {*texts}


@requirement("provenance.witness")
@pytest.mark.parametrize("character", "\x0b\r\x1c\x85\u2028")
def test_signature_whose_name_has_a_control_character_returns_400(running: RunningWitness, character: str) -> None:
    body = running.tree.submit(0, 20) + f"— a{character}b AAAAAAAA\n"
    assert running.post(body)[0] == 400


@requirement("provenance.witness")
def test_witness_keeps_its_state_across_a_restart(running: RunningWitness) -> None:
    running.post(running.tree.submit(0, 20))
    running.witness_folder.close()
    reopened = open_witness(running.folder, running.tree, running.clock)
    assert reopened.witness.verifier == running.witness.verifier
    assert reopened.post(running.tree.submit(0, 20)) == (409, "20\n")
    assert {path.stat().st_mode & 0o777 for path in running.folder.iterdir()} == {0o600}
    (reopened.folder / "witness.state").unlink()
    reopened.witness_folder.close()
    with pytest.raises(StartRefused, match=r"witness\.state is missing"):
        open_witness(running.folder, running.tree, running.clock)
    running.witness_folder = WitnessFolder(running.folder.parent / "fresh", "witness.example/w2")


@requirement("provenance.witness")
def test_checkpoint_is_not_cosigned_when_the_state_cannot_be_stored(
    running: RunningWitness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("stentor.core.filesystem.write_atomically", disk_full)
        assert running.post(running.tree.submit(0, 5))[0] == 503
    assert running.post(running.tree.submit(0, 4))[0] == 200


def test_checkpoint_of_another_log_or_key_is_rejected(running: RunningWitness) -> None:
    other = Tree(leaves(3), generate_signer("example.com/other"))
    assert running.post(other.submit(0, 3))[0] == 404
    key_forger = Tree(leaves(3), generate_signer("example.com/log"))
    assert running.post(key_forger.submit(0, 3))[0] == 403
    assert running.post(running.tree.submit(5, 5).replace("old 5", "old 6"))[0] == 400


HASH = base64.b64encode(bytes(32)).decode()
MALFORMED = {
    "empty body": "",
    "no old size": "\n\n{note}",
    "size with a leading zero": "old 01\n\n{note}",
    "negative size": "old -1\n\n{note}",
    "short hash": "old 0\nAAAA\n\n{note}",
    "hash that is not base64": "old 0\n!\n\n{note}",
    "too many hashes": "old 0\n" + f"{HASH}\n" * 64 + "\n{note}",
    "no note": "old 0\n\n",
    "no signature": "old 0\n\nexample.com/log\n1\n" + HASH + "\n",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_request_returns_400(running: RunningWitness, body: str) -> None:
    assert running.post(body.replace("{note}", running.tree.note(4)))[0] == 400
    assert running.client.post("/add-checkpoint", content=b"\xff\xfe").status_code == 400
    assert running.client.post("/add-checkpoint", content=b"x" * 70_000).status_code == 413


def test_submission_parses_back_to_the_same_text(running: RunningWitness) -> None:
    text = running.tree.submit(20, 33)
    assert parse_submission(text).text == text


def test_first_submission_with_a_proof_is_rejected(running: RunningWitness) -> None:
    body = WitnessSubmission(0, [bytes(32)], running.tree.note(3)).text
    assert running.post(body)[0] == 422


@requirement("provenance.witness")
def test_published_cosignature_has_the_expected_key_id_and_length() -> None:
    line = (
        "— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZ"
        "qhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
    )
    from stentor.domains.provenance.signing.signed_note import parse_note

    name, key_id, signed = parse_note(PUBLISHED + line)[1][1]
    assert (name, key_id.hex(), len(signed)) == ("witness.example.com/w1", "8d66cf3f", 72)
    assert int.from_bytes(signed[:8], "big") == 1679315147


def test_cosignature_is_valid_only_for_its_body_key_and_time() -> None:
    key = Cosigner.generate("w")
    line = key.cosign(PUBLISHED.partition("\n\n")[0] + "\n", 1_700_000_000)
    assert cosigned_at(PUBLISHED + line, key.verifier) == 1_700_000_000
    assert cosigned_at(PUBLISHED.replace("20852163", "20852164") + line, key.verifier) is None
    assert cosigned_at(PUBLISHED + line, Cosigner.generate("w").verifier) is None
    signed = bytearray(base64.b64decode(line.split()[2]))
    signed[11] ^= 1  # A byte of the timestamp.
    forged = f"— w {base64.b64encode(signed).decode()}\n"
    assert cosigned_at(PUBLISHED + forged, key.verifier) is None
    assert Cosigner.parse(key.text).verifier == key.verifier == parse_witness_key(key.verifier.text)
    with pytest.raises(NoteError, match="no valid signature"):
        add_cosignature(PUBLISHED, forged, key.verifier)
    once = add_cosignature(PUBLISHED, line, key.verifier)
    replaced = add_cosignature(once, key.cosign(PUBLISHED.partition("\n\n")[0] + "\n", 1_700_000_009), key.verifier)
    assert (replaced.count("— w "), cosigned_at(replaced, key.verifier)) == (1, 1_700_000_009)


def test_witness_folder_is_locked_and_needs_a_name_once(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="--name"):
        WitnessFolder(tmp_path / "w", "")
    folder = WitnessFolder(tmp_path / "w", "w")
    with pytest.raises(StartRefused, match="in use"):
        WitnessFolder(tmp_path / "w", "")
    folder.close()
    with pytest.raises(StartRefused, match="not other"):
        WitnessFolder(tmp_path / "w", "other")
    (tmp_path / "w" / "witness.key").chmod(0o644)
    with pytest.raises(StartRefused, match="chmod 600"):
        WitnessFolder(tmp_path / "w", "")


@requirement("provenance.witnessed")
async def test_a_witness_is_asked_again_after_an_outage_of_the_database(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    cosigner = Cosigner.generate("witness.example/w1")
    outbound, targets = OutboundHttp(()), parse_targets([f"{cosigner.verifier.text} http://witness.example"])
    client = WitnessClient(log.db, log.clock, outbound, targets, 1)

    async def cosign(_: WitnessTarget, body: str) -> tuple[int, str]:
        return 200, cosigner.cosign(parse_submission(body).checkpoint.body, 1)

    monkeypatch.setattr(client, "_post", cosign)
    await log.write(2)
    await log.sequencer.drain()
    await log.checkpoints.publish()
    for function in ("newest_checkpoint", "update_note"):
        with monkeypatch.context() as patch:
            patch.setattr(store, function, fail)
            assert not await client.request_signatures()
        assert client.status()[0]
        log.clock.advance(seconds=301)
        assert not client.status()[0], "the signature has been missing for five minutes"
        client = WitnessClient(log.db, log.clock, outbound, targets, 1)
        monkeypatch.setattr(client, "_post", cosign)
    assert await client.request_signatures()
    assert client.status() == (True, "1 of 1 witnesses sign, 1 required")


@requirement("provenance.witnessed")
async def test_a_witness_is_asked_even_if_the_database_is_down_at_the_start(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = WitnessClient(log.db, log.clock, OutboundHttp(()), [], 1)
    requested = asyncio.Event()

    async def request() -> bool:
        requested.set()
        return True

    monkeypatch.setattr(client, "request_signatures", request)
    monkeypatch.setattr(store, "list_newest_checkpoints", fail)
    with pytest.raises(StoreUnavailable):
        await client.restore_signatures()
    running = asyncio.create_task(client.run())
    async with asyncio.timeout(60):
        await requested.wait()
    running.cancel()


def fail(*_: object) -> NoReturn:
    raise StoreUnavailable("The database is unavailable.")
