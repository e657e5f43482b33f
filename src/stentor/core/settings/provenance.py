"""Settings: the Merkle tree over the run log and its signed checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class ProvenanceSettings:
    provenance_interval: float = setting(
        "SERVICE_PROVENANCE_INTERVAL_SECONDS",
        0.2,
        "How often new events of the run log get their numbers in the Merkle tree.",
        kinds.number(0.01, 86_400, float),
    )
    checkpoint_interval: float = setting(
        "SERVICE_PROVENANCE_CHECKPOINT_SECONDS",
        60.0,
        "How often the head of the tree is signed, when there is something new.",
        kinds.number(1, 31_536_000, float),
    )
    checkpoint_file: Path | None = setting(
        "SERVICE_PROVENANCE_CHECKPOINT_FILE",
        None,
        "File that every signed checkpoint is appended to: best on another machine's disk.",
        kinds.path_or_none,
    )
    provenance_key: Path | None = setting(
        "SERVICE_PROVENANCE_KEY",
        None,
        "File of the key that signs checkpoints; empty means `keys/provenance.key` in the data folder. Processes that "
        "share a database need the same one.",
        kinds.path_or_none,
    )
    provenance_origin: str = setting(
        "SERVICE_PROVENANCE_ORIGIN",
        "",
        "The name of the log in its checkpoints, such as example.com/runs; empty makes one with the key.",
        kinds.text,
    )
    witnesses: tuple[str, ...] = setting(
        "SERVICE_PROVENANCE_WITNESSES",
        (),
        "Witnesses that sign each checkpoint, comma separated: the verifier key of each, a blank, its URL.",
        kinds.items,
    )
    witness_quorum: int = setting(
        "SERVICE_PROVENANCE_WITNESS_QUORUM",
        1,
        "How many witnesses must sign; with fewer the component `provenance` is unavailable, and `verify` fails.",
        kinds.number(1, 16, int),
    )
