"""A run: a stream of programs while workers, services and the database are killed, until so many kills are reached."""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import forkserver
from tests.faults.kills.crew import CrewProcess, Orders
from tests.faults.kills.ledger import Ledger, listening
from tests.faults.kills.members import KEY, Gateway, Keeper, Postgres, wait_until
from tests.faults.kills.mortality import KillLog
from tests.faults.kills.people import CAPABILITIES, People
from tests.faults.kills.verdict import judge, judge_outside
from tests.faults.server import server

LEASE_SECONDS = 2
SETTLE_SECONDS = 600
TURN_SECONDS = 0.1
SUBMITTED = 4
"""Programs that are submitted in a turn, between which people do what else there is to do."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """How much is killed, and how.

    `kills` is how many there are to be, of all kinds; `chance` the chance of a worker's death at each of its requests,
    `commits` the number of commits within which a service, or the database below it, dies. No kill goes by a clock, so
    that a slow machine gets on between them.
    """

    kills: int
    workers: int = 8
    programs: int = 24
    chance: float = 0.12
    commits: int = 100
    seed: int = field(default_factory=lambda: random.randrange(10**6))
    plant: str = ""
    """A flaw that the checker has to find: when it has, nothing more is killed."""
    sentence: str = ""
    """What the checker says of the flaw, as a regular expression."""


@dataclass
class Outcome:
    kills: Counter[str]
    seconds: float
    programs: int
    people: Counter[str]
    late: Counter[str]
    steps: int
    effects: int
    wrong: list[str]


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that the user of PostgreSQL may enter."""
    with tempfile.TemporaryDirectory(prefix="stentor-kills-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def on_sqlite(size: Size, say: Say) -> Outcome:
    """One service, which is the database too."""
    with _folder() as folder:
        log = KillLog(folder / "kills")
        gateway = Gateway("service", folder, log, size.commits, {})
        return _run(size, say, folder, log, [gateway], [], folder / "service" / "stentor.db")


def on_postgresql(size: Size, say: Say) -> Outcome:
    """Two services over a server of its own."""
    with _folder() as folder, server() as its:
        log = KillLog(folder / "kills")
        database = Postgres(its)
        environ = {"SERVICE_DATABASE_URL": its.url, **database.environ}
        gateways = [Gateway(f"service{at}", folder, log, size.commits, environ) for at in (1, 2)]
        return _run(size, say, folder, log, gateways, [database], its.url)


def _run(
    size: Size,
    say: Say,
    folder: Path,
    log: KillLog,
    gateways: list[Gateway],
    others: list[Keeper],
    database: Path | str,
) -> Outcome:
    forkserver.ready()
    ledger, began = Ledger(), time.monotonic()
    members: list[Keeper] = [*gateways, *others]
    with ExitStack() as stack:
        stack.enter_context(listening(ledger, folder / "ledger"))
        for member in members:
            member.begin()
            stack.callback(member.end)
        addresses = [gateway.address for gateway in gateways]
        people = People(addresses, ledger, size.seed, size.plant)
        stack.callback(people.close)
        agents = [people.register(capability) for capability in CAPABILITIES]
        for member in members:
            member.arm()
        orders = Orders(
            addresses,
            KEY,
            agents,
            str(folder / "ledger"),
            str(log.path),
            size.workers,
            LEASE_SECONDS,
            size.chance,
            size.plant,
        )
        crew = CrewProcess(orders, folder / "crew.log")
        stack.callback(crew.end)
        _stream(size, people, ledger, log, say)
        crew.calm()
        for member in members:
            member.calm()
        wrong = _settle(people)
        seconds = time.monotonic() - began
        wrong += people.wrong + [sentence for gateway in gateways for sentence in gateway.unexpected]
        # The services may go on: what is judged is at rest.
        wrong += judge(database, people.programs, ledger)
    effects = sum(map(len, ledger.sent.values()))
    steps = len(ledger.acknowledged)
    return Outcome(log.read(), seconds, len(people.programs), people.done, ledger.late, steps, effects, wrong)


def _stream(size: Size, people: People, ledger: Ledger, log: KillLog, say: Say) -> None:
    """Keep so many programs under way until enough was killed, or the planted flaw has shown."""
    said = time.monotonic()
    while (kills := log.read().total()) < size.kills and not _has_shown(size, people, ledger):
        for _ in range(min(SUBMITTED, size.programs - len(people.open))):
            people.submit()
        people.attend()
        if time.monotonic() - said > 15:
            said = time.monotonic()
            say(f"{kills} kills, {len(people.programs)} programs, {len(people.wrong)} violations")
        time.sleep(TURN_SECONDS)


def _has_shown(size: Size, people: People, ledger: Ledger) -> bool:
    """Return whether the planted flaw shows in the world outside, or to the people."""
    if not size.plant:
        return False
    wrong = [*people.wrong, *judge_outside(people.programs, ledger)]
    return any(re.search(size.sentence, sentence) for sentence in wrong)


def _settle(people: People) -> list[str]:
    def is_done() -> bool:
        people.attend()
        return not people.open

    if wait_until(is_done, SETTLE_SECONDS):
        return []
    return [f"{len(people.open)} tasks have not completed {SETTLE_SECONDS} s after the last kill: {people.open}"]
