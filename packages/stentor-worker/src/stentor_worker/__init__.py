"""The SDK for agents that take their tasks from Stentor.

from stentor_worker import Worker

worker = Worker.register("http://127.0.0.1:8080", key, "counter", ["count"])

@worker.handler
def count(task):
    return {"words": len(task.input.split())}

worker.run()
"""

from stentor_worker.errors import (
    AttemptEnded,
    ChildFailed,
    EffectFailed,
    EffectUnknown,
    Failed,
    ProviderFailed,
    StepFailed,
    StepMismatch,
    Suspended,
    TaskCancelled,
    WaitTimeout,
)
from stentor_worker.http.client import ServiceError
from stentor_worker.replay import Replay
from stentor_worker.task import Result, Task
from stentor_worker.waits import Child
from stentor_worker.worker import Worker

__version__ = "0.2.0"
__all__ = [
    "AttemptEnded",
    "Child",
    "ChildFailed",
    "EffectFailed",
    "EffectUnknown",
    "Failed",
    "ProviderFailed",
    "Replay",
    "Result",
    "ServiceError",
    "StepFailed",
    "StepMismatch",
    "Suspended",
    "Task",
    "TaskCancelled",
    "WaitTimeout",
    "Worker",
]
