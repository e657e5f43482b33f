"""Runs a Ray cluster of two nodes; the second one alone has a GPU. It runs with the Python of .venv/ray.

Prints the address; a line on standard input kills the second node, the end of the input the cluster.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

MEMORY_BYTES = 80_000_000


def main() -> None:
    head = {"num_cpus": 2, "num_gpus": 0, "include_dashboard": False, "object_store_memory": MEMORY_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=MEMORY_BYTES)
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            cluster.remove_node(second, allow_graceful=False)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
