"""Request cosignatures of the configured witnesses for each checkpoint of this log, and store them in its note.

Fails open: this log is signed without witnesses too, and health and metrics report missing signatures. A response
without a valid signature is only reported, never acted on, because anybody could have sent it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import InvalidRequest, StartRefused, StentorError
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.lazy_import import lazy_module
from stentor.core.timers import wait_until_tick
from stentor.domains.provenance import merkle, store
from stentor.domains.provenance.signing.signed_note import (
    MAX_SIGNATURES,
    NoteError,
    NoteVerifier,
    add_cosignature,
    cosigned_at,
    parse_size,
    parse_witness_key,
)
from stentor.domains.provenance.store import StoredCheckpoint, TileReader
from stentor.domains.provenance.witness.wire import WitnessSubmission

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

REQUEST_TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = 30.0
"""Delay between two attempts at a witness that does not sign."""
UNAVAILABLE_AFTER_US = 300 * SECOND
"""How long signatures may be missing before the component is unavailable."""
MAX_RESPONSE_BYTES = 65_536
RESTORE_CHECKPOINTS = 20
"""How many of the newest checkpoints are searched for the signatures of an earlier process."""
MAX_ATTEMPTS = 3
log = logging.getLogger(__name__)


@dataclass
class WitnessTarget:
    """A configured witness and its state: `seen_size` and `signed_size` are of the newest trees it saw and signed."""

    verifier: NoteVerifier
    url: str
    seen_size: int = 0
    signed_size: int = 0
    problem: str | None = None
    has_conflict: bool = False
    """Whether the problem is that the witness has seen another history."""

    @property
    def name(self) -> str:
        return self.verifier.name


class CosigningFailed(Exception):
    """A witness did not sign; the message is the reason."""


class WitnessConflict(CosigningFailed):
    """The witness has seen a different history of this log."""


def parse_targets(pairs: Iterable[str]) -> list[WitnessTarget]:
    """Parse entries of the form `<verifier key> <URL>`. Raises StartRefused."""
    targets: list[WitnessTarget] = []
    for pair in pairs:
        key, _, url = pair.partition(" ")
        try:
            verifier = parse_witness_key(key)
        except NoteError as error:
            raise StartRefused(f"SERVICE_PROVENANCE_WITNESSES: {key!r} is not a witness key: {error}.") from None
        parts = urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartRefused(f"SERVICE_PROVENANCE_WITNESSES: {key!r} needs an http or https URL after a space.")
        targets.append(WitnessTarget(verifier, url.strip().rstrip("/")))
    # One signature of a note is the log's own.
    if len(targets) >= MAX_SIGNATURES:
        raise StartRefused(f"SERVICE_PROVENANCE_WITNESSES names more than {MAX_SIGNATURES - 1} witnesses.")
    # One key under two names would count twice toward the quorum.
    if len({target.verifier.public_key for target in targets}) < len(targets):
        raise StartRefused("SERVICE_PROVENANCE_WITNESSES names a witness twice.")
    return targets


class WitnessClient:
    """Requests signatures in the background. `sinks` get each checkpoint again when signatures were added.

    Used on one event loop.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        outbound: OutboundHttp,
        targets: Sequence[WitnessTarget],
        quorum: int,
        sinks: Sequence[Callable[[StoredCheckpoint], Awaitable[None]]] = (),
    ) -> None:
        if quorum > max(1, len(targets)):
            raise StartRefused(f"SERVICE_PROVENANCE_WITNESS_QUORUM is {quorum}, and {len(targets)} are configured.")
        self.targets = targets
        self._db = db
        self._clock = clock
        self._outbound = outbound
        self._quorum = quorum
        self._sinks = sinks
        self._requested = asyncio.Event()
        self._missing_since: int | None = None

    async def on_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        """Request signatures in the background; a CheckpointSink."""
        self._requested.set()

    async def run(self) -> None:
        """Request signatures for new checkpoints until the task is cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            if not await self.request_signatures():
                await wait_until_tick(self._requested, RETRY_SECONDS)
                self._requested.set()

    async def request_signatures(self) -> bool:
        """Request the signature of each witness that has not signed the newest checkpoint yet. Never raises.

        Returns whether all have signed; otherwise it must be called again.
        """
        try:
            await self._request_missing()
            return not any(target.problem for target in self.targets)
        except StentorError as error:
            log.warning("witness: request failed reason=%s", error.message)
        except Exception:
            log.exception("witness: request failed unexpectedly")
        self._set_missing()
        return False

    async def _request_missing(self) -> None:
        newest = await self._db.read(store.newest_checkpoint)
        if newest is None:
            return
        pending = [target for target in self.targets if target.signed_size < newest.size]
        await asyncio.gather(*(self._request_signature(target) for target in pending))
        if sum(target.signed_size >= newest.size for target in self.targets) >= self._quorum:
            self._missing_since = None
        else:
            self._set_missing()
        if any(target.problem is None for target in pending):
            # Read again: each witness added its line to the stored note.
            signed = await self._db.read(store.newest_checkpoint)
            if signed is not None:
                for sink in self._sinks:
                    await sink(signed)

    def _set_missing(self) -> None:
        if self._missing_since is None:
            self._missing_since = self._clock.now()

    async def restore_signatures(self) -> None:
        """Find the signatures that an earlier process stored, or request all of them again. Raises StoreUnavailable."""
        self._requested.set()
        for checkpoint in await self._db.read(lambda tx: store.list_newest_checkpoints(tx, RESTORE_CHECKPOINTS)):
            for target in self.targets:
                if checkpoint.size > target.signed_size and cosigned_at(checkpoint.note, target.verifier) is not None:
                    target.signed_size = target.seen_size = checkpoint.size

    def status(self) -> tuple[bool, str]:
        """Return whether the component is healthy and one line of detail, without addresses: health is public.

        The detail is empty without witnesses.
        """
        if not self.targets:
            return True, ""
        for target in self.targets:
            if target.has_conflict:
                return False, f"the witness {target.name} has seen another history of this log: {target.problem}"
        missing_since = self._missing_since
        is_healthy = missing_since is None or self._clock.now() - missing_since < UNAVAILABLE_AFTER_US
        signing = sum(target.problem is None for target in self.targets)
        return is_healthy, f"{signing} of {len(self.targets)} witnesses sign, {self._quorum} required"

    async def _request_signature(self, target: WitnessTarget) -> None:
        """Request one signature and record the result in `target`."""
        try:
            await self._fetch_signature(target)
            problem, conflict = None, False
        except CosigningFailed as error:
            problem, conflict = str(error), isinstance(error, WitnessConflict)
        except StentorError as error:  # an outage of the database, for example: the other witnesses are still asked
            problem, conflict = error.message, False
        if problem is not None and problem != target.problem:
            level = logging.ERROR if conflict else logging.WARNING
            log.log(level, "witness: cosigning failed name=%s reason=%s", target.name, problem)
        elif problem is None and target.problem is not None:
            log.warning("witness: cosigning recovered name=%s", target.name)
        target.problem, target.has_conflict = problem, conflict

    async def _fetch_signature(self, target: WitnessTarget) -> None:
        """Fetch and store a signature. Raises CosigningFailed.

        A witness at another size responds with that size (409), and the proof is sent again from there.
        """
        for _ in range(MAX_ATTEMPTS):
            newest, submission = await self._prepare_submission(target.seen_size)
            status, response = await self._post(target, submission.text)
            if status == 200:
                await self._store_signature(target, newest, response)
                return
            if status == 422:
                raise WitnessConflict("it rejected the newest checkpoint, which does not extend what it signed")
            if status != 409:
                raise CosigningFailed(f"it responded with {status}")
            try:
                size = parse_size(response.rstrip("\n"))
            except NoteError:
                raise CosigningFailed("it responded with 409 without a size") from None
            # It answers "not at this size" for the size that it reported itself: its root there must differ.
            if size == submission.old_size:
                raise WitnessConflict(f"it signed another tree of {size} events")
            target.seen_size = size
        raise CosigningFailed("its size changed with every response")

    async def _prepare_submission(self, seen_size: int) -> tuple[StoredCheckpoint, WitnessSubmission]:
        def prepare(tx: Tx) -> tuple[StoredCheckpoint, WitnessSubmission]:
            newest = store.newest_checkpoint(tx)
            size = newest.size if newest else 0
            if newest is None or size < seen_size:
                raise WitnessConflict(
                    f"it signed a tree of {seen_size} events, but the newest checkpoint here has {size}"
                )
            proof = merkle.consistency_proof(TileReader(tx), seen_size, size) if 0 < seen_size < size else []
            return newest, WitnessSubmission(seen_size, proof, newest.note)

        return await self._db.read(prepare)

    async def _post(self, target: WitnessTarget, body: str) -> tuple[int, str]:
        """Return the status and the start of the response body. Raises CosigningFailed."""
        url = f"{target.url}/add-checkpoint"
        try:
            self._outbound.check_url(url)
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                headers = {"Content-Type": "text/plain; charset=utf-8", "Accept-Encoding": "identity"}
                request = self._outbound.session.post(url, data=body.encode(), headers=headers, allow_redirects=False)
                async with request as response:
                    text = b""
                    while len(text) < MAX_RESPONSE_BYTES:
                        chunk = await response.content.read(MAX_RESPONSE_BYTES - len(text))
                        if not chunk:
                            break
                        text += chunk
                    return response.status, text.decode("utf-8", "replace")
        except TimeoutError:
            raise CosigningFailed(f"no response within {REQUEST_TIMEOUT_SECONDS:g} s") from None
        except (InvalidRequest, aiohttp.ClientError, OSError, ValueError) as error:
            raise CosigningFailed(f"it cannot be reached ({type(error).__name__})") from None

    async def _store_signature(self, target: WitnessTarget, newest: StoredCheckpoint, response: str) -> None:
        """Add the signature to the stored note. Raises CosigningFailed."""

        def add(tx: Tx) -> None:
            # Read in this transaction: another witness may have added its line in the meantime.
            stored = store.covering_checkpoint(tx, newest.size)
            if stored is None or stored.size != newest.size:
                raise CosigningFailed("the checkpoint that it signed is gone")
            store.update_note(tx, newest.size, add_cosignature(stored.note, response, target.verifier))

        try:
            await self._db.write(add)
        except NoteError as error:
            raise CosigningFailed(f"its response cannot be used: {error}") from None
        target.seen_size = target.signed_size = newest.size
