"""The worker: claims tasks, runs the handler in threads, keeps the leases, reports the ends."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stentor.worker.client import Client, ServiceError, segment
from stentor.worker.task import Failed, Result, Task, TaskCancelled

Handler = Callable[[Task], Any]
LEASE_SECONDS = 30
BEAT_SECONDS = 8.0
WAIT_SECONDS = 5
MAX_MESSAGE = 2_000
log = logging.getLogger(__name__)


class _Interrupted(Exception):
    """A signal came while the worker only waited."""


class Worker:
    """One agent's worker. A worker that is killed loses nothing: its tasks go to the next after the lease."""

    def __init__(self, url: str, key: str, agent_id: str, *, concurrency: int = 4) -> None:
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._client = Client(url, key, self._stopping)
        self._free = threading.Semaphore(concurrency)
        # While an end is reported the next task is fetched; of such reports there are as many at most as places.
        self._reports = threading.Semaphore(concurrency)
        self._concurrency = concurrency
        self._tasks: set[Task] = set()
        self._handler: Handler | None = None
        self._polling = False
        self.agent_id = agent_id

    @classmethod
    def register(
        cls,
        url: str,
        key: str,
        name: str,
        capabilities: Iterable[str],
        *,
        concurrency: int = 4,
        **fields: Any,
    ) -> Worker:
        """A worker for the agent of this name, registered now if there is none. Needs an admin's key."""
        wanted = sorted(capabilities)
        worker = cls(url, key, "", concurrency=concurrency)
        query = f"?capability={segment(wanted[0])}&limit=1000" if wanted else "?limit=1000"
        known = worker._client.call("GET", f"/registry/agents{query}")["agents"]
        same = [a for a in known if a["name"] == name and sorted(a["capabilities"]) == wanted]
        body = {"name": name, "capabilities": wanted, "runtime": {"kind": "worker"}, **fields}
        found = same[0] if same else worker._client.call("POST", "/registry/agents", body)
        worker.agent_id = found["agent_id"]
        return worker

    def handler(self, function: Handler) -> Handler:
        """Decorator: the function (or coroutine function) that does a task and returns its result."""
        self._handler = function
        return function

    def run(self) -> None:
        """Work until `stop`, SIGINT or SIGTERM; running tasks are finished first."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._on_signal)
        beating = threading.Thread(target=self._beat, daemon=True)
        beating.start()
        with ThreadPoolExecutor(2 * self._concurrency) as pool:
            while not self._stopping.is_set():
                for task in self._claim():
                    pool.submit(self._do, task)
        self._ended.set()
        beating.join()
        self._client.close()

    def stop(self) -> None:
        """Claim no more; `run` returns when the running tasks have ended."""
        self._stopping.set()

    def _on_signal(self, *_: Any) -> None:
        self.stop()
        if self._polling:
            raise _Interrupted

    def _claim(self) -> list[Task]:
        """Tasks for the free places; waits for the first place and, at the service, for the first task."""
        if not self._free.acquire(timeout=0.5):
            return []
        places = 1
        while places < self._concurrency and self._free.acquire(blocking=False):
            places += 1
        body = {"max": places, "wait_seconds": WAIT_SECONDS, "lease_seconds": LEASE_SECONDS}
        claims: list[dict[str, Any]] = []
        try:
            claims = self._poll(body)
        except ServiceError as error:
            if self._stopping.is_set():
                return []
            if error.code != "ROUTING_AGENT_UNAVAILABLE":
                raise
            log.warning("%s; waiting", error)
            self._stopping.wait(5)
        finally:
            if places > len(claims):
                self._free.release(places - len(claims))
        tasks = [Task(self._client, claim) for claim in claims]
        self._tasks.update(tasks)
        return tasks

    def _poll(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The long poll; a signal ends it at once, the service sees us gone and gives us nothing."""
        try:
            self._polling = True
            found: list[dict[str, Any]] = self._client.call("POST", f"/agents/{segment(self.agent_id)}/claims", body)[
                "tasks"
            ]
            return found
        except _Interrupted:
            return []
        finally:
            self._polling = False

    def _do(self, task: Task) -> None:
        try:
            try:
                verb, body = self._ending(task)
            finally:
                self._reports.acquire()
                self._free.release()
            task.post(verb, body)
        except TaskCancelled:
            log.info("task %s was taken back", task.id)
        except ServiceError as error:
            log.error("the end of task %s could not be reported: %s", task.id, error)
        finally:
            self._tasks.discard(task)
            self._reports.release()

    def _ending(self, task: Task) -> tuple[str, dict[str, Any]]:
        """Runs the handler; answers what is to be posted. Raises TaskCancelled, ServiceError."""
        try:
            result = self._call(task)
            task.flush()
        except (TaskCancelled, ServiceError):
            raise
        except Failed as failure:
            error = {"code": failure.code, "message": str(failure)[:MAX_MESSAGE] or "no reason given"}
            return "fail", {"error": error, "outcome_class": failure.outcome_class}
        except Exception as error:
            # Whatever a handler throws ends its task, never the worker.
            log.exception("the handler failed on task %s", task.id)
            message = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
            return "fail", {"error": {"code": "HANDLER_FAILED", "message": message}}
        return "complete", _answer(result)

    def _call(self, task: Task) -> Any:
        if self._handler is None:
            raise Failed("The worker has no handler.", "NO_HANDLER")
        result = self._handler(task)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result

    def _beat(self) -> None:
        """Renew all leases every few seconds, also of the tasks that a stopping worker still finishes."""
        while not self._ended.wait(BEAT_SECONDS):
            for task in list(self._tasks):
                task.heartbeat(LEASE_SECONDS)


async def _awaited(result: Any) -> Any:
    return await result


def _answer(result: Any) -> dict[str, Any]:
    if not isinstance(result, Result):
        return {"result": result}
    body = {"result": result.value, "degraded": result.degraded}
    said = {"performance": result.performance, "cost": result.cost}
    return body | {name: value for name, value in said.items() if value is not None}
