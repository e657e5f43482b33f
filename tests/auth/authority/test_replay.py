"""What was presented once is not taken again, whoever asks and however often the service starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stentor.auth.authority.receipts import RETENTION_MARGIN_US, ReceiptVerifier, ReplayGuard
from stentor.core.clock import SECOND
from stentor.core.db import Database, Sql
from stentor.core.db.driver import Driver
from stentor.core.errors import AuthorityRefused, StoreUnavailable
from stentor.testing import FixedClock
from tests.auth.authority.forging import AUDIENCE, CI_KEY, ISSUERS, SECONDS, receipt
from tests.requirements import requirement

COUNT = Sql("select count(*), max(use_hash) from authority_uses")


def verifier(db: Database, clock: FixedClock) -> ReceiptVerifier:
    return ReceiptVerifier(ISSUERS, AUDIENCE, ReplayGuard(db), clock)


async def taken(by: ReceiptVerifier, text: str) -> bool:
    try:
        await by.verify(text)
    except AuthorityRefused:
        return False
    return True


@requirement("http.receipt-lifetime", "authority.single-use")
async def test_a_receipt_is_good_for_one_use(db: Database, clock: FixedClock) -> None:
    first, second = verifier(db, clock), verifier(db, clock)
    assert await taken(first, receipt())
    assert not await taken(first, receipt())
    assert not await taken(second, receipt(sub="bob"))
    assert await taken(second, receipt(jti="r-2"))


@requirement("authority.single-use")
async def test_a_use_is_remembered_across_a_restart(driver: Driver, clock: FixedClock) -> None:
    before = Database(driver)
    assert await taken(verifier(before, clock), receipt())
    before.close()
    after = Database(driver)
    try:
        assert not await taken(verifier(after, clock), receipt())
        assert await taken(verifier(after, clock), receipt(jti="r-2"))
    finally:
        after.close()


@requirement("authority.single-use")
async def test_of_many_at_once_exactly_one_is_taken(db: Database, clock: FixedClock) -> None:
    by = [verifier(db, clock) for _ in range(3)]
    found = await asyncio.gather(*(taken(by[n % 3], receipt()) for n in range(30)))
    assert sum(found) == 1


async def test_of_two_processes_at_once_one_is_taken(driver: Driver, clock: FixedClock) -> None:
    if not driver.shared:
        pytest.skip("one process alone writes to SQLite")
    both = [Database(driver), Database(driver)]
    try:
        found = await asyncio.gather(*(taken(verifier(both[n % 2], clock), receipt()) for n in range(20)))
        assert sum(found) == 1
    finally:
        for database in both:
            database.close()


async def test_an_issuer_does_not_use_up_the_ids_of_another(db: Database, clock: FixedClock) -> None:
    by = verifier(db, clock)
    assert await taken(by, receipt({"kid": "ci-1"}, CI_KEY, iss="https://ci.example"))
    assert await taken(by, receipt())


async def test_what_is_refused_for_another_reason_is_not_used_up(db: Database, clock: FixedClock) -> None:
    by = verifier(db, clock)
    assert not await taken(by, receipt(aud="other"))
    assert not await taken(by, receipt()[:-4] + "AAAA")
    assert await taken(by, receipt())


@requirement("authority.single-use")
async def test_uses_are_forgotten_long_after_their_end_and_never_before(db: Database, clock: FixedClock) -> None:
    by = verifier(db, clock)
    await by.verify(receipt())
    clock.advance(seconds=200 + 9)
    assert not await taken(by, receipt())  # it has not expired for a clock that is a little behind
    clock.advance(seconds=RETENTION_MARGIN_US / SECOND - 120)
    await by.verify(fresh(clock, "r-2"))
    assert (await db.read(lambda tx: tx.rows(COUNT)))[0][0] == 2
    clock.advance(seconds=200)
    await by.verify(fresh(clock, "r-3"))
    count, use_hash = (await db.read(lambda tx: tx.rows(COUNT)))[0]
    assert count == 2
    assert len(use_hash) == 43


def fresh(clock: FixedClock, jti: str) -> str:
    now = clock.now() // SECOND
    return receipt(jti=jti, iat=now, exp=now + 100)


async def test_when_uses_cannot_be_counted_nothing_is_taken(
    sqlite: Database, clock: FixedClock, tmp_path: Path
) -> None:
    by = verifier(sqlite, clock)
    await sqlite.write(lambda tx: tx.run(Sql("drop table authority_uses")))
    with pytest.raises(StoreUnavailable):
        await by.verify(receipt())


async def test_an_expired_receipt_stays_refused(verifier: ReceiptVerifier, clock: FixedClock) -> None:
    clock.advance(seconds=211)
    assert clock.now() // SECOND == SECONDS + 211
    assert not await taken(verifier, receipt())
