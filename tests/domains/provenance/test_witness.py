"""A witness signs what extends all that it signed before, and nothing else."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from stentor.core.errors import StartRefused
from stentor.domains.provenance import merkle
from stentor.domains.provenance.signed_note import (
    NoteError,
    NoteSigner,
    add_cosignature,
    cosigned_at,
    generate_cosigner,
    generate_signer,
    parse_cosigner,
    parse_witness_key,
)
from stentor.domains.provenance.witness.wire import WitnessSubmission, checkpoint_path, parse_submission
from stentor.domains.provenance.witness.witness import Witness, WitnessFolder
from stentor.surfaces import witness as surface
from stentor.testing import FixedClock
from tests.requirements import requirement

# The example of C2SP tlog-cosignature.
PUBLISHED = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
)


@dataclass
class Tree:
    """A log of leaves in memory, signed by its key."""

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
class Stand:
    """A witness that watches one log, over HTTP."""

    tree: Tree
    folder: Path
    clock: FixedClock
    http: TestClient
    opened: WitnessFolder
    witness: Witness

    def post(self, body: str) -> tuple[int, str]:
        answer = self.http.post("/add-checkpoint", content=body.encode())
        return answer.status_code, answer.text


def stand(folder: Path, log: Tree, clock: FixedClock) -> Stand:
    opened = WitnessFolder(folder, "witness.example/w1")
    made = Witness(opened, [log.signer.verifier], clock)
    return Stand(log, folder, clock, TestClient(surface.app(made)), opened, made)


@pytest.fixture
def one(tmp_path: Path, clock: FixedClock) -> Iterator[Stand]:
    made = stand(tmp_path / "witness", Tree(leaves(40)), clock)
    yield made
    made.opened.close()


@requirement("provenance.witness")
def test_a_witness_signs_each_tree_that_extends_the_one_before(one: Stand) -> None:
    for old, new in ((0, 7), (7, 8), (8, 8), (8, 40)):
        status, line = one.post(one.tree.submit(old, new))
        assert status == 200, line
        assert cosigned_at(one.tree.note(new) + line, one.witness.verifier) == one.clock.now() // 1_000_000
    shown = one.http.get(f"/{checkpoint_path('example.com/log')}")
    assert shown.status_code == 200
    assert shown.text == one.tree.note(40) + line
    assert one.http.get(f"/{checkpoint_path('example.com/other')}").status_code == 404


@requirement("provenance.witness")
def test_a_proof_from_another_size_is_answered_with_the_size_that_was_signed(one: Stand) -> None:
    assert one.post(one.tree.submit(0, 20))[0] == 200
    answer = one.http.post("/add-checkpoint", content=one.tree.submit(0, 30).encode())
    assert (answer.status_code, answer.text, answer.headers["content-type"]) == (409, "20\n", "text/x.tlog.size")
    assert one.post(one.tree.submit(0, 10)) == (409, "20\n")


@requirement("provenance.witness")
@pytest.mark.parametrize("size", [20, 21, 39])
def test_a_log_that_was_rewritten_is_refused_and_kept_as_evidence(one: Stand, size: int) -> None:
    assert one.post(one.tree.submit(0, 20))[0] == 200
    fork = Tree(leaves(40, b"other"), one.tree.signer)
    assert one.post(fork.submit(20, size))[0] == 422
    (evidence,) = one.folder.glob("evidence-*.txt")
    assert evidence.read_text() == fork.submit(20, size)
    assert one.post(one.tree.submit(20, 25))[0] == 200, "and the true one goes on"


@requirement("provenance.witness")
def test_a_witness_remembers_across_a_restart_what_it_signed(one: Stand) -> None:
    one.post(one.tree.submit(0, 20))
    one.opened.close()
    again = stand(one.folder, one.tree, one.clock)
    assert again.witness.verifier == one.witness.verifier
    assert again.post(one.tree.submit(0, 20)) == (409, "20\n")
    assert {path.stat().st_mode & 0o777 for path in one.folder.iterdir()} == {0o600}
    (again.folder / "witness.state").unlink()
    again.opened.close()
    with pytest.raises(StartRefused, match=r"witness\.state is missing"):
        stand(one.folder, one.tree, one.clock)
    one.opened = WitnessFolder(one.folder.parent / "fresh", "witness.example/w2")


@requirement("provenance.witness")
def test_what_cannot_be_kept_is_not_signed(one: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("stentor.core.filesystem.write_atomically", full)
        assert one.post(one.tree.submit(0, 5))[0] == 503
    assert one.post(one.tree.submit(0, 4))[0] == 200


def test_a_checkpoint_of_another_log_or_key_is_refused(one: Stand) -> None:
    other = Tree(leaves(3), generate_signer("example.com/other"))
    assert one.post(other.submit(0, 3))[0] == 404
    thief = Tree(leaves(3), generate_signer("example.com/log"))
    assert one.post(thief.submit(0, 3))[0] == 403
    assert one.post(one.tree.submit(5, 5).replace("old 5", "old 6"))[0] == 400


HASH = base64.b64encode(bytes(32)).decode()
MALFORMED = {
    "nothing": "",
    "no old size": "\n\n{note}",
    "a size with a zero before it": "old 01\n\n{note}",
    "a negative size": "old -1\n\n{note}",
    "a hash that is short": "old 0\nAAAA\n\n{note}",
    "a hash that is no base64": "old 0\n!\n\n{note}",
    "too many hashes": "old 0\n" + f"{HASH}\n" * 64 + "\n{note}",
    "no note": "old 0\n\n",
    "no signature": "old 0\n\nexample.com/log\n1\n" + HASH + "\n",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_400(one: Stand, body: str) -> None:
    assert one.post(body.replace("{note}", one.tree.note(4)))[0] == 400
    assert one.http.post("/add-checkpoint", content=b"\xff\xfe").status_code == 400
    assert one.http.post("/add-checkpoint", content=b"x" * 70_000).status_code == 413


def test_a_submission_is_read_as_it_was_written(one: Stand) -> None:
    text = one.tree.submit(20, 33)
    assert parse_submission(text).text == text


def test_a_proof_for_a_log_that_the_witness_never_saw_is_refused(one: Stand) -> None:
    body = WitnessSubmission(0, [bytes(32)], one.tree.note(3)).text
    assert one.post(body)[0] == 422


@requirement("provenance.witness")
def test_the_published_example_of_a_cosignature_has_its_key_id_and_length() -> None:
    line = (
        "— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZ"
        "qhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
    )
    from stentor.domains.provenance.signed_note import parse_note

    name, key_id, signed = parse_note(PUBLISHED + line)[1][1]
    assert (name, key_id.hex(), len(signed)) == ("witness.example.com/w1", "8d66cf3f", 72)
    assert int.from_bytes(signed[:8], "big") == 1679315147


def test_a_cosignature_holds_for_its_body_key_and_time_alone() -> None:
    key = generate_cosigner("w")
    line = key.cosign(PUBLISHED.partition("\n\n")[0] + "\n", 1_700_000_000)
    assert cosigned_at(PUBLISHED + line, key.verifier) == 1_700_000_000
    assert cosigned_at(PUBLISHED.replace("20852163", "20852164") + line, key.verifier) is None
    assert cosigned_at(PUBLISHED + line, generate_cosigner("w").verifier) is None
    signed = bytearray(base64.b64decode(line.split()[2]))
    signed[11] ^= 1  # the time
    forged = f"— w {base64.b64encode(signed).decode()}\n"
    assert cosigned_at(PUBLISHED + forged, key.verifier) is None
    assert parse_cosigner(key.text).verifier == key.verifier == parse_witness_key(key.verifier.text)
    with pytest.raises(NoteError, match="no valid signature"):
        add_cosignature(PUBLISHED, forged, key.verifier)
    once = add_cosignature(PUBLISHED, line, key.verifier)
    again = add_cosignature(once, key.cosign(PUBLISHED.partition("\n\n")[0] + "\n", 1_700_000_009), key.verifier)
    assert (again.count("— w "), cosigned_at(again, key.verifier)) == (1, 1_700_000_009)


def test_a_witness_folder_is_held_by_one_process_and_needs_a_name_once(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="--name"):
        WitnessFolder(tmp_path / "w", "")
    opened = WitnessFolder(tmp_path / "w", "w")
    with pytest.raises(StartRefused, match="in use"):
        WitnessFolder(tmp_path / "w", "")
    opened.close()
    with pytest.raises(StartRefused, match="not other"):
        WitnessFolder(tmp_path / "w", "other")
    (tmp_path / "w" / "witness.key").chmod(0o644)
    with pytest.raises(StartRefused, match="chmod 600"):
        WitnessFolder(tmp_path / "w", "")
