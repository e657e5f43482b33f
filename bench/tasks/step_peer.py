"""The peer of `steps`, a process of its own: DBOS, `python -m bench.tasks.step_peer DATABASE WORKFLOWS STEPS`.

DATABASE is the file of a SQLite database, or the URL of a PostgreSQL one. As many workflows at once, each of so many
steps that do nothing, set up as in `dbos_peer.py`. Prints one line of JSON: `seconds` and `version`.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS


def empty(n: int) -> int:
    return n


STEP = DBOS.step()(empty)


def run_steps(count: int) -> int:
    return sum(int(STEP(1)) for _ in range(count))


WORKFLOW = DBOS.workflow()(run_steps)


def run(workflows: int, steps: int) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(workflows) as pool:
        done = list(pool.map(lambda _: int(DBOS.start_workflow(WORKFLOW, steps).get_result()), range(workflows)))
    if done != [steps] * workflows:
        raise RuntimeError("the workflows answered something else")
    return time.perf_counter() - started


def main() -> None:
    database, workflows, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    url = database if database.startswith("postgresql:") else f"sqlite:///{database}"
    DBOS(config={"name": "peer", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    run(workflows, 2)  # threads and pools are warm when the clock starts
    seconds = run(workflows, steps)
    DBOS.destroy()
    print(json.dumps({"seconds": seconds, "version": importlib.metadata.version("dbos")}))


if __name__ == "__main__":
    main()
