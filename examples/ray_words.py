"""An agent on Ray: counts the words of a text on all nodes of a cluster, and says how far it is.

PYTHONPATH=examples ray start --head
SERVICE_RAY_ADDRESSES=127.0.0.1:6379 SERVICE_RAY_ENTRYPOINTS=ray_words:* stentor serve
stentor agent register counter --capability count-words --runtime ray --entrypoint ray_words:count_words
stentor task submit --type count-words --capability count-words --input "..." --wait
"""

from collections import Counter

import ray

LINES_PER_PART = 1_000


@ray.remote(num_cpus=0.5)
def count_part(lines):
    return Counter(word.lower() for line in lines for word in line.split())


def count_words(task):
    """What a function yields goes to the task's stream; what it returns is its result."""
    lines = task["input"].splitlines()
    parts = [count_part.remote(lines[i : i + LINES_PER_PART]) for i in range(0, len(lines), LINES_PER_PART)]
    total, waiting = Counter(), parts
    while waiting:
        (done,), waiting = ray.wait(waiting)
        total += ray.get(done)
        yield f"{len(parts) - len(waiting)} of {len(parts)} parts are counted. "
    return {"result": dict(total.most_common(10))}
