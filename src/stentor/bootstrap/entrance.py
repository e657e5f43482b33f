"""What all surfaces for callers with keys share, so that a caller is counted once, wherever it comes in."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.auth.api_keys import KeyRing
from stentor.auth.principal import Principal
from stentor.bootstrap.kernel import Kernel
from stentor.core.settings import Settings
from stentor.domains.conversation.service import AgentChat
from stentor.domains.llm.service import ChatRouter
from stentor.web.middleware import RateLimiter
from stentor.web.request_context import GrpcCallDurations
from stentor.web.sse import StreamLimit

DASHBOARD = "dashboard"


@dataclass(frozen=True)
class Entrance:
    """Keys, the requests of a key's minute, its open streams, who answers as a model, and the times of gRPC calls."""

    keys: KeyRing
    rate: RateLimiter
    streams: StreamLimit
    talk: ChatRouter
    calls: GrpcCallDurations


def entrance(kernel: Kernel, keys: KeyRing) -> Entrance:
    """One for all surfaces over a kernel. The kernel learns here which keys belong to people."""
    settings, activity = kernel.settings, kernel.activity
    kernel.roles.register(keys.principals)
    if not any((key.tenant, key.name) == (settings.dashboard_tenant, DASHBOARD) for key in keys.principals):
        kernel.roles.register([dashboard_principal(settings)])
    agents = AgentChat(kernel.submission, kernel.tasks, kernel.registry.agents, kernel.hub, activity.stream)
    return Entrance(
        keys,
        RateLimiter(settings.rate_limit),
        StreamLimit(settings.max_streams, kernel.hub.closing),
        ChatRouter(kernel.llm.gateway, agents),
        GrpcCallDurations(),
    )


def dashboard_principal(settings: Settings) -> Principal:
    """Who asks when a person uses the dashboard service with its own key, or without any on loopback."""
    return Principal(DASHBOARD, "admin", frozenset(("read", "write")), settings.dashboard_tenant)
