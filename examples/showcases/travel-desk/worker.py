"""The agent of the travel desk: it plans a trip, asks a person, and books three things.

worker.py ADDRESS KEY AGENT AGENCY
"""

from __future__ import annotations

import sys
from typing import Any

import httpx

from stentor_worker import Task, Worker

MODEL = "openai/gpt-5-mini"
BOOKINGS = ("flight", "hotel", "car")

address, key, agent_id, agency = sys.argv[1:5]
worker = Worker(address, key, agent_id, lease_seconds=2)  # so that another attempt begins soon after its death
http = httpx.Client(timeout=60, trust_env=False)  # a proxy is not for this machine


@worker.handler
def travel(task: Task) -> dict[str, Any]:
    offers = {what: task.step(f"look up {what}", look_up, task, what) for what in BOOKINGS}
    answer = task.ask(f"Book {', '.join(offers.values())}?", ["yes", "no"])
    if answer == "no":
        return {"booked": []}
    booked = [task.effect(f"book {what}", book, offers[what], idempotent=True) for what in BOOKINGS]
    return {"booked": booked}


def look_up(task: Task, what: str) -> str:
    """Ask a model, through the gateway: the call belongs to the task, and is paid once."""
    prompt = f"Name one {what} for: {task.input}. Answer with its name alone."
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
    headers = {"Authorization": f"Bearer {key}", "X-Task-Id": task.id}
    answer = http.post(f"{address}/v1/chat/completions", json=body, headers=headers).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"]).strip()


def book(idempotency_key: str, offer: str) -> str:
    """Book with the agency, which takes idempotency keys."""
    answer = http.post(f"{agency}/bookings", json={"offer": offer}, headers={"Idempotency-Key": idempotency_key})
    return str(answer.raise_for_status().json()["booking"])


if __name__ == "__main__":
    worker.run()
