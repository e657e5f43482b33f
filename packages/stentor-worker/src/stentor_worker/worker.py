"""The worker: claims tasks, runs the handler in threads, renews the leases and reports the results.

Everything it sends goes through `http.client`; what a handler sees is in `task`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from stentor_worker import running
from stentor_worker.branches import Branch, fire_timers_when_idle, running_in
from stentor_worker.errors import Failed, TaskCancelled, most_urgent, to_message, to_plain
from stentor_worker.http.client import Client, ServiceError, segment
from stentor_worker.replay import Replay, replay
from stentor_worker.reports import build_error_report, build_result_report
from stentor_worker.steps import request_threads
from stentor_worker.task import Task
from stentor_worker.waits import to_list

Handler = Callable[[Task], Any]
LEASE_SECONDS = 30
BEATS_PER_LEASE = 3.75
"""So that one or two lost heartbeats do not lose the task."""
POLL_SECONDS = 5
"""How long the service may hold a long poll open."""
MAX_CLAIM = 100
"""How many tasks the service hands out at once."""
RETRY_SECONDS = 5.0
"""How long a worker waits before it claims again, when the service rejected a claim that it may accept later."""
LEAVE_SECONDS = 3.0
"""How long a worker that ends waits for the service's response."""
log = logging.getLogger(__name__)


class _Interrupted(Exception):
    """A signal arrived during a long poll."""


class Worker:
    """A worker for one agent.

    `agent_id` is the agent's id or its name; `ca_file` has the certificate of a service that no public authority knows,
    in PEM. A killed worker loses nothing: when their leases of `lease_seconds` expire, its tasks go back to the queue.
    """

    _is_for_replay = False  # true of the class while a program is imported for a replay, which must do no task

    def __init__(
        self,
        url: str,
        key: str,
        agent_id: str,
        *,
        concurrency: int = 4,
        lease_seconds: int = LEASE_SECONDS,
        ca_file: str | None = None,
    ) -> None:
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._client = Client(url, key, self._stopping, ca_file)
        self._free = threading.Semaphore(concurrency)
        # A slot is free as soon as the handler ends, so that the next task is fetched during the report. This bounds
        # the reports that run in parallel with the handlers.
        self._reports = threading.Semaphore(concurrency)
        self._concurrency, self._lease_seconds = concurrency, lease_seconds
        self._tasks: set[Task] = set()
        self._handler: Handler | None = None
        self._polling = False
        self._is_connected = False
        self._interrupted_at: float | None = None
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
        lease_seconds: int = LEASE_SECONDS,
        ca_file: str | None = None,
        **fields: Any,
    ) -> Worker:
        """Return a worker for the agent with this name and these capabilities; register it if there is none.

        Needs an admin's key. `fields` are further fields of the registration. Raises ServiceError, and TypeError for
        a text as `capabilities`. A program that does not handle the ServiceError ends with its text instead of a
        traceback.
        """
        required = sorted(set(to_list("capabilities", capabilities)))
        worker = cls(url, key, "", concurrency=concurrency, lease_seconds=lease_seconds, ca_file=ca_file)
        try:
            worker.agent_id = worker._find_or_register(name, required, fields)
        except ServiceError as error:
            hint = ""
            if error.code == "UNAUTHORIZED":
                hint = "Use one of its keys: data/keys/admin.key has the first, `stentor keys create` makes more."
            elif error.code == "FORBIDDEN":
                words = [name, *(word for capability in required for word in ("--capability", capability))]
                hint = (
                    f"An admin registers the agent with `stentor agent register {shlex.join(words)} --key-name KEY`, "
                    f"where KEY is the name of this worker's key. Then use Worker(url, key, {name!r})."
                )
            if hint:
                error = ServiceError(error.status, error.code, f"{error.message} {hint}")
            # The first mistake with a worker is a wrong key, and the frames would only hide what is wrong.
            running.print_plainly(error, f"{worker._client.url} rejected the worker: {error}")
            raise error.with_traceback(None) from None
        return worker

    def _find_or_register(self, name: str, required: list[str], fields: dict[str, Any]) -> str:
        query = f"?capability={segment(required[0])}&limit=1000" if required else "?limit=1000"
        page = self._client.call("GET", f"/registry/agents{query}")
        agents = page["agents"]
        while page.get("next_cursor"):
            page = self._client.call("GET", f"/registry/agents{query}&cursor={segment(page['next_cursor'])}")
            agents += page["agents"]
        # The service finds agents that have more capabilities too; this worker wants exactly its own.
        matches = [a for a in agents if a["name"] == name and sorted(a["capabilities"]) == required]
        body = {"name": name, "capabilities": required, "runtime": {"kind": "worker"}, **fields}
        agent = matches[0] if matches else self._client.call("POST", "/registry/agents", body)
        return str(agent["agent_id"])

    def handler(self, function: Handler) -> Handler:
        """Register the function or coroutine function that runs a task and returns its result (a decorator).

        Raises ValueError for a second one: a handler that does several types of tasks checks `task.type`.
        """
        if self._handler is not None:
            raise ValueError("A worker has one handler. Look at task.type in it, or run several workers.")
        self._handler = function
        return function

    def run(self) -> None:
        """Run tasks until `stop`, SIGINT, SIGTERM or an unhandled SIGHUP, then wait for the running ones.

        A signal stops all workers of the program if one of them runs in the main thread. Another Ctrl-C, more than a
        second later, ends the program at once, as a kill does: its tasks go back to the queue as their leases expire.
        Logs to the logger `stentor_worker`; to standard error if the program has not configured logging. A key or an
        agent that the service rejects raises ServiceError; in the main thread it is logged and ends the program with
        exit code 1, because a traceback would only hide it.

        A worker in another thread also stops when the main thread ends, because from then on Python lets no thread pool
        start work; so the main thread should join that thread.
        """
        self._check_may_run()
        running.configure_logging()
        replaced: dict[int, Any] = {}
        # Python allows handlers of signals in no other thread.
        if threading.current_thread() is threading.main_thread():
            replaced = {number: signal.signal(number, self._on_signal) for number in running.list_stop_signals()}
        heartbeats = threading.Thread(target=self._send_heartbeats, daemon=True)
        heartbeats.start()
        running.add(self)
        try:
            # Twice the concurrency: a thread that reports a result is not available to a handler.
            with ThreadPoolExecutor(2 * self._concurrency) as pool:
                while not self._stopping.is_set():
                    for task in self._claim():
                        pool.submit(self._run_task, task)
                if self._interrupted_at is not None:
                    # Also those of the other workers: once this returns, another Ctrl-C would find them running.
                    running.wait_for_all(self)
        except ServiceError as error:
            if threading.current_thread() is not threading.main_thread():
                raise
            log.error("worker: rejected by %s error=%s", self._client.url, error)
            raise SystemExit(1) from None
        finally:
            running.remove(self)
            # The pool did not accept it, for example because Python cannot start more threads: nobody must wait for it.
            self._tasks.clear()
            self._ended.set()
            heartbeats.join()
            self._leave()
            self._client.close()
            for number, handler in replaced.items():
                # None is a handler that was not set from Python, which cannot restore it.
                if handler is not None:
                    signal.signal(number, handler)

    def _check_may_run(self) -> None:
        if self._is_for_replay:
            raise ImportError(
                'Put `worker.run()` under `if __name__ == "__main__":`, so that a replay can import the program.'
            )
        if self._handler is None:
            raise ValueError("The worker has no handler: decorate a function with @worker.handler.")

    def replay(self, task_id: str) -> Replay:
        """Run the handler over what a run recorded, and return where it differs; nothing is sent or recorded.

        Code outside of steps runs. Raises ServiceError for a task that the worker's key may not see.
        """
        return replay(self._client, task_id, self._execute)

    def stop(self) -> None:
        """Stop claiming tasks; `run` returns when the running ones have ended."""
        self._stopping.set()

    def count_tasks(self) -> int:
        """Return how many claimed tasks have not been reported."""
        return len(self._tasks)

    def _leave(self) -> None:
        """Tell the service that this worker ends, so that its agent is offline at once and not only after a timeout."""
        if self._is_connected:
            path = f"/agents/{segment(self.agent_id)}/leave"
            # Nobody waits for a worker that ends: a service that is down or older must not delay it.
            with suppress(ServiceError):
                self._client.call("POST", path, tries=1, timeout_s=LEAVE_SECONDS)

    def _on_signal(self, number: int, *_: Any) -> None:
        now = time.monotonic()
        if self._interrupted_at is None:
            self._interrupted_at = now
        elif number == signal.SIGINT and now - self._interrupted_at > running.REPEAT_SECONDS:
            # Not Python's handler, whose exception would wait for the threads.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        # Of all workers: Python passes no signal to the other threads.
        self.stop()
        running.stop_all()
        # The exception ends the long poll at once. Elsewhere it would hit code that must complete, such as a claim, or
        # the end of the poll that the first one brought about.
        if self._polling:
            self._polling = False
            raise _Interrupted

    def _claim(self) -> list[Task]:
        """Claim tasks for all free slots; wait for the first slot, then at the service for the first task."""
        if not self._free.acquire(timeout=0.5):
            return []
        slots = 1
        while slots < min(self._concurrency, MAX_CLAIM) and self._free.acquire(blocking=False):
            slots += 1
        body = {"max": slots, "wait_seconds": POLL_SECONDS, "lease_seconds": self._lease_seconds}
        claims: list[dict[str, Any]] = []
        try:
            claims = self._poll(body)
        except ServiceError as error:
            if self._stopping.is_set():
                return []
            # Before the first connection the URL may be wrong.
            is_trouble = self._is_connected and (error.status >= 500 or error.is_outage)
            if error.code != "ROUTING_AGENT_UNAVAILABLE" and not is_trouble:
                raise
            log.warning("worker: no claim possible, retrying error=%s", error)
            # Not a sleep, so that `stop` ends it.
            self._stopping.wait(RETRY_SECONDS)
        finally:
            if slots > len(claims):
                self._free.release(slots - len(claims))
        tasks = [Task(self._client, claim) for claim in claims]
        self._tasks.update(tasks)
        return tasks

    def _poll(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Run the long poll. A signal aborts it: the service notices the disconnect and hands out no task.

        Tasks of a response that was under way are lost: their lease ends, and they are handed out again.
        """
        claims: list[dict[str, Any]] = []
        try:
            self._polling = True
            if not self._is_connected:
                self._connect()
            path = f"/agents/{segment(self.agent_id)}/claims"
            claims = self._client.call("POST", path, body, until_stop=True)["tasks"]
        except _Interrupted:
            pass  # it may have come after the response
        finally:
            self._polling = False
        return claims

    def _connect(self) -> None:
        """Ask for the agent, whose id replaces a name, and log it. Raises ServiceError as a claim does."""
        agent = self._client.call("GET", f"/agents/{segment(self.agent_id)}", until_stop=True)
        self.agent_id = agent["agent_id"]
        self._is_connected = True
        capabilities = ", ".join(agent["capabilities"]) or "of any type"
        log.info("worker: connected to %s as %s; waiting for tasks (%s)", self._client.url, agent["name"], capabilities)

    def _run_task(self, task: Task) -> None:
        try:
            try:
                verb, body = self._execute(task)
            finally:
                # Before the slot is free: at most as many reports as handlers may wait, or the pool would run out of
                # threads.
                self._reports.acquire()
                self._free.release()
            verb = self._report(task, verb, body)
            log.info("worker: task reported task_id=%s outcome=%s", task.id, verb)
        except TaskCancelled:
            log.info("worker: task cancelled task_id=%s", task.id)
        except ServiceError as error:
            log.error("worker: report failed task_id=%s error=%s", task.id, error)
        except Exception:
            # The pool would drop the exception silently.
            log.exception("worker: report failed task_id=%s", task.id)
        finally:
            self._tasks.discard(task)
            self._reports.release()

    def _report(self, task: Task, verb: str, body: dict[str, Any]) -> str:
        """Report how an attempt ended, or a failure if the service rejects the report; return what was reported.

        Without a report, the task would be executed again until its attempts are used up.
        """
        try:
            task.post(verb, body)
        except TaskCancelled:
            raise
        except Exception as error:
            # Besides a rejection: what JSON cannot have raises an error of many kinds, also of the program's classes.
            if isinstance(error, ServiceError) and error.status not in (400, 413):
                raise
            if verb == "fail" and "cost" in body:
                # Why the task failed is worth more than what that cost.
                log.error("worker: cost rejected task_id=%s error=%s", task.id, to_plain(to_message(error)))
                return self._report(task, verb, {name: value for name, value in body.items() if name != "cost"})
            what = "result" if verb == "complete" else "end of this attempt"
            hint = " (is an await missing?)" if "type coroutine" in to_message(error) else ""
            message = to_plain(f"The {what} could not be reported: {to_message(error)}{hint}")
            log.error("worker: report rejected task_id=%s error=%s", task.id, message)
            task.post("fail", {"error": {"code": "REPORT_REJECTED", "message": message}})
            return "fail"
        return verb

    def _execute(self, task: Task) -> tuple[str, dict[str, Any]]:
        """Run the handler; return verb and body of the report. Raises TaskCancelled."""
        try:
            result = self._call(task)
            task.flush()
            task.require_complete()
        except BaseException as raised:  # noqa: BLE001 - the thread pool would swallow it
            end = build_error_report(task, most_urgent([raised]))
            # Sends the output from before its question or its error. The end is reported whether or not this arrives.
            with suppress(Exception):
                task.flush()
            return end
        return "complete", build_result_report(result)

    def _call(self, task: Task) -> Any:
        if self._handler is None:
            raise Failed("The worker has no handler.", "NO_HANDLER")
        task.open_here()
        if inspect.iscoroutinefunction(self._handler):
            task.load()
        with request_threads():
            result = self._handler(task)
            return asyncio.run(_awaited(task, result)) if inspect.isawaitable(result) else result

    def _send_heartbeats(self) -> None:
        """Renew all leases periodically, including those of tasks that a stopping worker still finishes."""
        while not self._ended.wait(self._lease_seconds / BEATS_PER_LEASE):
            # Concurrently, and within this time limit: a missing response, or slow ones of many tasks, must not cost
            # the other tasks their leases.
            beat = (self._lease_seconds, self._lease_seconds / BEATS_PER_LEASE)
            # A copy, because other threads add and remove tasks.
            beats = [threading.Thread(target=task.heartbeat, args=beat, daemon=True) for task in list(self._tasks)]
            for thread in beats:
                thread.start()
            for thread in beats:
                thread.join()


async def _awaited(task: Task, result: Any) -> Any:
    task.open_here()
    fire_timers_when_idle(asyncio.get_running_loop())
    try:
        with running_in(Branch()):
            return await result
    finally:
        await task.finish_effects()
