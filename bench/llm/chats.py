"""The LLM gateway before a provider that takes no time: chats per second, added latency, streams; peers beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, at_least, at_most, percentile, spread
from bench.llm import gateways
from bench.llm.gateways import ROOT, Way
from bench.service import rss_mb
from bench.sizes import Scale, say

TITLE = "the LLM gateway before a provider that takes no time"
CONNECTIONS = 32
STREAMS, TOKENS, INTERVAL_MS = 200, 100, 50
PRICED_MODEL, BUDGETS = "openai/gpt-4o-mini", "key:*:usd/day=100000,tenant:default:usd/month=100000"
Rounds = dict[str, list[dict[str, Any]]]
Open = Callable[[Path, int], AbstractContextManager[Way]]
PEERS: dict[str, tuple[str, Open, Callable[[], str], float]] = {
    "litellm": ("LiteLLM proxy", gateways.litellm, gateways.litellm_version, 60),
    "portkey": ("Portkey gateway", gateways.portkey, gateways.portkey_version, 5),
}
"""Name, how it is started, its version, and how many times faster we want to be."""


def run(scale: Scale) -> list[Figure]:
    lacking = gateways.missing()
    for name in lacking:
        say(f"llm: {name} is not installed (make bench does it), so it is no peer")
    peers = {} if scale.quick else {key: peer for key, peer in PEERS.items() if peer[0] not in lacking}
    with scale.scratch() as folder, ExitStack() as open_:
        provider = open_.enter_context(gateways.upstream())
        ways = {"stentor": open_.enter_context(gateways.stentor(folder / "stentor", provider.port))}
        priced = gateways.stentor(folder / "priced", provider.port, PRICED_MODEL, BUDGETS)
        ways["priced"] = open_.enter_context(priced)
        ways["bare"] = open_.enter_context(gateways.bare(folder, provider.port))
        ways |= {key: open_.enter_context(peer[1](folder, provider.port)) for key, peer in peers.items()}
        ways["direct"] = provider
        chats, single = _chats(scale, ways)
        first = list(_first_tokens(scale, ways["stentor"], provider))
        many = list(_many_streams(scale, ways["stentor"]))
    left_out = f"; without {' and '.join(lacking)}, which is not installed" if lacking else ""
    bare = _compared_with_bare(chats, single)
    return [
        *_of_chats(chats, single, left_out),
        *_of_priced(chats, single),
        *bare,
        *_compared(chats, single, peers),
        *first,
        *many,
    ]


def _chats(scale: Scale, ways: dict[str, Way]) -> tuple[Rounds, Rounds]:
    """Alternating rounds at 32 connections and at one; all are warm before the first."""
    sizes = {"litellm": scale.pick(600, 100), "direct": scale.pick(4_000, 200)}
    many: Rounds = {key: [] for key in ways}
    single: Rounds = {key: [] for key in ways}
    for key, way in ways.items():
        load(way, sizes.get(key, scale.pick(2_000, 100)), CONNECTIONS)
    for n in range(scale.pick(scale.rounds, 1)):
        for key, way in ways.items():
            before = _cpu_seconds(way)
            many[key].append(load(way, sizes.get(key, scale.pick(3_000, 200)), CONNECTIONS))
            many[key][-1]["cpu"] = _cpu_seconds(way) - before
            single[key].append(load(way, scale.pick(200, 50), 1))
        say(f"llm: round {n + 1}, " + ", ".join(f"{key} {rate(many[key][-1]):,.0f}/s" for key in ways))
    return many, single


def _first_tokens(scale: Scale, ours: Way, provider: Way) -> Iterator[Figure]:
    """One stream after the other, through the gateway and without it in turns."""
    through: list[float] = []
    direct: list[float] = []
    for _ in range(scale.pick(2 * scale.rounds, 1)):
        through += load(ours, scale.pick(50, 10), 1, tokens=5)["first_ms"]
        direct += load(provider, scale.pick(50, 10), 1, tokens=5)["first_ms"]
    how = f"{len(through)} streams of 5 tokens one by one, minus the same without the gateway, in turns"
    late = median(through) - median(direct)
    yield Figure("first token later than the provider's p50", late, "ms", how, at_most(2))
    late = percentile(through, 0.95) - percentile(direct, 0.95)
    yield Figure("first token later than the provider's p95", late, "ms", how)


def _many_streams(scale: Scale, ours: Way) -> Iterator[Figure]:
    count, tokens = scale.pick(STREAMS, 20), scale.pick(TOKENS, 10)
    assert ours.process is not None
    pid = ours.process.pid
    load(ours, count, count, tokens=10, interval=INTERVAL_MS)  # buffers and code are there before memory is compared
    before, during = rss_mb(pid), []
    with _started(ours, count, count, tokens, INTERVAL_MS) as running:
        while running.poll() is None:
            during.append(rss_mb(pid))
            time.sleep(0.2)
        found = _result(running)
    after = rss_mb(pid)
    how = f"{count} streams of {tokens} tokens at once, one token per {INTERVAL_MS} ms, every token and end checked"
    takes = (tokens - 1) * INTERVAL_MS / 1000
    yield Figure(
        "streams: whole time beyond the provider's", found["seconds"] - takes, "s", f"{how}; it takes {takes} s"
    )
    yield Figure("streams: first token p95", percentile(found["first_ms"], 0.95), "ms", "all opened at the same moment")
    memory = f"{before:.0f} MB before, {max(during):.0f} at most, {after:.0f} after"
    yield Figure("streams: resident memory at most to before", max(during) / before, "×", memory, at_most(1.25))


def _of_chats(chats: Rounds, single: Rounds, left_out: str) -> Iterator[Figure]:
    rates = [rate(found) for found in chats["stentor"]]
    waits = [wait for found in chats["stentor"] for wait in found["latencies_ms"]]
    how = f"POST /v1/chat/completions, {len(waits) // len(rates):,} a round on {CONNECTIONS} keep-alive connections"
    how += f", each with its row and its event on the disk; median{left_out}"
    yield Figure("chats", median(rates), "/s", how, at_least(2_000), spread(rates))
    yield Figure("chat p50 at 32 connections", median(waits), "ms", "the same rounds")
    yield Figure("chat p99 at 32 connections", percentile(waits, 0.99), "ms", "the same rounds")
    how = "user and system time in the same rounds; it says more than the rate when others use the cores"
    yield Figure("processor time per chat", _cpu_ms(chats["stentor"]), "ms", how)
    how = "one connection; minus the same request sent to the provider directly, in turns"
    yield Figure("added latency p50", _added(single, "stentor"), "ms", how, at_most(1))


def _of_priced(chats: Rounds, single: Rounds) -> Iterator[Figure]:
    rates = [rate(found) for found in chats["priced"]]
    how = f"the same requests for {PRICED_MODEL}, whose price is known, within SERVICE_LLM_BUDGETS={BUDGETS}"
    yield Figure("chats with a price and two budgets", median(rates), "/s", how, None, spread(rates))
    cpu, added = _cpu_ms(chats["priced"]), _added(single, "priced")
    yield Figure("with a price and two budgets: processor time per chat", cpu, "ms", "the same rounds")
    yield Figure("with a price and two budgets: added latency p50", added, "ms", "one connection, as above")


def _compared(chats: Rounds, single: Rounds, peers: dict[str, Any]) -> Iterator[Figure]:
    ours = median(rate(found) for found in chats["stentor"])
    for key, (title, _, version, times) in peers.items():
        name, rates = f"{title} {version()}", [rate(found) for found in chats[key]]
        yield Figure(f"{name}: chats", median(rates), "/s", "the same requests in the same rounds", None, spread(rates))
        cpu = _cpu_ms(chats[key])
        yield Figure(f"{name}: processor time per chat", cpu, "ms", "the same rounds")
        added = _added(single, key)
        yield Figure(f"{name}: added latency p50", added, "ms", "one connection, as above")
        if key == "portkey":
            share = _added(single, "stentor") / added
            yield Figure(f"added latency to that of {name}", share, "×", "the two p50", at_most(0.5))
        how = "medians of the same run; it writes no record of a call"
        yield Figure(f"Stentor to {name}", ours / median(rates), "×", how, at_least(times))
        how = "processor time per chat of the same run"
        yield Figure(f"Stentor to {name}, by processor time", cpu / _cpu_ms(chats["stentor"]), "×", how)


def _compared_with_bare(chats: Rounds, single: Rounds) -> Iterator[Figure]:
    rates = [rate(found) for found in chats["bare"]]
    how = "the same requests through uvicorn and our HTTP client alone: no key, no check, no record"
    yield Figure("bare proxy: chats", median(rates), "/s", how, None, spread(rates))
    yield Figure("bare proxy: processor time per chat", _cpu_ms(chats["bare"]), "ms", "the same rounds")
    yield Figure("bare proxy: added latency p50", _added(single, "bare"), "ms", "one connection, as above")
    ours = median(rate(found) for found in chats["stentor"])
    yield Figure("Stentor to the bare proxy", ours / median(rates), "×", "medians of the same run", at_least(0.5))


def _added(single: Rounds, key: str) -> float:
    return _p50(single[key]) - _p50(single["direct"])


def _cpu_seconds(way: Way) -> float:
    """User and system time of the process so far; 0 where there is none of ours."""
    if way.process is None:
        return 0.0
    fields = Path(f"/proc/{way.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpu_ms(rounds: list[dict[str, Any]]) -> float:
    return float(median(1000 * found["cpu"] / len(found["latencies_ms"]) for found in rounds))


def _p50(rounds: list[dict[str, Any]]) -> float:
    return float(median(wait for found in rounds for wait in found["latencies_ms"]))


def rate(found: dict[str, Any]) -> float:
    return float(len(found["latencies_ms"]) / found["seconds"])


def load(way: Way, count: int, connections: int, tokens: int = 0, interval: float = 0) -> dict[str, Any]:
    """One run of the load generator; with `tokens`, of streams. Raises RuntimeError for a wrong answer."""
    with _started(way, count, connections, tokens, interval) as running:
        return _result(running)


def _started(way: Way, count: int, connections: int, tokens: int, interval: float) -> subprocess.Popen[str]:
    messages = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": "Why is the sea salty?"},
    ]
    body: dict[str, Any] = {"model": way.model, "messages": messages, "max_tokens": tokens or 100, "temperature": 0.2}
    if tokens:
        body |= {"stream": True, "user": str(interval)}
    spec = {"host": "127.0.0.1", "port": way.port, "path": "/v1/chat/completions", "headers": way.headers}
    spec |= {"body": body, "count": count, "connections": connections}
    words = [sys.executable, "-m", "bench.llm.load", json.dumps(spec)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _result(running: subprocess.Popen[str]) -> dict[str, Any]:
    out, problem = running.communicate(timeout=600)
    if running.returncode:
        raise RuntimeError(problem)
    return dict(json.loads(out.splitlines()[-1]))
