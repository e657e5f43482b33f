"""A bank that pays refunds, and a worker that asks it to and is killed while it does.

`python -m tests.faults.refunds ADDRESS KEY BANK MODE`: MODE says what the bank can do: `keys` (it takes idempotency
keys), `ask` (it can be asked about a key), `blind` (neither), or `planted` (a worker that uses no effect, as many do).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from stentor_worker import Task, Worker

CONCURRENCY, LEASE_SECONDS = 8, 2


class Bank:
    """Pays refunds; `paid` counts them by what they are for."""

    def __init__(self, *, takes_keys: bool) -> None:
        self.takes_keys = takes_keys
        self.address = ""
        self.paid: Counter[str] = Counter()
        self.killed: set[str] = set()
        """Refunds whose worker killed itself while it sent them."""
        self._keys: set[str] = set()
        self._lock = threading.Lock()

    def pay(self, refund: str, key: str) -> bool:
        """Return whether a worker should die now: at the first request for each refund."""
        with self._lock:
            if not (self.takes_keys and key in self._keys):
                self.paid[refund] += 1
            self._keys.add(key)
            is_first = refund not in self.killed
            self.killed.add(refund)
        return is_first

    def knows(self, key: str) -> bool:
        with self._lock:
            return key in self._keys

    @property
    def doubled(self) -> list[str]:
        """The checker: refunds that were paid more than once."""
        return [refund for refund, times in self.paid.items() if times > 1]


@contextmanager
def run_bank(bank: Bank) -> Iterator[Bank]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._respond({"die": bank.pay(body["refund"], body["key"])})

        def do_GET(self) -> None:
            self._respond({"known": bank.knows(self.path.rpartition("/")[2])})

        def _respond(self, body: Any) -> None:
            payload = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        bank.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield bank
        finally:
            server.shutdown()
            thread.join()


def main(address: str, service_key: str, bank: str, mode: str) -> None:
    worker = Worker.register(
        address,
        service_key,
        "refunder",
        [f"refund-{mode}"],
        concurrency=CONCURRENCY,
        lease_seconds=LEASE_SECONDS,
    )
    http = httpx.Client(base_url=bank, timeout=30)

    def send(key: str, refund: str) -> str:
        if http.post("/refunds", json={"refund": refund, "key": key}).json()["die"]:
            if secrets.randbelow(2):  # now, or after what others do meanwhile
                threading.Event().wait(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        return f"refunded {refund}"

    def check(key: str) -> str | None:
        return "refunded before" if http.get(f"/keys/{key}").json()["known"] else None

    @worker.handler
    def refund(task: Task) -> Any:
        task.step("look up", lambda: {"order": task.input})
        if mode == "planted":
            return send(f"{task.id}:{task.epoch}", task.input)
        return task.effect(
            "refund", send, task.input, check=check if mode == "ask" else None, idempotent=mode == "keys"
        )

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:5])
