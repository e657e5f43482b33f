"""A desk for pull requests: a webhook brings them, two reviewers compete, a person approves the merge.

python examples/showcases/pull-request-desk/run.py
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))
from showcase import QuietHandler, Showcase, running, say, serving

LARGE, SMALL = "gpt-5", "gpt-5-mini"
PRICES = f"openai/{LARGE}=1.25/10,openai/{SMALL}=0.25/2"
PROMPT = "You review pull requests. Name the one mistake in the diff, in a sentence. If there is none, say: no mistake."
DOCS = [
    ("Explain the retries", "+Failed calls are tried agian up to three times.", "agian"),
    ("Describe the cache", "+The cache is cleared evry hour.", "evry"),
    ("Mention the port", "+The service lisens on port 8080.", "lisens"),
    ("Name the licence", "+It is free softwear under MIT.", "softwear"),
]
SECURITY = [
    ("Check passwords", "+    return given == stored_password", "constant time"),
    ("Find a user", "+    db.execute(f\"select * from users where name = '{name}'\")", "injection"),
    ("Unpack uploads", "+    tarfile.open(upload).extractall(folder)", "extractall"),
    ("Generate a token", "+    token = str(random.random())", "random"),
]
"""Title, diff, and the word without which a review has missed the mistake."""
FILE = "".join(f" def unchanged_{n}(value):\n     return value + {n}\n" for n in range(150))
"""The rest of the file, which reviewers get with the diff: most of what a review costs."""
ROUNDS = 4
ROW = "  {:<24} {:<9} {:<9} {:<8} {}"


def scripted(model: str, prompt: str) -> str:
    """Both models find wrong spelling; the small one finds nothing in code."""
    for _, diff, word in DOCS:
        if diff in prompt:
            return f"The word {word!r} is spelled wrongly; the rest of the sentence reads well."
    for _, diff, word in SECURITY:
        if diff in prompt and model == LARGE:
            return f"This is a matter of security ({word}): an attacker chooses what reaches this line."
    return "no mistake"


def main() -> None:
    with running(scripted, SERVICE_LLM_PRICES=PRICES) as service, forge_webhook() as (hook, arrived):
        reviewers = register(service)
        pulls = [(kind, *pull) for kind, pulls in (("docs", DOCS), ("security", SECURITY)) for pull in pulls] * ROUNDS
        say(f"{len(pulls)} pull requests arrive at {hook}; both reviewers get the first of each kind.")
        print("\n  Expected: the share of good reviews, and the cents that one costs.\n")
        print(ROW.format("", "", "", "mistake", "expected of"))
        print(ROW.format("pull request", "kind", "reviewer", "found", "large       small"))
        tried: set[str] = set()
        for number, (kind, title, diff, word) in enumerate(pulls, 1):
            pull = {"number": number, "title": title, "diff": diff, "labels": [kind]}
            httpx.post(hook, json={"action": "opened", "pull_request": pull}).raise_for_status()
            pull = arrived.get()
            for reviewer in (None,) if kind in tried else reviewers:
                review(service, pull, word, reviewer)
            tried.add(kind)
        merge_id = propose_merge(service, pulls[-1][1])
        report(service)
        names = {a["name"]: a["agent_id"] for a in service.person.get("/registry/agents").json()["agents"]}
        compared = "&".join(f"agent={names[name]}" for name in ("large", "small"))
        print(f"The merge that was approved: {service.dashboard}/tasks/{merge_id}")
        service.show("What the two reviewers did and what they cost, side by side:", f"/agents/compare?{compared}")


def register(service: Showcase) -> list[str]:
    """Register two reviewers that are models, and one agent that merges: its tasks wait for a person.

    Return the ids of the reviewers.
    """
    reviewers = []
    for name, model in (("large", LARGE), ("small", SMALL)):
        runtime = {"kind": "llm", "options": {"model": f"openai/{model}", "system_prompt": PROMPT}}
        body = {"name": name, "capabilities": ["review"], "runtime": runtime}
        made = service.person.post("/registry/agents", json=body).raise_for_status().json()
        reviewers.append(str(made["agent_id"]))
    body = {"name": "merger", "capabilities": ["merge"], "trust_tier": "human"}
    service.person.post("/registry/agents", json=body).raise_for_status()
    return reviewers


def review(service: Showcase, pull: dict[str, Any], word: str, reviewer: str | None) -> None:
    """Have a pull request reviewed, grade the review by whether it found the mistake, and print what happened."""
    kind, title = pull["labels"][0], f"#{pull['number']} {pull['title']}"
    given = {"text": pull["diff"] + "\n" + FILE}
    task_id = service.submit(f"review-{kind}", given, "review", title, agent=reviewer, prefer="cheap")
    task = service.ended(task_id)
    if task["status"] != "completed":
        sys.exit(f"The review failed: {task['error']}")
    is_found = word.lower() in str(task["result"]).lower()
    service.person.post(f"/tasks/{task_id}/grade", json={"grade": float(is_found)}).raise_for_status()
    activity = service.person.get(f"/tasks/{task_id}/activity").json()
    expected = "the first: both look" if reviewer else describe(activity["routing"])
    print(ROW.format(title, kind, activity["agent_name"], "yes" if is_found else "no", expected), flush=True)


def describe(routing: dict[str, Any]) -> str:
    """Return what the decision says of both reviewers: the share of good reviews to expect, and the cost of one."""
    said = []
    for one in sorted(routing["candidates"], key=lambda one: one["name"]):
        cost = "unknown" if one["cost"] is None else f"{100 * one['cost']:.2f}"
        said.append(f"{one['expected']:.2f}, {cost}")
    return "  ".join(said)


def propose_merge(service: Showcase, title: str) -> str:
    """Ask for a merge. It waits until a person says yes; here the script is that person, and then the merger."""
    task_id = service.submit("merge", {"pull_request": title}, "merge", f"Merge: {title}")
    task = service.ended(task_id)
    print()
    say(f"Merging requires a person's approval: the task is {task['status']}. Approved with the key of a person.")
    service.person.post(f"/tasks/{task_id}/approve").raise_for_status()
    claims = service.person.post(f"/agents/{task['assigned_agent']}/claims", json={}).raise_for_status().json()
    body = {"epoch": claims["tasks"][0]["epoch"], "result": f"Merged: {title}"}
    service.person.post(f"/tasks/{task_id}/complete", json=body).raise_for_status()
    return task_id


def report(service: Showcase) -> None:
    """Print who reviewed what, and what it cost compared with the large model alone."""
    calls = [call for page in pages(service) for call in page]
    spent = sum(call["cost_usd"] or 0 for call in calls)
    large = [call["cost_usd"] or 0 for call in calls if call["model"].endswith(LARGE)]
    alone = sum(large) / len(large) * len(calls) if large else 0
    counts = {model: sum(call["model"].endswith(model) for call in calls) for model in (LARGE, SMALL)}
    compared = f"; with {LARGE} alone about {alone:.5f}. Saved: {100 * (1 - spent / alone):.0f}%." if alone else "."
    print()
    say(f"{counts[LARGE]} reviews by {LARGE}, {counts[SMALL]} by {SMALL}: {spent:.5f} dollars{compared}")


def pages(service: Showcase) -> Any:
    cursor: dict[str, str] = {}
    while True:
        page = service.person.get("/llm/calls", params={"limit": 200, **cursor}).raise_for_status().json()
        yield page["calls"]
        if not page["next_cursor"]:
            return
        cursor = {"cursor": page["next_cursor"]}


@contextmanager
def forge_webhook() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """An address that a forge calls when somebody opens a pull request, and the queue of what arrived there."""
    arrived: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if event["action"] == "opened":
                arrived.put(event["pull_request"])
            self.send_response(202)
            self.end_headers()

    with serving(Handler) as address:
        yield f"{address}/hook", arrived


if __name__ == "__main__":
    main()
