"""What was run and found, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.faults.soak.runs import Result

INVARIANTS = (
    "No task that was answered with 202 is lost, and each of them has ended.",
    "Each task has one end and one event of it; no event follows a cancellation that was answered with 200.",
    "Each attempt begins with an event, one attempt at a time, and only the last one's result was taken.",
    "Each outcome that may be learned from changed weight and trust once; the weights follow from their lessons.",
    "The counts, the chain of each task's events and what clients read agree with the rows.",
    "`stentor provenance verify` finds nothing.",
)


FOUND = (
    "A process that was stopped right after it had begun a transaction held the locks of all others for as long as it "
    "stood still: after a pipeline PostgreSQL does not throw out a transaction that idles. There are no pipelines now.",
    "A lesson whose transaction lost its connection was logged as a failure of learning, with a traceback, before the "
    "transaction was run again. It is run again at once now.",
)
"""What runs before have found in Stentor, mended since."""


def lines(results: list[Result], when: str, machine: str) -> Iterator[str]:
    yield "# Soak report"
    yield ""
    yield f"`make soak` on {when}, {machine}. Written by the run itself; see `CONTRIBUTING.md`."
    yield ""
    flaws = sum(len(result.found) for result in results)
    yield f"**{flaws} violations**" if flaws else "**No violation** of what must hold:"
    yield ""
    yield from (f"- {invariant}" for invariant in INVARIANTS)
    for result in results:
        yield from _of(result)
    yield from ("", "## Found by earlier runs and mended", "")
    yield from (f"- {flaw}" for flaw in FOUND)


def _of(result: Result) -> Iterator[str]:
    plan, history = result.plan, result.history
    yield ""
    yield f"## {result.database}"
    yield ""
    yield (
        f"Seed {plan.seed}, {plan.seconds:.0f} s of faults, {len(history.asked):,} tasks sent, "
        f"{len(history.accepted):,} accepted, {len(history.cancelled):,} cancelled with 200, "
        f"{sum(map(len, history.finished.values())):,} results of external workers taken. "
        f"All had ended {result.settled:.0f} s after the last fault."
    )
    yield from _table("Fault", "times", result.faults)
    yield from _table("Tasks at the end", "number", result.states)
    yield from _table("In the database", "number", result.numbers)
    yield from _table("Answers", "times", dict(sorted(history.answers.items())))
    if result.left_out:
        yield from ("", "Left out here: " + "; ".join(result.left_out) + ".")
    if result.exits:
        ended = "; ".join(f"{name} with {', '.join(map(str, codes))}" for name, codes in result.exits.items())
        yield from ("", f"Ended by themselves and were started again: {ended}.")
    if result.errors:
        yield from _table("Error in a log", "times", dict(result.errors.most_common(20)))
    if result.found:
        yield from ("", "### Violations", "")
        yield from (f"- {line}" for line in result.found[:100])
        yield from ("", "```", *result.trails, "```")


def _table(name: str, count: str, rows: Mapping[str, int]) -> Iterator[str]:
    yield from ("", f"| {name} | {count} |", "| --- | ---: |")
    yield from (f"| {key.replace('|', '/')} | {n:,} |" for key, n in rows.items())
