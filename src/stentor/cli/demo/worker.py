"""The demo's third agent, a worker process. Address, key and agent id come from DEMO_URL, DEMO_KEY and DEMO_AGENT."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter

from stentor_worker import Result, Task, Worker

_COMMON = frozenset("about after agent agents their there these which would where every other because before".split())


def main() -> None:
    """Run the worker: return the most frequent long words of a text."""
    logging.basicConfig(level=logging.WARNING)  # the report says what it did
    worker = Worker(os.environ["DEMO_URL"], os.environ["DEMO_KEY"], os.environ["DEMO_AGENT"], concurrency=2)

    @worker.handler
    def keywords(task: Task) -> Result:
        words = [w for w in re.findall(r"[a-z]{5,}", task.input["text"].lower()) if w not in _COMMON]
        counts = Counter(words)
        top = counts.most_common(task.input["top"])
        for word, _ in top:
            task.emit(word + " ")
        share = sum(number for _, number in top) / max(1, sum(counts.values()))
        return Result([word for word, _ in top], performance=max(0.01, min(1.0, share)))

    worker.run()


if __name__ == "__main__":
    main()
