"""A service over a database that fails as planned, its worker, and the people around it, in one process.

Whoever calls the service repeats a request that got no proper response, as the SDK does, and starts the service again
if it died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stentor.core.db import Database, Sql, Tx
from stentor.core.db.driver import Driver
from stentor.core.errors import StoreUnavailable
from stentor.testing import FixedClock
from stentor_worker import Task, Worker
from stentor_worker.http.client import Client, ServiceError
from tests.conftest import World, build_world
from tests.faults.journal.commits import FailingDriver, Plan
from tests.faults.journal.programs import Outside, run_program

LEASE_SECONDS = 30
TRIES = 40
_FAILED = Sql("select task_id from tasks where tenant = 'default' and status in ('failed', 'aborted')")
_OPEN_SIGNALS = Sql("select task_id, reference from task_steps where state = 'started' and kind = 'signal'")


class WorkerDied(GeneratorExit):
    """Ends a worker where it is, as SIGKILL would: no error of a handler or an effect, and it sends nothing more."""


class Installation:
    """One service at a time, over one database."""

    def __init__(self, driver: Driver, clock: FixedClock, folder: Path) -> None:
        self.plan, self.clock = Plan(), clock
        self.deaths = 0
        """How often the worker died."""
        self._driver, self._folder = driver, folder
        self._observer = Database(driver)
        self._world: World | None = None
        self._agent_id = ""
        self._outside = Outside()
        self._worker = Worker("http://service.test", "key", "runner")
        self._worker.handler(lambda task: run_program(task, task.input, self._outside))

    async def start(self) -> None:
        """Start the service, again if it died."""
        await self.stop()
        # A service that is starting dies too, if it commits then.
        while self._world is None:
            self.plan.is_service_dead = False
            db = Database(FailingDriver(self._driver, self.plan))
            try:
                self._world = await build_world(db, self.clock, self._folder, SERVICE_TASK_MAX_ATTEMPTS="100")
            except StoreUnavailable:
                db.close()
        if not self._agent_id:
            self._agent_id = await self._world.register("runner", capabilities=["program"])

    async def stop(self) -> None:
        if self._world is not None:
            world, self._world = self._world, None
            for client in world.clients.values():
                await client.aclose()
            with suppress(StoreUnavailable):
                await world.kernel.stop()

    async def close(self) -> None:
        await self.stop()
        self._observer.close()

    async def send(self, method: str, path: str, body: Any = None, *, by_worker: bool = False) -> tuple[int, Any]:
        """Send a request until it has a response; return its status and its JSON. A worker that died sends no more."""
        answer = None
        for _ in range(TRIES):
            assert self._world is not None
            self.plan.place = f"{method} {path.partition('?')[0].rpartition('/')[2]}"
            answer = await self._world.admin.request(method, f"/api/v1{path}", json=body)
            if self.plan.is_service_dead:
                await self.start()
            elif answer.status_code != 503:
                return answer.status_code, answer.json()
            if by_worker and self.plan.is_worker_dead:
                return answer.status_code, answer.json()
        raise AssertionError(f"{method} {path} has no response: {answer and answer.text}")

    async def look(self, read: Callable[[Tx], Any]) -> Any:
        """Read the database, without the service."""
        return await self._observer.read(read)

    async def work(self, outside: Outside) -> bool:
        """Claim a task and run one attempt of it; False if there is none."""
        body = {"lease_seconds": LEASE_SECONDS}
        _, claims = await self.send("POST", f"/agents/{self._agent_id}/claims", body, by_worker=True)
        if self._take_death() or not claims["tasks"]:
            return False
        await asyncio.to_thread(self._run_attempt, claims["tasks"][0], outside, asyncio.get_running_loop())
        return True

    def _run_attempt(self, claim: dict[str, Any], outside: Outside, loop: asyncio.AbstractEventLoop) -> None:
        self._outside = outside
        with suppress(WorkerDied):
            self._worker._run_task(Task(_Wire(self, loop), claim))

    def _take_death(self) -> bool:
        """Return whether the worker died, which happens once."""
        was_dead, self.plan.is_worker_dead = self.plan.is_worker_dead, False
        self.deaths += was_dead
        return was_dead

    async def go_on(self, outside: Outside) -> None:
        """Do what tasks wait for while no attempt runs: people answer, signals come, and time passes."""
        failed = await self.look(lambda tx: tx.rows(_FAILED))
        _, decisions = await self.send("GET", "/decisions?limit=500")
        for step in decisions["steps"]:
            path = f"/tasks/{step['task_id']}/steps/{quote(step['key'], safe='')}"
            if step["kind"] == "question":
                await self.send("POST", f"{path}/answer", {"value": step["waits_for"].replace("question", "value")})
            else:
                value = outside.find(step["provenance_id"])
                fact = {"happened": value is not None, "reason": "looked it up"}
                await self.send("POST", f"{path}/resolve", fact | ({} if value is None else {"value": value}))
        for task_id, name in await self.look(lambda tx: tx.rows(_OPEN_SIGNALS)):
            await self.signal(task_id, name)
        for (task_id,) in failed:
            await self.send("POST", f"/tasks/{task_id}/retry")
        self.clock.advance(seconds=2 * LEASE_SECONDS + 1)
        await self._tick(lambda world: world.kernel.tasks.wakeups.tick())
        await self._tick(lambda world: world.kernel.tasks.reconciler.tick(0))
        self._take_death()

    async def signal(self, task_id: str, name: str) -> None:
        """Send a signal with the value that the program expects."""
        await self.send("POST", f"/tasks/{task_id}/signals", {"name": name, "value": name.replace("signal", "value")})

    async def _tick(self, tick: Callable[[World], Awaitable[object]]) -> None:
        assert self._world is not None
        self.plan.place = "background"
        with suppress(StoreUnavailable):
            await tick(self._world)
        if self.plan.is_service_dead:
            await self.start()


class _Wire(Client):
    """The client of a worker's attempt, without a network."""

    def __init__(self, installation: Installation, loop: asyncio.AbstractEventLoop) -> None:
        self._installation, self._loop, self._is_dead = installation, loop, False

    def call(self, method: str, path: str, body: Any = None, **_options: Any) -> Any:
        if self._is_dead:
            raise WorkerDied
        sent = self._installation.send(method, path, body, by_worker=True)
        status, answer = asyncio.run_coroutine_threadsafe(sent, self._loop).result()
        if self._installation._take_death():
            self._is_dead = True
            raise WorkerDied
        if status >= 300:
            raise ServiceError(status, answer["error"]["code"], answer["error"]["message"])
        return answer
