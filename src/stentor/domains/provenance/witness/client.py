"""Asks the configured witnesses to sign each checkpoint of this log, and keeps their signatures with it.

Fails open: without a witness the log is signed all the same; health and metrics tell. What a witness answers without a
valid signature is only shown, because anybody could have said it.
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
from stentor.core.timers import wait_until_tick
from stentor.domains.provenance import merkle, store
from stentor.domains.provenance.signed_note import (
    MAX_SIGNATURES,
    NoteError,
    NoteVerifier,
    add_cosignature,
    cosigned_at,
    parse_witness_key,
)
from stentor.domains.provenance.store import StoredCheckpoint, TileReader
from stentor.domains.provenance.witness.wire import WitnessSubmission, parse_size

if TYPE_CHECKING:
    import aiohttp

REQUEST_TIMEOUT_SECONDS = 10.0
"""For one request."""
RETRY_SECONDS = 30.0
"""Between two attempts at a witness that does not sign."""
UNAVAILABLE_AFTER_US = 300 * SECOND
"""Without enough signatures for so long, the component is unavailable."""
MAX_RESPONSE_BYTES = 65_536
RESTORE_CHECKPOINTS = 20
"""Checkpoints in which the signatures of an earlier process are looked for."""
MAX_ATTEMPTS = 3
log = logging.getLogger(__name__)


@dataclass
class WitnessTarget:
    """A configured witness and what is known of it: sizes are of trees that it has seen, and that it signed."""

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
    """A witness did not sign; the text says why."""


class WitnessConflict(CosigningFailed):
    """Because it has seen another history of this log."""


def parse_targets(pairs: Iterable[str]) -> list[WitnessTarget]:
    """`<verifier key> <URL>` each. Raises StartRefused."""
    found: list[WitnessTarget] = []
    for pair in pairs:
        key, _, url = pair.partition(" ")
        try:
            verifier = parse_witness_key(key)
        except NoteError as error:
            raise StartRefused(f"SERVICE_PROVENANCE_WITNESSES: {key!r} is no key of a witness: {error}.") from None
        parts = urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartRefused(f"SERVICE_PROVENANCE_WITNESSES: {key!r} needs its http or https URL behind a blank.")
        found.append(WitnessTarget(verifier, url.strip().rstrip("/")))
    if len(found) >= MAX_SIGNATURES:
        raise StartRefused(f"SERVICE_PROVENANCE_WITNESSES names more than {MAX_SIGNATURES - 1} witnesses.")
    if len({target.verifier.public_key for target in found}) < len(found):
        raise StartRefused("SERVICE_PROVENANCE_WITNESSES names a witness twice.")
    return found


class WitnessClient:
    """`outlets` take each checkpoint again when signatures were added. Used on one event loop."""

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
        self._wanted = asyncio.Event()
        self._missing_since: int | None = None

    async def on_checkpoint(self, made: StoredCheckpoint) -> None:
        """A new checkpoint is stored: an outlet that returns at once."""
        self._wanted.set()

    async def run(self) -> None:
        """For ever; the process that signs asks."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.request_signatures()
            if any(target.problem for target in self.targets):
                await wait_until_tick(self._wanted, RETRY_SECONDS)
                self._wanted.set()

    async def request_signatures(self) -> None:
        """Ask each witness that did not sign the newest checkpoint yet. Never raises."""
        try:
            newest = await self._db.read(store.newest_checkpoint)
            if newest is None:
                return
            asked = [target for target in self.targets if target.signed_size < newest.size]
            await asyncio.gather(*(self._ask(target) for target in asked))
            self._count(newest.size)
            if any(target.problem is None for target in asked):
                await self._hand_out()
        except StentorError as error:
            log.warning("the witnesses could not be asked: %s", error.message)
        except Exception:
            log.exception("asking the witnesses failed")

    async def restore_signatures(self) -> None:
        """Find what they signed for an earlier process."""
        for stored in await self._db.read(lambda tx: store.list_newest_checkpoints(tx, RESTORE_CHECKPOINTS)):
            for target in self.targets:
                if stored.size > target.signed_size and cosigned_at(stored.note, target.verifier) is not None:
                    target.signed_size = target.seen_size = stored.size
        self._wanted.set()

    def status(self) -> tuple[bool, str]:
        """Whether all is well, and how things stand in one line, without addresses: health is public."""
        if not self.targets:
            return True, "no witnesses"
        for target in self.targets:
            if target.has_conflict:
                return False, f"the witness {target.name} has seen another history of this log: {target.problem}"
        missing = self._missing_since
        well = missing is None or self._clock.now() - missing < UNAVAILABLE_AFTER_US
        signed = sum(target.problem is None for target in self.targets)
        text = f"{signed} of {len(self.targets)} witnesses sign, {self._quorum} must"
        return well, text

    async def _hand_out(self) -> None:
        signed = await self._db.read(store.newest_checkpoint)
        if signed is not None:
            for outlet in self._sinks:
                await outlet(signed)

    def _count(self, size: int) -> None:
        enough = sum(target.signed_size >= size for target in self.targets) >= self._quorum
        if enough:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = self._clock.now()

    async def _ask(self, target: WitnessTarget) -> None:
        try:
            await self._signature(target)
            problem, conflict = None, False
        except CosigningFailed as error:
            problem, conflict = str(error), isinstance(error, WitnessConflict)
        if problem is not None and problem != target.problem:
            level = logging.ERROR if conflict else logging.WARNING
            log.log(level, "the witness %s does not sign: %s", target.name, problem)
        elif problem is None and target.problem is not None:
            log.warning("the witness %s signs again", target.name)
        target.problem, target.has_conflict = problem, conflict

    async def _signature(self, target: WitnessTarget) -> None:
        """Raises NotSigned. A witness that is elsewhere says where, and is asked again from there."""
        for _ in range(MAX_ATTEMPTS):
            newest, submission = await self._submission(target.seen_size)
            status, answer = await self._post(target, submission.text)
            if status == 200:
                await self._take(target, newest, answer)
                return
            if status == 422:
                raise WitnessConflict("it refused the newest checkpoint, which does not extend what it signed")
            if status != 409:
                raise CosigningFailed(f"it answered {status}")
            size = _size(answer)
            if size == submission.old_size:
                raise WitnessConflict(f"it signed another tree of {size} events")
            target.seen_size = size
        raise CosigningFailed("its size changed with every answer")

    async def _submission(self, seen: int) -> tuple[StoredCheckpoint, WitnessSubmission]:
        def look(tx: Tx) -> tuple[StoredCheckpoint, WitnessSubmission]:
            newest = store.newest_checkpoint(tx)
            if newest is None or newest.size < seen:
                have = newest.size if newest else 0
                raise WitnessConflict(f"it signed a tree of {seen} events, and the newest checkpoint here has {have}")
            proof = merkle.consistency_proof(TileReader(tx), seen, newest.size) if 0 < seen < newest.size else []
            return newest, WitnessSubmission(seen, proof, newest.note)

        return await self._db.read(look)

    async def _post(self, target: WitnessTarget, body: str) -> tuple[int, str]:
        """The status and the start of the body. Raises NotSigned."""
        import aiohttp  # a fifth of all imports at the start: only where there are witnesses

        url = f"{target.url}/add-checkpoint"
        try:
            self._outbound.check_url(url)
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                headers = {"Content-Type": "text/plain; charset=utf-8", "Accept-Encoding": "identity"}
                sent = self._outbound.session.post(url, data=body.encode(), headers=headers, allow_redirects=False)
                async with sent as answer:
                    return answer.status, await _start_of(answer)
        except TimeoutError:
            raise CosigningFailed(f"no answer within {REQUEST_TIMEOUT_SECONDS:g} s") from None
        except (InvalidRequest, aiohttp.ClientError, OSError, ValueError) as error:
            raise CosigningFailed(f"it cannot be reached ({type(error).__name__})") from None

    async def _take(self, target: WitnessTarget, newest: StoredCheckpoint, answer: str) -> None:
        """Keep the signature with the stored checkpoint. Raises NotSigned."""

        def put(tx: Tx) -> None:
            stored = store.covering_checkpoint(tx, newest.size)
            if stored is None or stored.size != newest.size:
                raise CosigningFailed("the checkpoint that it signed is gone")
            note = add_cosignature(stored.note, answer, target.verifier)
            store.update_note(tx, newest.size, note)

        try:
            await self._db.write(put)
        except NoteError as error:
            raise CosigningFailed(f"its answer cannot be used: {error}") from None
        target.seen_size = target.signed_size = newest.size


async def _start_of(answer: aiohttp.ClientResponse) -> str:
    read = b""
    while len(read) < MAX_RESPONSE_BYTES and (chunk := await answer.content.read(MAX_RESPONSE_BYTES - len(read))):
        read += chunk
    return read.decode("utf-8", "replace")


def _size(text: str) -> int:
    try:
        return parse_size(text.rstrip("\n"))
    except NoteError:
        raise CosigningFailed("it answered 409 without a size") from None
