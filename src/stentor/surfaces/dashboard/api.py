"""The JSON routes of the dashboard service; the HTML pages are in `pages`.

Source: second contract, "Endpoints: Dashboard service".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse

from stentor import __version__
from stentor.core.clock import Clock
from stentor.core.errors import InvalidRequest
from stentor.domains.activity.model import MAX_EVENTS
from stentor.domains.activity.operations import Cursor, ReportOut, decode_event_cursor, next_cursor_field
from stentor.domains.learning.model import SENTINEL_WINDOW
from stentor.domains.reports.service import report_out
from stentor.surfaces.dashboard import wire
from stentor.surfaces.dashboard.instruction import Instruction
from stentor.surfaces.dashboard.presenters import resources
from stentor.surfaces.dashboard.presenters.resources import RankingSettings
from stentor.surfaces.dashboard.prometheus import PrometheusClient
from stentor.surfaces.dashboard.store import DashboardStore
from stentor.surfaces.dashboard.streaming import InstructionExecutor
from stentor.surfaces.dashboard.wire import NO_GATEWAY_RESPONSES, NOT_FOUND_RESPONSE, UNREADABLE_RESPONSE
from stentor.web.routes import PUBLIC, GatewayRoute, requires_permission
from stentor.web.sse import EventStreamResponse, StreamLimit
from stentor.web.wire import AgentId, JsonResponse, TaskId

HEALTH_PATH = "/health"
STREAM_LIMIT_KEY = "dashboard"
"""All callers share one key, so the stream limit counts them together."""
# Only documents the range: `activity` checks it, before it looks for the task.
EventLimit = Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MAX_EVENTS})]
AlertLimit = Annotated[int, Query(ge=1, le=500)]


def _api() -> APIRouter:
    return APIRouter(prefix="/api", route_class=GatewayRoute)


def create_task_router(stores: DashboardStore) -> APIRouter:
    api = _api()

    @api.get(
        "/tasks/{task_id}",
        tags=["tasks"],
        response_model=wire.TaskRecord,
        responses=NOT_FOUND_RESPONSE | UNREADABLE_RESPONSE,
    )
    async def record(task_id: TaskId) -> JsonResponse:
        """Return one task by its exact id, in any status, with the fields of its note."""
        task = await stores.get_task(task_id)
        return JsonResponse(resources.present_task(stores.tenant, task, has_note=stores.has_task_notes))

    @api.get(
        "/tasks/{task_id}/activity",
        tags=["tasks"],
        response_model=wire.Trail,
        responses=NOT_FOUND_RESPONSE | UNREADABLE_RESPONSE,
    )
    async def activity(task_id: TaskId, limit: EventLimit = 200, cursor: Cursor = None) -> JsonResponse:
        """Return what happened to a task and why: at most `limit` events, oldest first."""
        if not 1 <= limit <= MAX_EVENTS:
            fields = {"fields": {"query.limit": "out of range"}}
            raise InvalidRequest(f"limit must be from 1 to {MAX_EVENTS}.", fields)
        history = await stores.get_history(task_id, limit, decode_event_cursor(cursor))
        record = history.record
        task = None if record is None else resources.present_task(stores.tenant, record, has_note=stores.has_task_notes)
        trail = resources.present_trail(task_id, task, history, await stores.list_reports(task_id))
        return JsonResponse(trail | next_cursor_field(history.events))

    @api.get("/reports", tags=["tasks"], response_model=list[ReportOut], responses=UNREADABLE_RESPONSE)
    async def reports() -> JsonResponse:
        """List the reports in the vault's folder `Reports`, last written first, 500 at most."""
        return JsonResponse([report_out(report) for report in await stores.list_reports()])

    return api


def create_agent_router(
    stores: DashboardStore, clock: Clock, prometheus: PrometheusClient, ranking: Callable[[], RankingSettings | None]
) -> APIRouter:
    api = _api()

    @api.get("/monitoring/governance", tags=["monitoring"], response_model=wire.Governance)
    async def governance() -> JsonResponse:
        """Return all agents except archived ones, and oscillation rates. An unreadable store only sets a flag."""
        return JsonResponse(
            resources.present_governance(await stores.get_governance_snapshot(), stores.sentinel_threshold)
        )

    @api.get("/monitoring/prometheus", tags=["monitoring"], response_model=wire.Metrics)
    async def metrics() -> JsonResponse:
        """Return alert rules and scrape targets of the metrics backend; never fails because of it."""
        return JsonResponse(await prometheus.fetch_snapshot())

    @api.get("/hebbian/sentinel", tags=["sentinel"], response_model=wire.Sentinel, responses=UNREADABLE_RESPONSE)
    async def sentinel() -> JsonResponse:
        """Return the oscillation rate of each agent at each task type."""
        scopes = resources.present_sentinel(*await stores.get_sentinel_weights(), stores.sentinel_threshold)
        active = sum(scope["alert_active"] for scope in scopes)
        summary = {"threshold": stores.sentinel_threshold, "window": SENTINEL_WINDOW, "active_alerts": active}
        return JsonResponse(summary | {"scopes": scopes})

    @api.get("/hebbian/sentinel/alerts", tags=["sentinel"], response_model=wire.Alerts, responses=UNREADABLE_RESPONSE)
    async def alerts(open_only: bool = False, limit: AlertLimit = 100) -> JsonResponse:
        """List the sentinel's alerts, newest first."""
        sentinel_alerts, names = await stores.list_alerts(open_only=open_only, limit=limit)
        return JsonResponse({"alerts": [resources.present_alert(alert, names) for alert in sentinel_alerts]})

    @api.get(
        "/agents/{agent_id}/card",
        tags=["agents"],
        response_class=PlainTextResponse,
        responses=NOT_FOUND_RESPONSE | UNREADABLE_RESPONSE,
    )
    async def agent_card(agent_id: AgentId) -> PlainTextResponse:
        """Return a plain-text summary of an agent."""
        scored_agent, weights = await stores.get_agent(agent_id)
        return PlainTextResponse(resources.render_agent_card(scored_agent, weights, clock.now()))

    @api.get("/routing/config", tags=["agents"], response_model=wire.RoutingConfig, responses=UNREADABLE_RESPONSE)
    async def config() -> JsonResponse:
        """Return the settings that rank candidate agents, as far as this process knows them."""
        return JsonResponse(resources.present_routing_config(ranking(), await stores.get_last_decision()))

    return api


def create_execution_router(executor: InstructionExecutor, streams: StreamLimit) -> APIRouter:
    api = _api()

    @api.post(
        "/cli/execute/stream",
        tags=["execution"],
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "Events"},
            **UNREADABLE_RESPONSE,
            **NO_GATEWAY_RESPONSES,
        },
    )
    async def execute(request: Request, body: Instruction) -> StreamingResponse:
        """Execute an instruction as a stream of events: routing and token, then one complete or error."""
        # Check the limit before the task is submitted: afterwards a 429 would hide that the task runs.
        streams.acquire(STREAM_LIMIT_KEY)
        try:
            events = await executor.execute(body, request.scope["state"]["credential"])
        finally:
            streams.release(STREAM_LIMIT_KEY)  # EventStreamResponse acquires its own slot
        return EventStreamResponse(events, streams, STREAM_LIMIT_KEY)

    return api


def create_health_router() -> APIRouter:
    api = APIRouter(route_class=GatewayRoute)

    @api.get(HEALTH_PATH, tags=["health"], response_model=wire.Liveness, openapi_extra=requires_permission(PUBLIC))
    async def health() -> JsonResponse:
        """Report that the dashboard service is running. Reads no store."""
        return JsonResponse({"status": "ok", "service": "stentor-dashboard", "version": __version__})

    return api
