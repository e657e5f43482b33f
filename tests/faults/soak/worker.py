"""A worker with the SDK that writes down what it was answered: ADDRESS KEY FILE."""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from stentor_worker import Failed, ProviderFailed, Task, Worker
from stentor_worker import worker as sdk

LEASE_SECONDS = 4
FAILS, PROVIDER_FAILS = 0.03, 0.05


class Remembering(Task):
    """Writes a line for each result that the service took; `told` is the open file."""

    told: Any = None

    def post(self, verb: str, body: dict[str, Any], *, tries: int = 1_000_000, timeout_s: float | None = None) -> None:
        super().post(verb, body, tries=tries, timeout_s=timeout_s)
        if verb in ("complete", "fail"):
            self.told.write(json.dumps({"task_id": self.id, "epoch": self.epoch}) + "\n")
            self.told.flush()


def do(task: Task) -> str:
    time.sleep(random.uniform(0, 0.05))
    chance = random.random()
    if chance < FAILS:
        raise Failed("It did not work out.")
    if chance < PROVIDER_FAILS:
        raise ProviderFailed("What it needs is not there.")
    return str(task.input)


def main() -> None:
    setattr(sdk, "Task", Remembering)  # noqa: B010 - the SDK has no place for it
    worker = Worker.register(sys.argv[1], sys.argv[2], "soak-worker", ["work"], lease_seconds=LEASE_SECONDS)
    worker.handler(do)
    with Path(sys.argv[3]).open("a") as Remembering.told:
        worker.run()


if __name__ == "__main__":
    main()
