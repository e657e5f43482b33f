"""The worker SDK by its former name; it is the distribution `stentor-worker`, imported as `stentor_worker`."""

from stentor_worker import Failed, ProviderFailed, Result, ServiceError, Task, TaskCancelled, Worker

__all__ = ["Failed", "ProviderFailed", "Result", "ServiceError", "Task", "TaskCancelled", "Worker"]
