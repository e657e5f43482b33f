"""A run as what its page draws: a list in which only branches are nested, and what its ids lead to. Pure.

Whether an event fits the signed log: recomputed from its bytes up, step by step, in plain words. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal

import msgspec

from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.domains.provenance import merkle
from stentor.domains.provenance.signed_note import LogCheckpoint, NoteError, open_note, parse_verifier
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.presenters.note_rendering import note_url as note_address

MAX_NESTING = 6
"""Branches in branches; what is deeper stands at that depth, for the sake of narrow screens and of browsers."""
RunEvent = dict[str, Any]
LINKED_RECORDS = {
    "message_id": ("message", "/messages/"),
    "update_id": ("update", "/governance/updates/"),
    "checkpoint_id": ("checkpoint", "/governance/checkpoints/"),
    "rollback_id": ("rollback", "/governance/rollbacks/"),
}
"""Members of an event's metadata that name something with a page."""


class RecordLink(msgspec.Struct, frozen=True):
    kind: str
    id: str
    address: str


class TreeMarkup(msgspec.Struct, frozen=True):
    """What the template writes next: `list`, `end` of a list, `event` (its item begins), `done` (its item ends)."""

    kind: str
    event: RunEvent | None = None
    links: list[RecordLink] = []


def walk_tree(events: list[RunEvent]) -> Iterator[TreeMarkup]:
    """Oldest first. An event is followed by what it led to in its own task; what else it led to are branches.

    What cannot be reached from an event without a parent here stands at the top too, so none is left out.
    """
    known = {event["provenance_id"] for event in events}
    children: dict[str, list[RunEvent]] = {}
    for event in events:
        children.setdefault(str(event["parent_provenance_id"]), []).append(event)
    tops = [event for event in events if event["parent_provenance_id"] not in known]
    seen: set[str] = set()
    yield TreeMarkup("list")
    for top in (*tops, *events):
        yield from _chain(top, children, seen)
    yield TreeMarkup("end")


def _chain(top: RunEvent, children: dict[str, list[RunEvent]], seen: set[str]) -> Iterator[TreeMarkup]:
    """Without recursion: a run may be as deep as it is long."""
    todo: list[tuple[TreeMarkup | RunEvent, int]] = [(top, 0)]
    while todo:
        found, depth = todo.pop()
        if isinstance(found, TreeMarkup):
            yield found
        elif found["provenance_id"] not in seen:
            seen.add(found["provenance_id"])
            yield TreeMarkup("event", found, event_links(found))
            todo += reversed(_after(found, children.get(found["provenance_id"], []), depth))


def _after(event: RunEvent, led_to: list[RunEvent], depth: int) -> list[tuple[TreeMarkup | RunEvent, int]]:
    """The rest of the event's item, and what follows it in the same list."""
    following = _following(event, led_to)
    branches = [one for one in led_to if one is not following]
    nested = depth < MAX_NESTING and bool(branches)
    inner: list[tuple[TreeMarkup | RunEvent, int]] = [(one, depth + nested) for one in branches]
    rest: list[tuple[TreeMarkup | RunEvent, int]] = [(following, depth)] if following else []
    done: tuple[TreeMarkup | RunEvent, int] = (TreeMarkup("done"), depth)
    if not nested:
        return [done, *inner, *rest]
    return [(TreeMarkup("list"), depth), *inner, (TreeMarkup("end"), depth), done, *rest]


def _following(event: RunEvent, led_to: list[RunEvent]) -> RunEvent | None:
    return next((one for one in led_to if one["task_id"] == event["task_id"]), None)


def event_links(event: RunEvent) -> list[RecordLink]:
    """Pages of what the event is about."""
    metadata = event["metadata"] if isinstance(event["metadata"], dict) else {}
    found = []
    if event["task_id"]:
        found.append(RecordLink("task", event["task_id"], f"/tasks/{quote_segment(event['task_id'])}"))
    if event["agent_id"]:
        found.append(RecordLink("agent", event["agent_id"], f"/agents/{quote_segment(event['agent_id'])}"))
    for name, (kind, where) in LINKED_RECORDS.items():
        if metadata.get(name) and isinstance(metadata[name], str):
            found.append(RecordLink(kind, metadata[name], where + quote_segment(metadata[name])))
    path = metadata.get("path")
    if event["event_type"].startswith("memory_") and path and isinstance(path, str):
        found.append(RecordLink("note", path, note_address(path, str(metadata.get("vault", DEFAULT_VAULT)))))
    return found


def run_links(events: list[RunEvent]) -> dict[str, list[RecordLink]]:
    """Of a whole run by kind, each once, in the order of their first event."""
    found: dict[str, list[RecordLink]] = {}
    for link in dict.fromkeys(link for event in events for link in event_links(event)):
        found.setdefault(link.kind, []).append(link)
    return found


def run_duration_ms(events: list[RunEvent]) -> float:
    """Milliseconds from the first event to the last one."""
    times = [datetime.fromisoformat(event["timestamp"]) for event in events]
    return (max(times) - min(times)).total_seconds() * 1000


ProofVerdict = Literal["fits", "unsigned", "wrong"]
HEADLINES: dict[ProofVerdict, str] = {
    "fits": "Verified: the event is in the signed log, as recorded.",
    "unsigned": "Consistent with the tree; whether this tree is the signed one could not be verified.",
    "wrong": "Failed: the log or this event is not what was recorded and signed.",
}
VERIFY_ADVICE = (
    "Run stentor provenance verify to see all that was changed, and keep a copy of the database before that."
)
_NOT_AS_SIGNED = "The signed checkpoint has another root than the tree has now for the same number of events."


class CheckStep(msgspec.Struct, frozen=True):
    """One thing that was looked at; `fits` is None where it could not be."""

    fits: bool | None
    said: str


class ProofCheck(msgspec.Struct, frozen=True):
    verdict: ProofVerdict
    steps: list[CheckStep]

    @property
    def headline(self) -> str:
        return HEADLINES[self.verdict]


def check_proof(proof: dict[str, Any], key: str | None, recorded: str | None) -> ProofCheck:
    """`proof` as the gateway answers it, `key` the verifier key, `recorded` the hash in the log's own table in hex.

    Of the proof only the event's bytes, its number and the path are used; the rest is computed or signed.
    """
    signed, signature = _check_signature(proof["checkpoint"], key)
    size, root = (signed.size, signed.root) if signed else (proof["size"], _decode_base64(proof["root"]))
    steps = [*_check_event(proof, recorded, size, root), *signature]
    if signed and (signed.size != proof["size"] or signed.root != _decode_base64(proof["root"])):
        steps.append(CheckStep(False, _NOT_AS_SIGNED))
    if any(step.fits is False for step in steps):
        return ProofCheck("wrong", [*steps, CheckStep(None, VERIFY_ADVICE)])
    return ProofCheck("fits" if all(step.fits for step in steps) else "unsigned", steps)


def _check_event(proof: dict[str, Any], recorded: str | None, size: int, root: bytes) -> list[CheckStep]:
    """The bytes name the event, and their hash leads by the path to the root."""
    number, path = proof["number"], [_decode_base64(one) for one in proof["hashes"]]
    leaf = sha256(b"\0" + proof["event"].encode()).digest()
    steps = [] if _is_same_event(proof) else [CheckStep(False, "The proof is for the bytes of another event.")]
    if merkle.verify_inclusion(leaf, number, size, path, root):
        said = f"The hash of the event leads through {len(path):,} hashes to the root of the tree of {size:,} events."
        return [*steps, CheckStep(True, said)]
    if recorded is not None and recorded != leaf.hex():
        steps.append(CheckStep(False, f"The event was changed: number {number:,} was recorded with another hash."))
        if _is_included(recorded, number, size, path, root):
            return [
                *steps,
                CheckStep(True, "The hash that was recorded leads to the root: the tree itself is as it was."),
            ]
    return [
        *steps,
        CheckStep(False, "The path does not lead to the root: hashes of the tree, or its size, were changed."),
    ]


def _is_included(recorded: str, number: int, size: int, path: list[bytes], root: bytes) -> bool:
    try:
        return merkle.verify_inclusion(bytes.fromhex(recorded), number, size, path, root)
    except ValueError:
        return False


def _is_same_event(proof: dict[str, Any]) -> bool:
    told = msgspec.json.decode(proof["event"])
    return isinstance(told, dict) and told.get("event_id") == proof["provenance_id"]


def _check_signature(note: str | None, key: str | None) -> tuple[LogCheckpoint | None, list[CheckStep]]:
    """What the checkpoint says if it can be believed, and why not if it cannot."""
    if note is None:
        return None, [
            CheckStep(None, "The next signed checkpoint covers it: about once a minute, or when an admin signs.")
        ]
    if key is None:
        return None, [CheckStep(None, "There is no public key here, so the signature could not be verified.")]
    try:
        verifier = parse_verifier(key)
        checkpoint = open_note(note, [verifier])
    except NoteError as error:
        return None, [CheckStep(False, f"The checkpoint is invalid: {error}.")]
    said = f"The checkpoint of {checkpoint.size:,} events is signed by the key {verifier.key_id.hex()}."
    return checkpoint, [CheckStep(True, said)]


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
