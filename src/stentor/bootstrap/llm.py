"""Wires the LLM gateway: providers, the gate before them, and both of its surfaces."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stentor.auth.principal import RoleRegistry
from stentor.bootstrap.memory import embedder
from stentor.core.clock import Clock
from stentor.core.db import Database
from stentor.core.errors import StartRefused
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.runlog import RunLog
from stentor.core.security.redaction import Redactor
from stentor.core.security.sealing import Sealer
from stentor.core.settings import Settings
from stentor.domains.execution.runtimes.summarizer import summarize
from stentor.domains.llm import costs
from stentor.domains.llm.call_guard import CallGuard
from stentor.domains.llm.costs import PriceList
from stentor.domains.llm.model_routes import ModelRoutes
from stentor.domains.llm.operations import GatewayConfig
from stentor.domains.llm.providers import operator_hosts, providers_from_settings
from stentor.domains.llm.providers.backends import EmbedTexts, HttpBackend, LocalBackend
from stentor.domains.llm.providers.failures import CircuitBreaker
from stentor.domains.llm.providers.registry import ModelCatalog, ProviderRegistry
from stentor.domains.llm.providers.transport import ProviderTransport, TransportLimits
from stentor.domains.llm.service import LlmGateway
from stentor.domains.llm.tracing import CallTracer, NoopTracer
from stentor.domains.modelrouting.learning import AnswerGrader, ModelOutcomeRecorder, ModelRecords
from stentor.domains.modelrouting.service import AutoModelRouter

SENTENCES = 3
"""Of an answer of the local baseline."""
log = logging.getLogger(__name__)


@dataclass
class Llm:
    """The wired parts; `stop` waits for what is still being recorded."""

    gateway: LlmGateway
    prices: PriceList
    about: GatewayConfig
    trusted: OutboundHttp
    models: ModelRecords
    answers: AnswerGrader

    async def stop(self) -> None:
        await self.gateway.close()
        await self.trusted.close()


def open_llm(
    settings: Settings,
    db: Database,
    clock: Clock,
    runlog: RunLog,
    outbound: OutboundHttp,
    redactor: Redactor | None,
    roles: RoleRegistry,
) -> Llm:
    """Raises StartRefused for a setting that cannot be read."""
    operators = providers_from_settings(settings)
    trusted = OutboundHttp(operator_hosts(operators))
    limits = TransportLimits(
        total_seconds=settings.llm_timeout, idle_seconds=settings.llm_idle, max_retries=settings.llm_retries
    )
    transport = ProviderTransport(trusted, outbound, limits, redactor.redact if redactor else str)
    prices, routes = PriceList(settings.llm_prices), ModelRoutes(settings.llm_groups, settings.llm_fallbacks)
    directory = ProviderRegistry(
        db,
        runlog,
        Sealer(settings.data_dir, settings.master_key),
        operators,
        transport,
        outbound.check_url,
        find_ollama=settings.find_ollama,
        include_local=settings.llm_local,
        redactor=redactor,
    )
    limits_of_money = costs.parse_budgets(settings.llm_budgets)
    spans, keep = open_spans(settings, (redactor or Redactor()).add_secret), settings.llm_log_content
    gate = CallGuard(db, clock, runlog, CircuitBreaker(clock), prices, limits_of_money, spans, keep_content=keep)
    local = LocalBackend(_summary, _local_embed(settings)) if settings.llm_local else None
    gateway = LlmGateway(
        db,
        directory,
        ModelCatalog(transport, local.models if local else ()),
        gate,
        routes,
        HttpBackend(transport),
        local,
        settings.llm_default_provider,
        settings.llm_default_model,
    )
    about = GatewayConfig(
        settings.llm_timeout, settings.llm_idle, settings.llm_retries, settings.llm_local, tuple(settings.llm_budgets)
    )
    models = ModelRecords()
    teacher = ModelOutcomeRecorder(db, runlog, roles, models, settings.daily_lessons)
    gateway.auto_router = AutoModelRouter(db, clock, runlog, gateway, gate, prices, models, teacher, settings.alpha)
    return Llm(gateway, prices, about, trusted, models, AnswerGrader(db, runlog, models))


def open_spans(settings: Settings, secret: Callable[[str], None]) -> CallTracer:
    """Nothing of OpenTelemetry is imported without a collector. Raises StartRefused for what its SDK cannot read."""
    base = settings.otel_endpoint and settings.otel_endpoint.rstrip("/") + "/v1/traces"
    if not (endpoint := settings.otel_traces_endpoint or base):
        return NoopTracer()
    try:
        spans: CallTracer = importlib.import_module("stentor.domains.llm.otel").open_spans(endpoint, secret)
    except ModuleNotFoundError:
        # The variable may be there for every program of the machine: no reason to refuse the start.
        log.warning("a collector of OpenTelemetry is set; to send spans: pip install 'stentor[otel]'")
        return NoopTracer()
    except (ValueError, OSError) as error:
        raise StartRefused(f"A variable of OpenTelemetry (OTEL_...) cannot be used: {error}.") from None
    return spans


async def _summary(text: str) -> str:
    found = await asyncio.to_thread(summarize, text, SENTENCES)
    return " ".join(found.sentences)


def _local_embed(settings: Settings) -> EmbedTexts | None:
    local = embedder(settings)
    if local is None:
        return None

    async def embed(texts: Sequence[str]) -> Any:
        await local.load()
        return await local.embed(texts, urgent=True)

    return embed
