"""Signed notes: format, signatures, refusal of malformed notes, and key files."""

from __future__ import annotations

import base64
import itertools
import stat
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import example, given
from hypothesis import strategies as st

from stentor.core import settings
from stentor.core.errors import StartRefused
from stentor.domains.provenance.signing import keyfile, signed_note
from stentor.domains.provenance.signing.signed_note import LogCheckpoint, NoteError
from tests.requirements import requirement

SIGNER = signed_note.generate_signer("example.com/log")
ROOT = sha256(b"root").digest()
NOTE = SIGNER.sign(12, ROOT)
# The key and note of the example in the documentation of signed notes (golang.org/x/mod/sumdb/note).
PUBLISHED_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PUBLISHED_NOTE = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)


@requirement("provenance.signed-checkpoints")
def test_checkpoint_note_follows_the_specification_and_verifies() -> None:
    body, _, signed = NOTE.partition("\n\n")
    assert body.split("\n") == ["example.com/log", "12", base64.b64encode(ROOT).decode()]
    dash, name, encoded = signed.removesuffix("\n").split(" ")
    raw = base64.b64decode(encoded)
    key_name, key_id, key = SIGNER.verifier.text.split("+", 2)
    public = base64.b64decode(key)
    assert (dash, name, key_name, public[:1], raw[:4].hex()) == (
        "—",
        "example.com/log",
        "example.com/log",
        b"\1",
        key_id,
    )
    assert key_id == sha256(b"example.com/log\n\1" + public[1:]).hexdigest()[:8]
    Ed25519PublicKey.from_public_bytes(public[1:]).verify(raw[4:], f"{body}\n".encode())


@requirement("provenance.signed-checkpoints")
def test_published_note_verifies_with_its_published_key() -> None:
    verifier = signed_note.parse_verifier(PUBLISHED_KEY)
    body, _, line = PUBLISHED_NOTE.rpartition("\n\n")
    raw = base64.b64decode(line.split(" ")[2])
    assert raw[:4] == verifier.key_id
    assert verifier.is_signature_valid(f"{body}\n", raw[4:])
    assert not verifier.is_signature_valid(f"{body}!\n", raw[4:])


@requirement("provenance.signed-checkpoints")
@given(st.integers(0, len(NOTE.encode()) - 1), st.integers(1, 255))
@example(NOTE.index("=\n\n") - 1, 3)
@example(len(NOTE.encode()) - 3, 3)
def test_note_with_one_altered_byte_is_rejected(index: int, change: int) -> None:
    data = bytearray(NOTE.encode())
    data[index] ^= change
    text = data.decode("utf-8", "replace")
    with pytest.raises(NoteError):
        signed_note.open_note(text, [SIGNER.verifier])


def test_note_opens_only_with_its_own_key() -> None:
    assert signed_note.open_note(NOTE, [SIGNER.verifier]) == LogCheckpoint("example.com/log", 12, ROOT)
    other_key = signed_note.generate_signer("example.com/log").verifier
    other_origin = signed_note.generate_signer("example.com/other").verifier
    assert signed_note.open_note(NOTE, [other_key, other_origin, SIGNER.verifier]).size == 12
    for keys in ([], [other_key], [other_origin]):
        with pytest.raises(NoteError, match="no known key"):
            signed_note.open_note(NOTE, keys)


def test_note_may_carry_witness_signatures() -> None:
    witness = signed_note.generate_signer("witness.example")
    line = witness.sign_body(LogCheckpoint("example.com/log", 12, ROOT).body)
    assert signed_note.open_note(NOTE + line, [SIGNER.verifier]).size == 12
    with pytest.raises(NoteError, match="no known key"):
        signed_note.open_note(NOTE + line, [witness.verifier])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        NOTE.removesuffix("\n"),
        NOTE.replace("\n12\n", "\n012\n"),
        NOTE.replace("\n12\n", "\n-1\n"),
        NOTE.replace("\n12\n", "\n١٢\n"),
        NOTE.replace("\n\n", "\n"),
        NOTE.replace("—", "-"),
        NOTE.replace("example.com/log\n", "\n", 1),
        NOTE + "— x y\n",
        NOTE + NOTE,
        NOTE + NOTE.rpartition("\n\n")[2] * 20,
    ],
    ids=itertools.count(),
)
def test_malformed_note_is_rejected(text: str) -> None:
    with pytest.raises(NoteError):
        signed_note.parse_note(text)


def test_appended_notes_are_split_again() -> None:
    notes = [NOTE, SIGNER.sign(13, ROOT), SIGNER.sign(14, ROOT)]
    assert signed_note.split_notes("\n".join(notes)) == notes
    assert signed_note.split_notes("".join(notes)) == notes
    assert signed_note.split_notes("\n\n") == []


def test_key_file_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    config = settings.load({"SERVICE_DATA_DIR": str(tmp_path)})
    path = keyfile.key_path(config)
    signer = keyfile.ensure_signer(path)
    assert (path, stat.S_IMODE(path.stat().st_mode)) == (tmp_path / "keys" / "provenance.key", 0o600)
    assert keyfile.ensure_signer(path).verifier == signer.verifier == keyfile.find_verifier(path)
    assert signer.verifier.name != signed_note.generate_signer().verifier.name
    path.chmod(0o640)
    with pytest.raises(StartRefused, match="chmod 600"):
        keyfile.ensure_signer(path)


def test_configured_key_path_and_origin_are_used(tmp_path: Path) -> None:
    environ = {"SERVICE_DATA_DIR": str(tmp_path), "SERVICE_PROVENANCE_KEY": str(tmp_path / "else" / "log.key")}
    path = keyfile.key_path(settings.load(environ))
    assert keyfile.ensure_signer(path, "example.com/runs").verifier.name == "example.com/runs"
    assert keyfile.ensure_signer(path).verifier.name == "example.com/runs"
    with pytest.raises(StartRefused, match="SERVICE_PROVENANCE_ORIGIN"):
        keyfile.ensure_signer(path, "example.com/others")
    with pytest.raises(StartRefused, match="name of a log"):
        keyfile.ensure_signer(tmp_path / "new.key", "two words")


@pytest.mark.parametrize(
    "text",
    ["", "PRIVATE+KEY+a+00000000+AAAA", SIGNER.verifier.text, "\udcff"],
    ids=["empty", "short", "public", "bytes"],
)
def test_invalid_key_file_stops_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.key"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    path.chmod(0o600)
    with pytest.raises(StartRefused, match="is not a signed-note key"):
        keyfile.ensure_signer(path)
