"""A worker in a process of its own: ADDRESS KEY CAPABILITY [SECONDS per task] [SECONDS of its lease]."""

import sys
import time

from stentor_worker import Task, Worker

lease = int(sys.argv[5]) if len(sys.argv) > 5 else 30
worker = Worker.register(sys.argv[1], sys.argv[2], "worker", [sys.argv[3]], lease_seconds=lease)


@worker.handler
def do(task: Task) -> str:
    time.sleep(float(sys.argv[4]) if len(sys.argv) > 4 else 0)
    return str(task.input)


sys.stdout.write("ready\n")
sys.stdout.flush()
worker.run()
