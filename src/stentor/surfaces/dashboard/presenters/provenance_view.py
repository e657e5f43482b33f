"""Presents a run (its tree of events and the records it links to) and checks an inclusion proof step by step.

Pure functions; the Merkle tree and the signatures are in `domains.provenance`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Literal

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.domains.provenance import merkle
from stentor.domains.provenance.signing.signed_note import LogCheckpoint, NoteError, open_note, parse_verifier
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.presenters.notes.note_rendering import note_url

MAX_NESTING = 6
"""Deeper branches are displayed at this depth, as narrow screens and browsers have a limit."""
RunEvent = JsonObject
"""An event of the operation `provenance.run`."""
LINKED_RECORDS = {
    "message_id": ("message", "/messages/"),
    "update_id": ("update", "/governance/updates/"),
    "checkpoint_id": ("checkpoint", "/governance/checkpoints/"),
    "rollback_id": ("rollback", "/governance/rollbacks/"),
}
"""Members of an event's metadata that are ids of records with a page: kind and path."""
ProofVerdict = Literal["fits", "unsigned", "wrong"]
HEADLINES: dict[ProofVerdict, str] = {
    "fits": "Verified: the event is in the signed log, as recorded.",
    "unsigned": "Consistent with the tree; whether this tree is the signed one could not be verified.",
    "wrong": "Failed: the log or this event is not what was recorded and signed.",
}
VERIFY_ADVICE = "Copy the database, then run stentor provenance verify to see all changes."
_CHECKPOINT_MISMATCH = "The signed checkpoint has another root than the current tree of the same size."


class RecordLink(msgspec.Struct, frozen=True):
    kind: str
    id: str
    address: str


class TreeMarkup(msgspec.Struct, frozen=True):
    """A token of the tree for the template: `list` and `end` of a list, `event` and `done` of a list item."""

    kind: str
    event: RunEvent | None = None
    links: list[RecordLink] = []


_StackEntry = tuple[TreeMarkup | RunEvent, int]
"""What comes next, and its depth."""


def walk_tree(events: list[RunEvent]) -> Iterator[TreeMarkup]:
    """Yield the tokens of the tree. `events` are ordered oldest first.

    The first child in the same task follows its parent in the same list; other children are nested branches. Events
    that no root leads to (the parents form a cycle) are at the top too, so that none is left out.
    """
    event_ids = {event["provenance_id"] for event in events}
    children: dict[str, list[RunEvent]] = {}
    for event in events:
        children.setdefault(str(event["parent_provenance_id"]), []).append(event)
    roots = [event for event in events if event["parent_provenance_id"] not in event_ids]
    seen: set[str] = set()
    yield TreeMarkup("list")
    # Because of `seen`, the second part has only the events of cycles.
    for root in (*roots, *events):
        yield from _walk_from(root, children, seen)
    yield TreeMarkup("end")


def _walk_from(root: RunEvent, children: dict[str, list[RunEvent]], seen: set[str]) -> Iterator[TreeMarkup]:
    # A stack, not recursion: a run may be as deep as it is long.
    stack: list[_StackEntry] = [(root, 0)]
    while stack:
        entry, depth = stack.pop()
        if isinstance(entry, TreeMarkup):
            yield entry
        elif entry["provenance_id"] not in seen:
            seen.add(entry["provenance_id"])
            yield TreeMarkup("event", entry, event_links(entry))
            stack += reversed(_entries_after(entry, children.get(entry["provenance_id"], []), depth))


def _entries_after(event: RunEvent, children: list[RunEvent], depth: int) -> list[_StackEntry]:
    """Return the rest of the event's list item, and what follows it in the same list."""
    successor = next((child for child in children if child["task_id"] == event["task_id"]), None)
    branches = [child for child in children if child is not successor]
    is_nested = depth < MAX_NESTING and bool(branches)
    inner: list[_StackEntry] = [(child, depth + is_nested) for child in branches]
    rest: list[_StackEntry] = [(successor, depth)] if successor else []
    done: _StackEntry = (TreeMarkup("done"), depth)
    if not is_nested:
        return [done, *inner, *rest]
    return [(TreeMarkup("list"), depth), *inner, (TreeMarkup("end"), depth), done, *rest]


def event_links(event: RunEvent) -> list[RecordLink]:
    """Return links to the records that the event names."""
    metadata = event["metadata"] if isinstance(event["metadata"], dict) else {}
    links = []
    if event["task_id"]:
        links.append(RecordLink("task", event["task_id"], f"/tasks/{quote_segment(event['task_id'])}"))
    if event["agent_id"]:
        links.append(RecordLink("agent", event["agent_id"], f"/agents/{quote_segment(event['agent_id'])}"))
    for name, (kind, base_path) in LINKED_RECORDS.items():
        if metadata.get(name) and isinstance(metadata[name], str):
            links.append(RecordLink(kind, metadata[name], base_path + quote_segment(metadata[name])))
    path = metadata.get("path")
    if event["event_type"].startswith("memory_") and path and isinstance(path, str):
        links.append(RecordLink("note", path, note_url(path, str(metadata.get("vault", DEFAULT_VAULT)))))
    return links


def run_links(events: list[RunEvent]) -> dict[str, list[RecordLink]]:
    """Return the links of a run by kind, without duplicates, in the order of their first event."""
    links_by_kind: dict[str, list[RecordLink]] = {}
    for link in dict.fromkeys(link for event in events for link in event_links(event)):
        links_by_kind.setdefault(link.kind, []).append(link)
    return links_by_kind


def run_duration_ms(events: list[RunEvent]) -> float:
    """Return the milliseconds from the first event to the last one."""
    times = [datetime.fromisoformat(event["timestamp"]) for event in events]
    return (max(times) - min(times)).total_seconds() * 1000


class CheckStep(msgspec.Struct, frozen=True):
    """One check and its result; `is_valid` is None where the check was not possible."""

    is_valid: bool | None
    text: str


class ProofCheck(msgspec.Struct, frozen=True):
    """The result of all checks of a proof."""

    verdict: ProofVerdict
    steps: list[CheckStep]

    @property
    def headline(self) -> str:
        return HEADLINES[self.verdict]


def check_proof(proof: JsonObject, key: str | None, recorded: str | None) -> ProofCheck:
    """Check the output of `provenance.proof`.

    `key` is the public verifier key, `recorded` the leaf hash in the log's table, in hex. Tree size and root are taken
    from the checkpoint if its signature is valid, else from the proof.
    """
    signed, signature = _check_signature(proof["checkpoint"], key)
    size, root = (signed.size, signed.root) if signed else (proof["size"], _decode_base64(proof["root"]))
    steps = [*_check_event(proof, recorded, size, root), *signature]
    # A validly signed checkpoint of another tree proves nothing about this one.
    if signed and (signed.size != proof["size"] or signed.root != _decode_base64(proof["root"])):
        steps.append(CheckStep(False, _CHECKPOINT_MISMATCH))
    if any(step.is_valid is False for step in steps):
        return ProofCheck("wrong", [*steps, CheckStep(None, VERIFY_ADVICE)])
    return ProofCheck("fits" if all(step.is_valid for step in steps) else "unsigned", steps)


def _check_event(proof: JsonObject, recorded: str | None, size: int, root: bytes) -> list[CheckStep]:
    """Check that the bytes are those of the event, and that their hash leads along the path to the root."""
    number, path = proof["number"], [_decode_base64(text) for text in proof["hashes"]]
    steps = []
    if proof["event"] is None:
        leaf = _decode_base64(proof["leaf_hash"])
        steps.append(
            CheckStep(None, "The event is in an archive that cannot be read here, so only its hash was checked.")
        )
    else:
        leaf = sha256(b"\0" + proof["event"].encode()).digest()  # the leaf hash of RFC 6962
        if not _is_same_event(proof):
            steps.append(CheckStep(False, "The proof is for the bytes of another event."))
    if merkle.verify_inclusion(leaf, number, size, path, root):
        text = f"The hash of the event leads through {len(path):,} hashes to the root of the tree of {size:,} events."
        return [*steps, CheckStep(True, text)]
    # Not included. If the recorded hash is, then the event was changed and the tree was not.
    if recorded is not None and recorded != leaf.hex():
        steps.append(CheckStep(False, f"The event was changed: number {number:,} was recorded with another hash."))
        if _is_included(recorded, number, size, path, root):
            return [*steps, CheckStep(True, "The recorded hash leads to the root: the tree itself is unchanged.")]
    return [
        *steps,
        CheckStep(False, "The path does not lead to the root: hashes of the tree, or its size, were changed."),
    ]


def _is_included(recorded: str, number: int, size: int, path: list[bytes], root: bytes) -> bool:
    try:
        return merkle.verify_inclusion(bytes.fromhex(recorded), number, size, path, root)
    except ValueError:
        return False


def _is_same_event(proof: JsonObject) -> bool:
    event = msgspec.json.decode(proof["event"])
    return isinstance(event, dict) and event.get("event_id") == proof["provenance_id"]


def _check_signature(note: str | None, key: str | None) -> tuple[LogCheckpoint | None, list[CheckStep]]:
    """Return the checkpoint if its signature is valid, and the step that says so or why not."""
    if note is None:
        return None, [
            CheckStep(None, "The next signed checkpoint covers it: about once a minute, or when an admin signs.")
        ]
    if key is None:
        return None, [CheckStep(None, "No public key is available, so the signature could not be verified.")]
    try:
        verifier = parse_verifier(key)
        checkpoint = open_note(note, [verifier])
    except NoteError as error:
        return None, [CheckStep(False, f"The checkpoint is invalid: {error}.")]
    text = f"The checkpoint of {checkpoint.size:,} events is signed by the key {verifier.key_id.hex()}."
    return checkpoint, [CheckStep(True, text)]


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
