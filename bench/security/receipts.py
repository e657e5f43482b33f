"""What the authority boundary costs: one receipt, one chain of four hops, one proof, and one use that is counted."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median

from joserfc.jwk import OKPKey

from bench.figures import Figure, at_most, percentile, spread
from bench.sizes import Scale
from stentor.auth.authority import delegation, issuers, proof, receipts
from stentor.auth.authority.issuers import Issuers
from stentor.auth.authority.keys import thumbprint
from stentor.auth.authority.proof import ProofRequest
from stentor.auth.authority.receipts import ReceiptVerifier, ReplayGuard
from stentor.core import migrations
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.db.sqlite.driver import SqliteDriver

TITLE = "the authority boundary"
AUDIENCE, BODY = "stentor", b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'
CAPABILITIES = ("memory:read", "memory:write")


def run(scale: Scale) -> list[Figure]:
    key, holder = OKPKey.generate_key("Ed25519"), OKPKey.generate_key("Ed25519")
    table = Issuers(issuers.own_issuer(key))
    now = SystemClock().now()
    one = _receipt(key, None, now)
    bound = _receipt(key, thumbprint(holder), now)
    longest = _chain(bound, holder, now)
    sent = ProofRequest("POST", "/mcp", BODY, proof.prove(holder, bound, "POST", "/mcp", BODY, now=now))
    rounds, count = scale.pick(scale.rounds, 3), scale.pick(2_000, 200)
    verify = _rounds(lambda: receipts.verify_chain(one, table, AUDIENCE, now), rounds, count)
    hops = _rounds(lambda: receipts.verify_chain(longest, table, AUDIENCE, now), rounds, count // 4)
    proved = _rounds(lambda: proof.verify_proof(sent, bound, thumbprint(holder), now), rounds, count)
    counted = asyncio.run(_counted(scale, table, key, scale.pick(200, 30)))
    how = f"signature, header and claims, in process, {rounds * count:,} times"
    proofs = "the proof that comes with a bound receipt, without its receipt"
    return [
        Figure(
            "receipt p50", median(_all(verify)), "µs", how, at_most(200), spread([median(found) for found in verify])
        ),
        Figure("receipt p99", percentile(_all(verify), 0.99), "µs", how),
        Figure("chain of four hops p50", median(_all(hops)), "µs", "five signatures, four of them narrower"),
        Figure("proof p50", median(_all(proved)), "µs", proofs),
        Figure(
            "one counted use p50", median(counted), "ms", "`Verifier.verify` over SQLite: with the commit of its jti"
        ),
    ]


def _receipt(key: OKPKey, jkt: str | None, now: int) -> str:
    names = {"aud": AUDIENCE, "sub": "ann", "tenant": "default"}
    return receipts.issue_receipt(
        receipts.create_own_claims(names, ("team/notes",), CAPABILITIES, 300, jkt, now=now), key
    )


def _chain(bound: str, holder: OKPKey, now: int) -> str:
    found = bound
    for n in range(delegation.MAX_HOPS):
        following = OKPKey.generate_key("Ed25519")
        found = delegation.delegate(found, holder, following, f"hop{n}", now=now)
        holder = following
    return found


def _rounds(call: Callable[[], object], rounds: int, count: int) -> list[list[float]]:
    """Microseconds of each call, by round."""
    return [[_timed(call) for _ in range(count)] for _ in range(rounds)]


def _all(rounds: list[list[float]]) -> list[float]:
    return list(chain.from_iterable(rounds))


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - started) / 1000


async def _counted(scale: Scale, table: Issuers, key: OKPKey, count: int) -> list[float]:
    """Milliseconds of each first use."""
    with tempfile.TemporaryDirectory(dir=scale.folder) as folder:
        driver = SqliteDriver(Path(folder) / "stentor.db")
        migrations.upgrade(driver)
        db = Database(driver)
        try:
            verifier = ReceiptVerifier(table, AUDIENCE, ReplayGuard(db), SystemClock())
            return [await _use(verifier, _receipt(key, None, SystemClock().now())) for _ in range(count)]
        finally:
            db.close()


async def _use(verifier: ReceiptVerifier, receipt: str) -> float:
    started = time.perf_counter_ns()
    await verifier.verify(receipt)
    return (time.perf_counter_ns() - started) / 1e6
