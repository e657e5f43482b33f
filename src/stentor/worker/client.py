"""HTTP to the service: patient with outages and rate limits, strict about refusals."""

from __future__ import annotations

import random
import threading
from typing import Any
from urllib.parse import quote

import httpx

MAX_PAUSE = 10.0
"""Seconds between two tries at most."""


class ServiceError(Exception):
    """The service refused a call; `code` is its stable code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code


class Client:
    """Calls of one worker; safe to use from its threads."""

    def __init__(self, url: str, key: str, stopping: threading.Event) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(30, read=90)
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            limits=limits,
            timeout=timeout,
            trust_env=False,
        )
        self._stopping = stopping

    def call(self, method: str, path: str, body: Any = None, *, tries: int = 1_000_000) -> Any:
        """The answer's JSON. Connection errors, 429 and 5xx are tried again; raises ServiceError for 4xx.

        Once the worker is stopping, at most three more tries are made.
        """
        pause = 0.1
        while True:
            tries -= 1
            try:
                answer = self._http.request(method, f"/api/v1{path}", json=body)
            except httpx.TransportError as error:
                failure = ServiceError(0, "UNREACHABLE", f"The service cannot be reached ({type(error).__name__}).")
                wait = pause
            else:
                if answer.is_success:
                    return answer.json()
                failure = _failure(answer)
                if answer.status_code not in (429, 502, 503, 504):
                    raise failure
                wait = _retry_after(answer) or pause
            if tries <= 0:
                raise failure
            if self._stopping.wait(wait * random.uniform(0.8, 1.2)):  # noqa: S311 - jitter, not a secret
                tries = min(tries, 3)
            pause = min(MAX_PAUSE, pause * 2)

    def close(self) -> None:
        self._http.close()


def segment(text: str) -> str:
    """An id as one segment of a path."""
    return quote(text, safe="")


def _failure(answer: httpx.Response) -> ServiceError:
    try:
        body = answer.json()
    except ValueError:
        body = {}
    error = body.get("error")
    if isinstance(error, dict):
        return ServiceError(answer.status_code, str(error.get("code")), str(error.get("message")))
    code = str(body.get("code", f"HTTP_{answer.status_code}"))
    return ServiceError(answer.status_code, code, str(body.get("message", error or "no reason given")))


def _retry_after(answer: httpx.Response) -> float:
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else 0.0
