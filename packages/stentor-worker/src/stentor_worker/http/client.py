"""HTTP client of the worker SDK: retries outages and rate limits, raises all other errors."""

from __future__ import annotations

import json
import logging
import os
import random
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from stentor_worker.http.connections import ConnectionPool, HttpResponse

log = logging.getLogger(__name__)
MAX_PAUSE = 10.0
"""Maximum backoff in seconds."""
MAX_RETRY_AFTER = 300.0
"""Maximum pause in seconds that a service, or a proxy before it, may ask for."""
NO_REASON = "no reason given: is this the address of Stentor's gateway, by default on port 8080?"
NOT_JSON = "NOT_JSON"
"""Code for a response of another program."""
LAST_SECONDS, LAST_PAUSE = 10.0, 2.0
"""How long a worker that stops waits for a service that is down, and the maximum backoff in the meantime."""
OUTAGES = (0, 429, 502, 503, 504)
"""What is retried: no response, and statuses of a service that cannot do a request now."""
MAX_PAGES = 5
"""How often a proxy's page is taken for an outage while the service answers other calls."""


class ServiceError(Exception):
    """The service rejected a call, or is unreachable. `code` is its stable code, `status` 0 without a response."""

    retry_after = 0.0
    """For how many seconds the service asks not to call again."""

    def __init__(self, status: int, code: str, message: str, *, is_unknown_route: bool = False) -> None:
        super().__init__(f"{code}: {message}")
        self.is_unknown_route = is_unknown_route
        """Whether the service has no such route, so that the address is wrong."""
        self.message = message
        self.status = status
        self.code = code

    @property
    def is_foreign(self) -> bool:
        """Whether the answer is not from the service, but from a proxy before it or another program at its address."""
        return self.code in (NOT_JSON, f"HTTP_{self.status}")

    @property
    def is_outage(self) -> bool:
        """Whether the same call may succeed later: a proxy has many answers for a service that is down."""
        is_page = self.status == 404 or not 400 <= self.status < 500
        return self.status in OUTAGES or (self.is_foreign and is_page)

    @property
    def is_missing(self) -> bool:
        """Whether the service says that it has no such record."""
        return self.code == "NOT_FOUND" and not self.is_unknown_route


class Client:
    """Calls the service for one worker; thread-safe.

    `ca_file` has the certificates that it trusts, in PEM; without it SSL_CERT_FILE, else those of public certificate
    authorities. Raises OSError if it cannot be used, and ValueError for a `url` that is not one of http or https,
    or for a `key` that no header can carry.
    """

    def __init__(self, url: str, key: str, stopping: threading.Event, ca_file: str | None = None) -> None:
        if not _is_address(url):
            raise ValueError(f"The address of the service must be a URL such as http://127.0.0.1:8080, not {url!r}.")
        key = key.strip()
        # http.client would raise an error that shows the key.
        if not (key.isascii() and key.isprintable()):
            raise ValueError("The key contains characters that are not allowed in an HTTP header.")
        self._ca_file = ca_file or os.environ.get("SSL_CERT_FILE")
        is_tls = url.startswith("https://")
        self._tls_context = ssl.create_default_context(cafile=self._ca_file) if self._ca_file or is_tls else None
        # The service's address is expected, but users easily give the API's.
        root = url.partition("?")[0].rstrip("/").removesuffix("/api/v1")
        headers = {"Authorization": f"Bearer {key}", "User-Agent": "stentor-worker"}
        self._pool = ConnectionPool(f"{root}/api/v1", headers, self._tls_context if is_tls else None)
        self._stopping = stopping
        self._is_reachable = True
        self._answered_at = 0.0
        """When the service last did, 0 before: then what another program answers may mean that the URL is wrong."""
        self._has_given_up = False
        """Whether an outage took longer than a worker that stops may wait."""
        self.url = url

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        tries: int = 1_000_000,
        until_stop: bool = False,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Return the JSON of the response. Raises ServiceError, and TypeError or ValueError if `body` cannot be JSON.

        Outages are retried with exponential backoff, up to `tries` attempts; once the worker is stopping, for about
        LAST_SECONDS more, or with `until_stop` no more. They are connection errors, 429, 502, 503 and 504. If the
        service has answered before, so are a proxy's 404, other 5xx, redirection and page, unless the service continues
        to answer other calls. With an `idempotency_key`, a request that arrived although its response did not is done
        once, by the operations that take a key. `timeout_s`: each for connecting and responding.
        """
        given = {"Idempotency-Key": idempotency_key, "traceparent": traceparent}
        headers, content = {name: value for name, value in given.items() if value is not None}, None
        if body is not None:
            headers["Content-Type"] = "application/json"
            # Rejects NaN here: the service could only say that the JSON is malformed.
            content = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        pause, last_at, pages, failed_at = 0.1, 0.0, 0, time.monotonic()
        while True:
            try:
                return self._request(method, path, content, headers, timeout_s)
            except ServiceError as error:  # noqa: PERF203 - each is a request
                tries -= 1
                # A proxy's error page for only this request is not an outage: the request may be too large for the
                # proxy.
                pages += error.status not in OUTAGES and self._answered_at > failed_at
                failed_at = time.monotonic()
                if tries <= 0 or pages == MAX_PAGES or not self._may_repeat(error):
                    raise
                # Jitter, so that the workers of a service that comes back do not call it all at once. Never less than
                # the service asked for: it would reject the call again.
                jitter = random.uniform(1.0 if error.retry_after else 0.8, 1.2)  # noqa: S311 - not a secret
                wait = (error.retry_after or pause) * jitter
                pause = min(MAX_PAUSE, pause * 2)
                _log_limit(error, wait, path)
                if until_stop:
                    if self._stopping.wait(wait):
                        raise
                elif self._stopping.is_set():
                    last_at = last_at or time.monotonic() + LAST_SECONDS
                    if self._has_given_up or time.monotonic() >= last_at:
                        # Keeps a handler that makes one call after another from waiting that long for each.
                        self._has_given_up = True
                        raise
                    time.sleep(min(wait, LAST_PAUSE))
                else:
                    self._stopping.wait(wait)

    def _request(
        self, method: str, path: str, content: bytes | None, headers: dict[str, str], timeout_s: float | None
    ) -> Any:
        """Return the JSON of the response to one attempt. Raises ServiceError."""
        try:
            response = self._pool.request(method, path, content, headers, timeout_s)
        except OSError as error:
            failure = ServiceError(0, "UNREACHABLE", _describe(error))
            self._log_outage(failure)
            self._trust_renewed_certificate()
            raise failure from None
        try:
            answer = _to_json(response)
        except ServiceError as failure:
            failure.retry_after = _retry_after(response)
            if not failure.is_foreign:
                self._note_answer()
            elif self._may_repeat(failure) and failure.status != 429:
                self._log_outage(failure)
            raise
        self._note_answer()
        self._has_given_up = False
        return answer

    def _may_repeat(self, failure: ServiceError) -> bool:
        return failure.status in OUTAGES or (failure.is_outage and self._answered_at > 0)

    def _note_answer(self) -> None:
        self._answered_at = time.monotonic()
        self._log_return()

    def _log_outage(self, failure: ServiceError) -> None:
        """Log the first failure of an outage, not each retry."""
        if self._is_reachable and not self._stopping.is_set():
            log.warning("worker: service unreachable, retrying url=%s error=%s", self.url, failure)
        self._is_reachable = False

    def _log_return(self) -> None:
        """Log the first response after an outage."""
        if not self._is_reachable and not self._stopping.is_set():
            log.info("worker: service reachable again url=%s", self.url)
        self._is_reachable = True

    def _trust_renewed_certificate(self) -> None:
        """Read the file again: the service may have renewed a certificate of its own, which the file then has."""
        if self._tls_context is not None and self._ca_file:
            with suppress(OSError):
                self._tls_context.load_verify_locations(self._ca_file)

    def close(self) -> None:
        self._pool.close()


def segment(text: str) -> str:
    """Return an id encoded as one segment of a path."""
    quoted = quote(text, safe="")
    # A proxy would resolve `.` and `..` as relative segments, and call another route.
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


def _log_limit(error: ServiceError, wait_s: float, path: str) -> None:
    if error.status == 429:
        log.warning("worker: rate limited, retrying in %d s path=%s error=%s", wait_s, path, error)


def _describe(error: OSError) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "The certificate of the service is not trusted: name its file with ca_file or SSL_CERT_FILE."
    # OpenSSL's reasons, by version, when the answer to a TLS handshake is not TLS.
    if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER_FAILURE" in str(error):
        return "The server speaks HTTP without TLS: use http:// in place of https://."
    return f"No connection ({type(error).__name__})."


def _to_json(response: HttpResponse) -> dict[str, Any]:
    if response.status >= 300:
        raise _to_error(response)
    try:
        content = json.loads(response.content)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ServiceError(
            response.status, NOT_JSON, "The response is not a JSON object: is this the URL of a Stentor service?"
        )
    return content


def _to_error(response: HttpResponse) -> ServiceError:
    try:
        body = json.loads(response.content)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}  # sent by a proxy
    error = body.get("error")
    # An object in the error envelope; a text in the bodies of 401 and 429.
    named = error if isinstance(error, dict) else {"message": error or NO_REASON, **body}
    code = str(named.get("code", ""))
    # The service's own codes are in capitals; proxies that answer in JSON have others, such as 404.
    if not code.isupper():
        code = "UNAUTHORIZED" if response.status == 401 else f"HTTP_{response.status}"
    details = named.get("details")
    is_unknown_route = isinstance(details, dict) and "route" in details
    message = str(named.get("message", NO_REASON))
    return ServiceError(response.status, code, message, is_unknown_route=is_unknown_route)


def _retry_after(response: HttpResponse) -> float:
    value = response.headers.get("retry-after", "")
    return min(float(value), MAX_RETRY_AFTER) if value.isdecimal() else 0.0


def create_if_missing(send: Callable[[], object], create: Callable[[], object]) -> None:
    """Send a request about a session; if the service has none, create it and send again. Raises ServiceError."""
    try:
        send()
    except ServiceError as error:
        if not error.is_missing:
            raise
        create()
        send()


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        # A host with a space would be looked up again and again, as if the service were down.
        return url.startswith(("http://", "https://")) and bool(host) and b" " not in host and parts.port != 0
    except ValueError:  # a malformed host or port
        return False
