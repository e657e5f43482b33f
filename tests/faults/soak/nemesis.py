"""What breaks an installation: each fault begins, lasts and is over when its function returns."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.faults.soak.members import LEASE_SECONDS, Member

Fault = Callable[[], object]


@dataclass
class Clock:
    """The clock of the programs that were started with `environ`: libfaketime reads what it is told from a file."""

    file: Path
    library: str

    def environ(self) -> dict[str, str]:
        self.set(0)
        told = {"FAKETIME_TIMESTAMP_FILE": str(self.file), "FAKETIME_CACHE_DURATION": "1"}
        # Python's threads wait by the monotonic clock, which must be left alone in every way.
        alone = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
        return {"LD_PRELOAD": self.library, **alone, **told}

    def set(self, seconds: int) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        new.replace(self.file)


@dataclass
class Nemesis:
    """Picks faults by chance; `done` counts them by name, and `said` hears of each."""

    chance: random.Random
    said: Callable[[str], None]
    faults: dict[str, Fault] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def run(self, seconds: float) -> None:
        """Faults with pauses, until the time is over."""
        until = time.monotonic() + seconds
        names = sorted(self.faults)
        bag: list[str] = []
        while time.monotonic() < until:
            bag = bag or self.chance.sample(names, len(names))  # each once before any comes again
            name = bag.pop()
            self.said(name)
            self.faults[name]()
            self.done[name] += 1
            time.sleep(self.chance.uniform(1, 5))

    def add(self, name: str, fault: Fault) -> None:
        self.faults[name] = fault

    def of_members(self, what: str, members: list[Member]) -> None:
        """Kills, stops and restarts of these."""

        def kill() -> None:
            member = self.chance.choice(members)
            member.kill()
            time.sleep(self.chance.uniform(0, 1.5))
            member.start()

        def freeze(least: float, most: float) -> None:
            member = self.chance.choice(members)
            member.signal(signal.SIGSTOP)
            time.sleep(self.chance.uniform(least, most))
            member.signal(signal.SIGCONT)

        def restart() -> None:
            member = self.chance.choice(members)
            member.leave()
            member.start()

        self.add(f"{what} killed", kill)
        self.add(f"{what} stopped past its lease", lambda: freeze(LEASE_SECONDS + 1, LEASE_SECONDS + 4))
        self.add(f"{what} told to leave", restart)

    def of_server(self, server: Server) -> None:
        ways: dict[str, Fault] = {
            "PostgreSQL stopped at once": server.stop,
            "PostgreSQL restarted": lambda: server.stop(signal.SIGINT),
            "PostgreSQL's postmaster killed": lambda: server.kill(all_of_it=False),
            "PostgreSQL killed": server.kill,
        }

        def then_start(way: Fault) -> Fault:
            def fault() -> None:
                way()
                time.sleep(self.chance.uniform(0, 3))
                server.start()

            return fault

        for name, way in ways.items():
            self.add(name, then_start(way))

    def of_network(self, proxy: Proxy) -> None:
        def black_hole() -> None:
            with proxy.silent():
                time.sleep(self.chance.uniform(2, 13))

        def slow() -> None:
            with proxy.slow(self.chance.uniform(0.02, 0.2)):
                time.sleep(self.chance.uniform(2, 6))

        self.add("all connections cut", proxy.cut)
        self.add("answers cut in the middle", lambda: proxy.cut_answers(self.chance.randrange(3, 20)))
        self.add("black hole", black_hole)
        self.add("slow network", slow)

    def of_clock(self, what: str, clock: Clock) -> None:
        def jump(least: int, most: int) -> None:
            clock.set(self.chance.randrange(least, most))
            time.sleep(self.chance.uniform(3, 6))
            clock.set(0)
            time.sleep(1.5)

        self.add(f"{what} jumps forward and back", lambda: jump(5, 90))
        self.add(f"{what} jumps back and forward", lambda: jump(-90, -5))
