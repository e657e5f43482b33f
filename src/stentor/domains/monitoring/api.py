"""Health, the information route and /metrics. Source: core contract, "Health (unauthenticated)"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stentor import __version__
from stentor.domains.monitoring.metrics import CONTENT_TYPE
from stentor.domains.monitoring.service import HealthComponent, HealthService
from stentor.web.operations import operation
from stentor.web.routes import PUBLIC, GatewayRoute, requires_permission
from stentor.web.wire import COMMON_ERROR_RESPONSES, Caller, JsonResponse, ResponseModel

HEALTH_PATH = "/api/v1/health"
PUBLIC_PATHS = frozenset(
    ("/health", HEALTH_PATH, f"{HEALTH_PATH}/detailed", f"{HEALTH_PATH}/ready", f"{HEALTH_PATH}/live", "/api/v1")
)
"""Public routes of this module."""

_GROUPS = (
    *"tasks decisions schedules sessions bulk alerts audit atp memory governance trust hebbian llm webhooks".split(),
    *("keys", "people", "provenance", "health"),
)
ENDPOINTS = {name: f"/api/v1/{name}" for name in (*_GROUPS, "whoami")} | {
    "registry": "/api/v1/registry/agents",
    "openai": "/v1",
    "metrics": "/metrics",
}

METRICS_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
    **{status: COMMON_ERROR_RESPONSES[status] for status in (401, 403)},
}


class Liveness(ResponseModel):
    status: Literal["ok"]
    service: str
    version: str


class ComponentOut(ResponseModel):
    """`detail` and `latency_ms` are null for a caller without a key."""

    status: Literal["available", "unavailable", "disabled"]
    detail: str | None
    latency_ms: float | None


class Detailed(ResponseModel):
    status: Literal["healthy", "unhealthy"]
    service: str
    version: str
    components: dict[str, ComponentOut]


class Ready(ResponseModel):
    ready: bool


class Live(ResponseModel):
    alive: bool


class Information(ResponseModel):
    name: str
    version: str
    apiVersion: str  # noqa: N815
    endpoints: dict[str, str]
    documentation: str


class HealthOperations:
    def __init__(self, health: HealthService) -> None:
        self._health = health

    @operation("health.detailed", "read", "GET /health/detailed", has_own_route=True)
    async def detailed(self, caller: Caller) -> Detailed:
        """Return each component with its details."""
        return _describe(await self._health.check_components())


def _describe(components: Mapping[str, HealthComponent]) -> Detailed:
    is_down = any(component.status == "unavailable" for component in components.values())
    status: Literal["healthy", "unhealthy"] = "unhealthy" if is_down else "healthy"
    return Detailed.of(status=status, service="stentor", version=__version__, components=components)


def router(health: HealthService, scrape: Callable[[], Awaitable[bytes]]) -> APIRouter:
    api = APIRouter(tags=["health"], route_class=GatewayRoute, responses={400: COMMON_ERROR_RESPONSES[400]})
    public = requires_permission(PUBLIC)

    @api.get("/health", operation_id="health_root", response_model=Liveness, openapi_extra=public)
    @api.get(HEALTH_PATH, operation_id="health", response_model=Liveness, openapi_extra=public)
    async def liveness() -> JsonResponse:
        """Check that the service responds."""
        return JsonResponse({"status": "ok", "service": "stentor", "version": __version__})

    @api.get(
        f"{HEALTH_PATH}/detailed",
        operation_id="health_detailed",
        response_model=Detailed,
        responses={503: {"model": Detailed}},
        openapi_extra=public,
    )
    async def detailed(request: Request) -> JsonResponse:
        """Return each component, with details for callers with a key; 503 if one is unavailable."""
        components = await health.check_components()
        # The route is public, but the gateway has identified a caller who sent a valid key all the same.
        has_key = "principal" in request.scope.get("state", {})
        if not has_key:
            components = {name: component.without_details for name, component in components.items()}
        report = _describe(components)
        return JsonResponse(report.model_dump(), 503 if report.status == "unhealthy" else 200)

    @api.get(
        f"{HEALTH_PATH}/ready",
        operation_id="health_ready",
        response_model=Ready,
        responses={503: {"model": Ready}},
        openapi_extra=public,
    )
    async def ready() -> JsonResponse:
        """Return whether to send requests here; 503 if not."""
        is_ready = await health.is_ready()
        return JsonResponse({"ready": is_ready}, 200 if is_ready else 503)

    @api.get(f"{HEALTH_PATH}/live", operation_id="health_live", response_model=Live, openapi_extra=public)
    async def live() -> JsonResponse:
        """Check that the process runs."""
        return JsonResponse({"alive": True})

    @api.get("/api/v1", operation_id="information", response_model=Information, openapi_extra=public)
    async def information() -> JsonResponse:
        """Return name, version and the paths of the API."""
        return JsonResponse(
            {
                "name": "stentor",
                "version": __version__,
                "apiVersion": "v1",
                "endpoints": ENDPOINTS,
                "documentation": "/openapi.json",
            }
        )

    @api.get("/metrics", operation_id="metrics", response_class=Response, responses=METRICS_RESPONSES)
    async def metrics() -> Response:
        """Return the metrics for Prometheus; needs a key with the permission `read`."""
        return Response(await scrape(), media_type=CONTENT_TYPE)

    return api
