"""A travel desk whose agent is killed five times and still books each thing once.

python examples/showcases/travel-desk/run.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from showcase import PERSON_KEY, QuietHandler, Showcase, running, say, serving

WORKER = Path(__file__).with_name("worker.py")
OFFERS = {"flight": "TP 577 on 12 May", "hotel": "Hotel Sol, 3 nights", "car": "a small car, 3 days"}


class Agent:
    """The process of the agent, which is started again whenever it is gone, as a supervisor would."""

    def __init__(self, command: list[str]) -> None:
        self._command, self.kills = command, 0
        self._is_stopped = threading.Event()
        self._process = self._start()
        threading.Thread(target=self._supervise, daemon=True).start()

    def kill(self, when: str) -> None:
        """Kill it with SIGKILL: it cannot notice, and records nothing more."""
        self.kills += 1
        say(f"kill -9, number {self.kills}: {when}", "  ")
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._is_stopped.set()
        self._process.terminate()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def _supervise(self) -> None:
        while not self._is_stopped.wait(0.1):
            if self._process.poll() is not None and not self._is_stopped.is_set():
                self._process = self._start()


class Agency:
    """Takes bookings: a repeated request with the same key gives the first booking. Kills the agent at each new one."""

    def __init__(self) -> None:
        self.bookings: dict[str, str] = {}
        self.requests = self.model_calls = 0
        self.agent: Agent | None = None

    def book(self, key: str, offer: str) -> str | None:
        self.requests += 1
        is_new = key not in self.bookings
        booking = self.bookings.setdefault(key, f"{offer} (no. {4711 + len(self.bookings)})")
        if is_new and self.agent is not None:
            self.agent.kill(f"{offer} is booked, and the agent does not know it yet")
            return None
        return booking


def main() -> None:
    agency = Agency()

    def scripted(model: str, prompt: str) -> str:
        agency.model_calls += 1
        if agency.model_calls == 2 and agency.agent is not None:
            agency.agent.kill("one of three offers is looked up")
        return next(offer for what, offer in OFFERS.items() if f"one {what}" in prompt)

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
            offer = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["offer"]
            booking = agency.book(self.headers["Idempotency-Key"], offer)
            if booking is not None:
                content = json.dumps({"booking": booking}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

    with running(scripted) as service, serving(Handler) as address:
        body = {"name": "traveller", "capabilities": ["travel"]}
        made = service.person.post("/registry/agents", json=body).raise_for_status().json()
        command = [sys.executable, str(WORKER), service.address, PERSON_KEY, made["agent_id"], address]
        agency.agent = Agent(command)
        try:
            tell(service, agency, agency.agent)
        finally:
            agency.agent.stop()


def tell(service: Showcase, agency: Agency, agent: Agent) -> None:
    task_id = service.submit("travel", "three days in Lisbon in May", "travel", "Three days in Lisbon")
    question = wait_for(service, task_id, lambda task: task["status"] == "waiting")
    agent.kill("the task waits for a person, and no process holds it")
    asked = service.person.get("/decisions").raise_for_status().json()["steps"][0]
    say(f"it asks: {asked['waits_for']}  A person says yes.", "  ")
    answer = service.person.post(f"/tasks/{question['task_id']}/steps/{asked['key']}/answer", json={"value": "yes"})
    answer.raise_for_status()
    task = wait_for(service, task_id, lambda task: task["status"] in ("completed", "failed"))
    print(f"\nThe task is {task['status']}; the agent was killed {agent.kills} times.")
    for booking in task["result"]["booked"]:
        print(f"  booked: {booking}")
    print(f"\nRequests to the agency: {agency.requests}. Bookings there: {len(agency.bookings)}.")
    if service.is_scripted:
        print(f"Model calls: {agency.model_calls} for three offers; the one that was cut off was made again.")
    service.show("Its steps, what it waited for, and who answered:", f"/tasks/{task_id}")


def wait_for(service: Showcase, task_id: str, is_there: Any) -> dict[str, Any]:
    while True:
        task = service.person.get(f"/tasks/{task_id}").raise_for_status().json()
        if is_there(task):
            return dict(task)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
