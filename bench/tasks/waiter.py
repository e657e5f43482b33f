"""A worker of the SDK that waits 50 ms for each task.

`python -m bench.tasks.waiter ORIGIN PORTS KEY CAPABILITY THREADS N`

It registers, says so, and begins when a line comes; it takes the port whose turn N is.
"""

from __future__ import annotations

import sys
import time

from stentor_worker import Task, Worker


def main() -> None:
    origin, ports, key, capability, threads, n = sys.argv[1:]
    addresses = [f"{origin}:{port}" for port in ports.split(",")]
    made = Worker.register(addresses[0], key, capability, [capability], concurrency=int(threads))
    worker = Worker(addresses[int(n) % len(addresses)], key, made.agent_id, concurrency=int(threads))

    @worker.handler
    def wait(task: Task) -> str:
        time.sleep(0.05)
        return "waited"

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    worker.run()


if __name__ == "__main__":
    main()
