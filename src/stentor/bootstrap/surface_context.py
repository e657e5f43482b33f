"""What all surfaces for callers with keys share, so that limits hold for a caller across all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stentor.auth.api_keys import KeyRing, load_memory_access
from stentor.auth.principal import Principal
from stentor.bootstrap.kernel import Kernel
from stentor.core.settings import Settings
from stentor.domains.conversation.service import AgentChat, SessionTurns
from stentor.domains.llm.routes.chat_router import ChatRouter
from stentor.web.middleware import RateLimiter
from stentor.web.request_context import GrpcCallDurations
from stentor.web.sse import StreamLimit

DASHBOARD = "dashboard"


@dataclass(frozen=True)
class SurfaceContext:
    """`chat` answers as a model: it sends a chat to the gateway or to an agent."""

    keys: KeyRing
    rate_limiter: RateLimiter
    stream_limit: StreamLimit
    chat: ChatRouter
    grpc_durations: GrpcCallDurations


def open_surface_context(
    kernel: Kernel, keys: KeyRing, environ: Mapping[str, str] = MappingProxyType({})
) -> SurfaceContext:
    """Create the context of all surfaces over a kernel, and register the keys and their access with the kernel.

    Raises StartRefused for a malformed access.
    """
    infra, tasks = kernel.infra, kernel.tasks
    settings = infra.settings
    infra.roles.register([*keys.principals, *filter(None, [keys.development_admin])])
    kernel.keys.attach(keys)
    # Access for a key that does not exist is reported where the governed memory is served.
    kernel.keys.configured_access = load_memory_access(
        environ, {key.name for key in keys.principals}, settings.memory.vault_names, skip_unknown=True
    )
    kernel.people.attach(keys)
    # A configured key of this name has a role of its own, which must not be replaced.
    if not any((key.tenant, key.name) == (settings.dashboard.tenant, DASHBOARD) for key in keys.principals):
        infra.roles.register([dashboard_principal(settings)])
    agents = AgentChat(
        tasks.submission, tasks.service, tasks.reader, kernel.agents.registry.agents, infra.hub, tasks.activity.stream
    )
    return SurfaceContext(
        keys,
        RateLimiter(settings.server.rate_limit),
        StreamLimit(settings.server.max_streams, infra.hub.closing),
        ChatRouter(
            kernel.llm.gateway,
            agents,
            tasks.workers,
            SessionTurns(kernel.sessions),
            kernel.agents.routing.is_active,
            kernel.agents.registry.agents.find_single_by_key,
        ),
        GrpcCallDurations(),
    )


def dashboard_principal(settings: Settings) -> Principal:
    """Return who acts when a person uses the dashboard service with its own key, or without any on loopback."""
    return Principal(DASHBOARD, "admin", frozenset(("read", "write")), settings.dashboard.tenant)
