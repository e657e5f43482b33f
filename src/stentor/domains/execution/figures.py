"""What metrics tell of the work in this process."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from stentor.core.metrics import gauge_family
from stentor.domains.execution.dispatch import Engine


def metrics(dispatcher: Engine) -> Iterable[Metric]:
    yield gauge_family(
        "stentor_queue_depth", "Tasks that wait for their agent, as far as this process knows.", dispatcher.depth()
    )
    yield gauge_family("stentor_running", "Tasks that this process carries out itself just now.", dispatcher.running())
