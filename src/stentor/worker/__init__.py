"""The SDK for worker agents, which pull their tasks from the service over HTTP.

It imports nothing else of Stentor, so that workers can install it alone. For example:

    from stentor.worker import Worker

    worker = Worker.register("http://127.0.0.1:8080", key, "counter", ["count"])

    @worker.handler
    def count(task):
        return {"words": len(task.input.split())}

    worker.run()
"""

from stentor.worker.client import ServiceError
from stentor.worker.task import Failed, ProviderFailed, Result, Task, TaskCancelled
from stentor.worker.worker import Worker

__all__ = ["Failed", "ProviderFailed", "Result", "ServiceError", "Task", "TaskCancelled", "Worker"]
