"""Reads alert rules and scrape targets from the operator's Prometheus server.

Fails open: on any failure the snapshot says that it is unavailable, and the log has the reason. The operator sets the
address, paths and queries are constants, and no caller input is sent.
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit, urlunsplit

import msgspec

from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard import wire

RULES_PATH, TARGETS_PATH = "/api/v1/rules?type=alert", "/api/v1/targets?state=active"
MAX_RESPONSE_BYTES = 16_000_000
ALERT_STATES = frozenset(("inactive", "pending", "firing"))
log = logging.getLogger(__name__)


class PrometheusResponseError(Exception):
    """The server's response is an error, too large, or not in the expected format."""


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


_rules_decoder = msgspec.json.Decoder(PrometheusRulesResponse)
_targets_decoder = msgspec.json.Decoder(PrometheusTargetsResponse)
_HEADERS = {"Accept": "application/json"}


class PrometheusClient:
    """`url` is empty without a server; `timeout` (seconds) covers both requests together."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self._outbound = OutboundHttp((urlsplit(url).hostname or "",))
        self._is_outage_logged = False

    @property
    def is_configured(self) -> bool:
        """Whether there is a server to ask."""
        return bool(self._url)

    async def fetch_snapshot(self) -> JsonObject:
        """Return alert rules and targets (`wire.Metrics`). Never raises."""
        unavailable: JsonObject = {"available": False, "url": self._url or None, "alerts": [], "targets": []}
        if not self._url:
            return unavailable
        try:
            # One limit around both: the page that waits does not care which of them is slow.
            async with asyncio.timeout(self._timeout), asyncio.TaskGroup() as group:
                rules, targets = group.create_task(self._get(RULES_PATH)), group.create_task(self._get(TARGETS_PATH))
            found = {"alerts": _present_alerts(rules.result()), "targets": _present_targets(targets.result())}
        except Exception as error:  # noqa: BLE001 - a failure of the operator's monitoring, not of this service
            self._log_outage(error)
            return unavailable
        self._is_outage_logged = False
        return wire.Metrics.of(available=True, url=self._url, **found).model_dump()

    async def close(self) -> None:
        await self._outbound.close()

    async def _get(self, path: str) -> bytes:
        async with self._outbound.session.get(self._url + path, allow_redirects=False, headers=_HEADERS) as response:
            if not 200 <= response.status < 300:
                raise PrometheusResponseError(f"HTTP status {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise PrometheusResponseError(f"response exceeds {MAX_RESPONSE_BYTES} bytes")
            return bytes(body)

    def _log_outage(self, error: Exception) -> None:
        """Log once per outage: each open page requests a snapshot every 30 seconds."""
        if isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if not self._is_outage_logged:
            self._is_outage_logged = True
            reason = f"no response within {self._timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            log.warning("prometheus: unavailable reason=%s", reason or type(error).__name__)


def _present_alerts(body: bytes) -> list[wire.RuleOut]:
    response = _rules_decoder.decode(body)
    _require_success(response.status)
    return [_present_rule(rule) for group in response.data.groups for rule in group.rules if rule.type == "alerting"]


def _present_rule(rule: PrometheusRule) -> wire.RuleOut:
    # Newer Prometheus versions report a rule that is not evaluated yet as "unknown".
    state = rule.state if rule.state in ALERT_STATES else "inactive"
    active = [wire.Instance.of(alert) for alert in rule.alerts]
    return wire.RuleOut.of(rule, state=state, severity=rule.labels.get("severity"), active=active)


def _present_targets(body: bytes) -> list[wire.TargetOut]:
    response = _targets_decoder.decode(body)
    _require_success(response.status)
    return [
        wire.TargetOut.of(
            target,
            job=target.labels.get("job"),
            scrape_url=_without_credentials(target.scrape_url),
            last_error=target.last_error or None,
        )
        for target in response.data.active
    ]


def _require_success(status: str) -> None:
    if status != "success":
        raise PrometheusResponseError(f"response status is {status[:40]!r}")


def _without_credentials(url: str) -> str:
    """Drop the user, the password and the query, which may hold a token; empty for a malformed URL."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))
    except ValueError:
        return ""
