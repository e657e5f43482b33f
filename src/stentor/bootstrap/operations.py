"""The table of operations: what the service offers, and from which parts each list of it is made."""

from __future__ import annotations

from stentor.bootstrap.kernel import Kernel
from stentor.domains.tasks.operations import TaskOperations
from stentor.web.operations import Operation


def task_operations(kernel: Kernel) -> list[Operation]:
    return TaskOperations(kernel.submission, kernel.tasks, kernel.grades).table()
