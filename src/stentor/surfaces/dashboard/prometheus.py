"""The views of a Prometheus that the dashboard shows: alert rules and scrape targets.

Fails open: whatever is wrong with it, the answer says that it is not available, and the log says why. Its address is
the operator's, its paths and queries are constants, and nothing of a caller goes there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from stentor.core.http_client.outbound import OutboundHttp

if TYPE_CHECKING:
    import aiohttp

RULES_PATH, TARGETS_PATH = "/api/v1/rules?type=alert", "/api/v1/targets?state=active"
MAX_RESPONSE_BYTES = 16_000_000
"""Of an answer."""
ALERT_STATES = frozenset(("inactive", "pending", "firing"))
log = logging.getLogger(__name__)


class PrometheusResponseError(Exception):
    """What was answered is no answer."""


class PrometheusAlert(msgspec.Struct):
    labels: dict[str, str] = {}
    active_at: str | None = msgspec.field(default=None, name="activeAt")
    value: str | float | None = None


class PrometheusRule(msgspec.Struct):
    name: str
    type: str = "alerting"
    state: str = "inactive"
    labels: dict[str, str] = {}
    alerts: list[PrometheusAlert] = []


class PrometheusRuleGroup(msgspec.Struct):
    rules: list[PrometheusRule] = []


class PrometheusRuleGroups(msgspec.Struct):
    groups: list[PrometheusRuleGroup]


class PrometheusRulesResponse(msgspec.Struct):
    status: str
    data: PrometheusRuleGroups


class PrometheusTarget(msgspec.Struct):
    labels: dict[str, str] = {}
    health: str = "unknown"
    scrape_url: str = msgspec.field(default="", name="scrapeUrl")
    last_error: str = msgspec.field(default="", name="lastError")


class PrometheusActiveTargets(msgspec.Struct):
    active: list[PrometheusTarget] = msgspec.field(name="activeTargets")


class PrometheusTargetsResponse(msgspec.Struct):
    status: str
    data: PrometheusActiveTargets


_rules, _targets = msgspec.json.Decoder(PrometheusRulesResponse), msgspec.json.Decoder(PrometheusTargetsResponse)


class PrometheusClient:
    """`url` is empty when there is none; `timeout` in seconds is for both views together."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self._outbound = OutboundHttp((urlsplit(url).hostname or "",))
        self._told = False

    async def fetch_snapshot(self) -> dict[str, Any]:
        """Never raises."""
        nothing: dict[str, Any] = {"available": False, "url": self._url or None, "alerts": [], "targets": []}
        if not self._url:
            return nothing
        try:
            async with asyncio.timeout(self._timeout), asyncio.TaskGroup() as both:
                rules, targets = both.create_task(self._get(RULES_PATH)), both.create_task(self._get(TARGETS_PATH))
            found = {"alerts": _alerts(rules.result()), "targets": _shown(targets.result())}
        except Exception as error:  # noqa: BLE001 - of the operator's monitoring, not of this service
            self._tell(error)
            return nothing
        self._told = False
        return {"available": True, "url": self._url, **found}

    async def close(self) -> None:
        await self._outbound.close()

    async def _get(self, path: str) -> bytes:
        async with self._outbound.session.get(self._url + path, allow_redirects=False, headers=_HEADERS) as answer:
            if not 200 <= answer.status < 300:
                raise PrometheusResponseError(f"it answered {answer.status}")
            return await _read(answer)

    def _tell(self, error: Exception) -> None:
        """Once until it works again: pages ask for it every 30 seconds."""
        if isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if not self._told:
            self._told = True
            reason = f"no answer within {self._timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            log.warning("the metrics backend is not available: %s", reason or type(error).__name__)


_HEADERS = {"Accept": "application/json"}


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise PrometheusResponseError(f"it answered more than {MAX_RESPONSE_BYTES} bytes")
    return bytes(body)


def _alerts(body: bytes) -> list[dict[str, Any]]:
    found = _rules.decode(body)
    _succeeded(found.status)
    return [_alert(rule) for group in found.data.groups for rule in group.rules if rule.type == "alerting"]


def _alert(rule: PrometheusRule) -> dict[str, Any]:
    active = [{"labels": one.labels, "active_at": one.active_at, "value": one.value} for one in rule.alerts]
    # A newer Prometheus calls a rule that it has not evaluated yet unknown.
    state = rule.state if rule.state in ALERT_STATES else "inactive"
    return {"name": rule.name, "state": state, "severity": rule.labels.get("severity"), "active": active}


def _shown(body: bytes) -> list[dict[str, Any]]:
    found = _targets.decode(body)
    _succeeded(found.status)
    return list(_each(found.data.active))


def _each(targets: Iterable[PrometheusTarget]) -> Iterable[dict[str, Any]]:
    for target in targets:
        yield {
            "job": target.labels.get("job"),
            "health": target.health,
            "scrape_url": _without_credentials(target.scrape_url),
            "last_error": target.last_error or None,
        }


def _succeeded(status: str) -> None:
    if status != "success":
        raise PrometheusResponseError(f"it says {status[:40]!r}")


def _without_credentials(url: str) -> str:
    """As an answer may show it: without a user, and without a query, which may hold a token."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))
    except ValueError:
        return ""
