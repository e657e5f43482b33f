"""Whether an event fits the signed log: recomputed from its bytes up, step by step, in plain words. Pure."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any, Literal

import msgspec

from stentor.domains.provenance import proofs
from stentor.domains.provenance.notes import Checkpoint, NoteError, open_note, read_verifier

Verdict = Literal["fits", "unsigned", "wrong"]
HEADLINES: dict[Verdict, str] = {
    "fits": "It fits: the event is in the signed log, as it was recorded.",
    "unsigned": "It fits the tree; that this tree is the signed one could not be verified.",
    "wrong": "It does not fit: the log, or this event, is not what was recorded and signed.",
}
LOOK = "Run stentor provenance verify to see all that was changed, and keep a copy of the database before that."
_NOT_AS_SIGNED = "The signed checkpoint has another root than the tree has now for the same number of events."


class Step(msgspec.Struct, frozen=True):
    """One thing that was looked at; `fits` is None where it could not be."""

    fits: bool | None
    said: str


class Check(msgspec.Struct, frozen=True):
    verdict: Verdict
    steps: list[Step]

    @property
    def headline(self) -> str:
        return HEADLINES[self.verdict]


def check(proof: dict[str, Any], key: str | None, recorded: str | None) -> Check:
    """`proof` as the gateway answers it, `key` the verifier key, `recorded` the hash in the log's own table in hex.

    Of the proof only the event's bytes, its number and the path are used; the rest is computed or signed.
    """
    signed, signature = _signed(proof["checkpoint"], key)
    size, root = (signed.size, signed.root) if signed else (proof["size"], _bytes(proof["root"]))
    steps = [*_event(proof, recorded, size, root), *signature]
    if signed and (signed.size != proof["size"] or signed.root != _bytes(proof["root"])):
        steps.append(Step(False, _NOT_AS_SIGNED))
    if any(step.fits is False for step in steps):
        return Check("wrong", [*steps, Step(None, LOOK)])
    return Check("fits" if all(step.fits for step in steps) else "unsigned", steps)


def _event(proof: dict[str, Any], recorded: str | None, size: int, root: bytes) -> list[Step]:
    """The bytes name the event, and their hash leads by the path to the root."""
    number, path = proof["number"], [_bytes(one) for one in proof["hashes"]]
    leaf = sha256(b"\0" + proof["event"].encode()).digest()
    steps = [] if _names(proof) else [Step(False, "The bytes that the proof is for are those of another event.")]
    if proofs.includes(leaf, number, size, path, root):
        said = f"The hash of the event leads over {len(path):,} hashes to the root of the tree of {size:,} events."
        return [*steps, Step(True, said)]
    if recorded is not None and recorded != leaf.hex():
        steps.append(Step(False, f"The event was changed: number {number:,} was recorded with another hash."))
        if _leads(recorded, number, size, path, root):
            return [*steps, Step(True, "The hash that was recorded leads to the root: the tree itself is as it was.")]
    return [*steps, Step(False, "The path does not lead to the root: hashes of the tree, or its size, were changed.")]


def _leads(recorded: str, number: int, size: int, path: list[bytes], root: bytes) -> bool:
    try:
        return proofs.includes(bytes.fromhex(recorded), number, size, path, root)
    except ValueError:
        return False


def _names(proof: dict[str, Any]) -> bool:
    told = msgspec.json.decode(proof["event"])
    return isinstance(told, dict) and told.get("event_id") == proof["provenance_id"]


def _signed(note: str | None, key: str | None) -> tuple[Checkpoint | None, list[Step]]:
    """What the checkpoint says if it can be believed, and why not if it cannot."""
    if note is None:
        return None, [Step(None, "The next signed checkpoint covers it: about once a minute, or when an admin signs.")]
    if key is None:
        return None, [Step(None, "The service has no public key here, so the signature could not be verified.")]
    try:
        verifier = read_verifier(key)
        checkpoint = open_note(note, [verifier])
    except NoteError as error:
        return None, [Step(False, f"The checkpoint cannot be believed: {error}.")]
    said = f"The signature of the checkpoint of {checkpoint.size:,} events is that of key {verifier.key_id.hex()}."
    return checkpoint, [Step(True, said)]


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
