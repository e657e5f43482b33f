"""The demo's third agent: a Python worker in a process of its own. Address, key and agent id come by environment."""

from __future__ import annotations

import os
import re
from collections import Counter

from stentor_worker import Result, Task, Worker

_COMMON = frozenset("about after agent agents their there these which would where every other because before".split())


def main() -> None:
    worker = Worker(os.environ["DEMO_URL"], os.environ["DEMO_KEY"], os.environ["DEMO_AGENT"], concurrency=2)

    @worker.handler
    def keywords(task: Task) -> Result:
        words = [w for w in re.findall(r"[a-z]{5,}", task.input["text"].lower()) if w not in _COMMON]
        counts = Counter(words)
        found = counts.most_common(task.input["top"])
        for word, _ in found:
            task.emit(word + " ")
        share = sum(number for _, number in found) / max(1, sum(counts.values()))
        return Result([word for word, _ in found], performance=max(0.01, min(1.0, share)))

    worker.run()


if __name__ == "__main__":
    main()
