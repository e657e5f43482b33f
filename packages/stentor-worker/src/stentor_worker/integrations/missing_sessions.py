"""What the adapters have in common: a session is made when it is first written to."""

from __future__ import annotations

from collections.abc import Callable

from stentor_worker.client import ServiceError


def create_if_missing(send: Callable[[], object], create: Callable[[], object]) -> None:
    """Send a request about a session; if the service has none, create it and send again. Raises ServiceError."""
    try:
        send()
    except ServiceError as error:
        if not error.is_missing:
            raise
        create()
        send()
