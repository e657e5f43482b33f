"""The SDK for agents that take their tasks from Stentor.

from stentor_worker import Worker

worker = Worker.register("http://127.0.0.1:8080", key, "counter", ["count"])

@worker.handler
def count(task):
    return {"words": len(task.input.split())}

worker.run()
"""

from stentor_worker.client import ServiceError
from stentor_worker.task import Failed, ProviderFailed, Result, Task, TaskCancelled
from stentor_worker.worker import Worker

__version__ = "0.2.0"
__all__ = ["Failed", "ProviderFailed", "Result", "ServiceError", "Task", "TaskCancelled", "Worker"]
