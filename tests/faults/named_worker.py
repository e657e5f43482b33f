"""A worker of one agent in a process of its own, one task at a time: ADDRESS KEY AGENT."""

import sys

from stentor_worker import Task, Worker

worker = Worker(sys.argv[1], sys.argv[2], sys.argv[3], concurrency=1)


@worker.handler
def do(task: Task) -> str:
    return str(task.input)


sys.stdout.write("ready\n")
sys.stdout.flush()
worker.run()
