"""Wires provenance: the sequencer that numbers events, the signing key, and where checkpoints go.

Also the archiver of tasks, and the reading of archived events for proofs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client.core import GaugeMetricFamily, Metric

from stentor.auth.principal import DEFAULT_TENANT, Principal
from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.storage import external_state
from stentor.core.clock import SECOND
from stentor.core.db import Tx
from stentor.core.db.locks.leader import SEQUENCER_LOCK_ID, LeaderElection
from stentor.core.db.sql import Row
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.runlog import EventDraft
from stentor.domains.monitoring.service import Check, HealthComponent
from stentor.domains.provenance import store
from stentor.domains.provenance.model import ArchiveRecord
from stentor.domains.provenance.operations import ProvenanceOperations
from stentor.domains.provenance.sequencer import Sequencer
from stentor.domains.provenance.service import ArchivedBodyReader, ProvenanceService
from stentor.domains.provenance.signing import keyfile
from stentor.domains.provenance.signing.checkpoints import CheckpointPublisher, CheckpointSink, file_sink
from stentor.domains.provenance.signing.signed_note import NoteSigner, NoteVerifier
from stentor.domains.provenance.signing.signing_guard import Acceptance, SigningGuard
from stentor.domains.provenance.witness.client import WitnessClient, parse_targets
from stentor.domains.retention import parquet_files
from stentor.domains.retention.service import TaskArchiver
from stentor.domains.tasks import store as task_store
from stentor.domains.tasks.reading import visibility_queries

FLUSH_SECONDS = 5.0
"""How long a stop waits for the last events to be numbered; the next start numbers the rest."""
MAX_LAG_US = 30 * SECOND
"""Age of an unnumbered event from which the component is unavailable."""


class ProvenanceParts:
    """`sequencer` numbers and signs in the background."""

    def __init__(self, infra: Infrastructure) -> None:
        self._settings = settings = infra.settings
        self._db = db = infra.db
        self._clock = clock = infra.clock
        self._runlog = infra.runlog
        sinks = [file_sink(settings.provenance.checkpoint_file)] if settings.provenance.checkpoint_file else []
        path = keyfile.key_path(settings)
        guard = SigningGuard(
            db,
            external_state(settings),
            lambda: keyfile.find_signer(path),
            # A function, because the key is created only when something is signed for the first time.
            lambda: self.signer,
            self._record_acceptance,
        )
        self.checkpoints = CheckpointPublisher(db, clock, lambda: self.signer, sinks, guard)
        self._outbound, self.witnesses = _open_witnesses(infra, sinks)
        if self.witnesses.targets:
            self.checkpoints.sinks.append(self.witnesses.on_checkpoint)
        intervals = settings.provenance.interval_seconds, settings.provenance.checkpoint_seconds
        self._leader = LeaderElection(db.driver, SEQUENCER_LOCK_ID, "numbers of the run log")
        self.sequencer = Sequencer(db, clock, self._leader, self.checkpoints, *intervals)
        self.service = ProvenanceService(
            db, self.sequencer, self.checkpoints, archived_body_reader(settings.storage.archive_dir)
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def signer(self) -> NoteSigner:
        """Return the signing key; create it if there is none."""
        return keyfile.ensure_signer(keyfile.key_path(self._settings), self._settings.provenance.origin)

    async def start(self) -> None:
        """Compare the log with what is stored outside the database. Raises StartRefused if the key is unusable."""
        if keyfile.find_signer(keyfile.key_path(self._settings)) is not None:
            self.signer  # noqa: B018 - read it now, so that an invalid key stops the start even while the database is down
        await self.checkpoints.check()
        self._tasks = [asyncio.create_task(self.sequencer.run())]
        if self.witnesses.targets:
            # Only loads what witnesses have signed, so a start without the database does not fail here.
            with suppress(StoreUnavailable):
                await self.witnesses.restore_signatures()
            self._tasks.append(asyncio.create_task(self.witnesses.run()))

    async def stop(self) -> None:
        """Number and sign the remaining events, if that takes less than FLUSH_SECONDS."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                # Signs at the stop, so that a log that is truncated before the next start is detected. Events that wait
                # for another process are left out, because that process continues.
                await self.sequencer.drain()
                await self.checkpoints.publish()
                await self.witnesses.request_signatures()
        except Exception:  # noqa: BLE001 - the sequencer has logged it; the next start continues
            return
        finally:
            await self._outbound.close()
            await self._leader.close()

    def operations(self) -> ProvenanceOperations:
        return ProvenanceOperations(self.service, self._verifier, _can_read_task)

    def _verifier(self) -> NoteVerifier | None:
        return keyfile.find_verifier(keyfile.key_path(self._settings))

    def _record_acceptance(self, tx: Tx, acceptance: Acceptance, objection: str) -> None:
        metadata = {"reason": acceptance.reason, "size": acceptance.size, "root": acceptance.root}
        metadata |= {"key": acceptance.key, "objection": objection}
        draft = EventDraft("history_accepted", "provenance", "The operator accepted another history or key.", metadata)
        self._runlog.append(tx, DEFAULT_TENANT, [draft])

    async def check(self) -> HealthComponent:
        """Return the health: whether events are in the Merkle tree and signed."""
        lag, age = await self._lag()
        outside = f"{lag} {'event is' if lag == 1 else 'events are'} not in the signed log yet"
        waiting = outside if lag else "all events are in the signed log"
        if problem := self.sequencer.problem or self.checkpoints.problem or self.checkpoints.delivery_problem:
            return HealthComponent("unavailable", problem)
        if age > MAX_LAG_US and self._tasks:
            return HealthComponent("unavailable", f"{waiting}, the oldest {age // SECOND} s")
        witnessed, witnesses = self.witnesses.status()
        if not witnessed:
            return HealthComponent("unavailable", witnesses)
        return HealthComponent("available", ", ".join(filter(None, (waiting, witnesses))))

    async def _lag(self) -> tuple[int, int]:
        lag = await self._db.read(store.numbering_lag)
        return lag.events, self._age(lag)

    def _age(self, lag: store.NumberingLag) -> int:
        return 0 if lag.oldest_at is None else max(0, self._clock.now() - lag.oldest_at)

    def collect_metrics(self, tx: Tx) -> Iterable[Metric]:
        lag, newest = store.numbering_lag(tx), store.newest_checkpoint(tx)
        broken = int(self.sequencer.problem is not None)
        gauges = {
            "stentor_provenance_events": ("Events with a number in the Merkle tree.", store.tree_size(tx)),
            "stentor_provenance_lag_events": ("Events without a number yet.", lag.events),
            "stentor_provenance_lag_seconds": ("Age of the oldest of them.", self._age(lag) / SECOND),
            "stentor_provenance_broken": ("Whether the sequencer is blocked.", broken),
            "stentor_provenance_signing_refused": (
                "Whether checkpoints are not signed, because the log is not what was signed before.",
                int(self.checkpoints.problem is not None),
            ),
            "stentor_provenance_checkpoint_events": (
                "Events under the newest checkpoint.",
                newest.size if newest else 0,
            ),
        }
        families = [GaugeMetricFamily(name, text, value=value) for name, (text, value) in gauges.items()]
        return families + (self._witness_metrics() if self.witnesses.targets else [])

    def _witness_metrics(self) -> list[GaugeMetricFamily]:
        signed = GaugeMetricFamily(
            "stentor_provenance_witness_events",
            "Events that it signed.",
            labels=["witness"],
        )
        failing = GaugeMetricFamily(
            "stentor_provenance_witness_failing", "Whether it did not sign when last asked.", labels=["witness"]
        )
        for target in self.witnesses.targets:
            signed.add_metric([target.name], target.signed_size)
            failing.add_metric([target.name], int(target.problem is not None))
        return [signed, failing]


def _open_witnesses(infra: Infrastructure, sinks: list[CheckpointSink]) -> tuple[OutboundHttp, WitnessClient]:
    """Return the client of the witnesses, and the HTTP client that it uses."""
    settings = infra.settings
    targets = parse_targets(settings.provenance.witnesses)
    # The operator names the witnesses, so they may be at private addresses that other requests may not reach.
    hosts = tuple(urlsplit(target.url).netloc.rpartition("@")[2].lower() for target in targets)
    outbound = OutboundHttp((*settings.server.outbound_allow, *hosts), max_connections=16, keep_compressed=True)
    return outbound, WitnessClient(infra.db, infra.clock, outbound, targets, settings.provenance.witness_quorum, sinks)


def _can_read_task(tx: Tx, principal: Principal, task_id: str) -> bool:
    if visibility_queries.visibility_key(principal) is None:
        return True
    return visibility_queries.can_see_record(tx, principal, task_store.find(tx, principal.tenant, task_id))


def open_archiver(infra: Infrastructure) -> TaskArchiver:
    """Raises StartRefused if tasks are to be archived and the library for it is not installed."""
    storage = infra.settings.storage
    if storage.retention_days:
        parquet_files.require_library()
    return TaskArchiver(infra.db, infra.runlog, infra.clock, storage.archive_dir, storage.retention_days)


def archive_check(archiver: TaskArchiver) -> Check:
    """Return the health check of the component `archive`."""

    async def check() -> HealthComponent:
        if archiver.problem is not None:
            return HealthComponent("unavailable", archiver.problem)
        return HealthComponent("available", f"tasks are archived {archiver.days} days after their end")

    return check


def archived_body_reader(folder: Path) -> ArchivedBodyReader:
    """Return a function that reads an archived event; None without the library or the archive."""

    def read(archive: ArchiveRecord, event_id: str) -> Row | None:
        try:
            parquet_files.require_library()
            path = parquet_files.events_file(folder, archive.archive)
            # Before the file is parsed: a small one that somebody else wrote can take gigabytes of memory.
            if parquet_files.hash_file(path) != archive.files.get(path.name):
                return None
            rows = parquet_files.read_events(path, event_id)
        except (StartRefused, *parquet_files.READ_ERRORS):
            return None
        return rows[0][1:] if rows else None

    return read
