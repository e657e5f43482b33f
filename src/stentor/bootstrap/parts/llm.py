"""Wires the LLM gateway: providers, the call guard before them, and the automatic choice of a model."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stentor.auth.principal import IsActive
from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.memory import open_embedder
from stentor.core.errors import StartRefused
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.lazy_import import install_command
from stentor.core.security.content_redaction import ContentRedactor
from stentor.core.security.pattern_process import PatternProcess
from stentor.core.security.redaction import Redactor
from stentor.core.security.sealing import Sealer
from stentor.core.settings import Settings
from stentor.domains.execution.runtimes.summarizer import summarize
from stentor.domains.llm import costs
from stentor.domains.llm.calls.budget_ledger import BudgetLedger
from stentor.domains.llm.calls.call_guard import CallGuard
from stentor.domains.llm.calls.circuit_breaker import CircuitBreaker
from stentor.domains.llm.calls.tracing import CallTracer
from stentor.domains.llm.contents.service import ContentKeeper, ContentService
from stentor.domains.llm.costs import PriceList
from stentor.domains.llm.model_routes import ModelRoutes, TenantRoutes
from stentor.domains.llm.operations import GatewayConfig
from stentor.domains.llm.providers import operator_hosts, providers_from_settings
from stentor.domains.llm.providers.backends import EmbedTexts, HttpBackend, LocalBackend
from stentor.domains.llm.providers.registry import ModelCatalog, ProviderRegistry
from stentor.domains.llm.providers.transport import ProviderTransport, TransportLimits
from stentor.domains.llm.runtime_settings.service import FindAgent, RuntimeSettings
from stentor.domains.llm.service import LlmGateway
from stentor.domains.llm.usage.totals import UsageTotals
from stentor.domains.modelrouting.learning import AnswerGrader, ModelOutcomeRecorder, ModelRecords
from stentor.domains.modelrouting.service import AutoModelRouter

SUMMARY_SENTENCES = 3
"""Length of an answer of the local model."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LlmParts:
    """`answers` grades recorded answers; `config` is what the gateway tells of its settings. `ledger` has the budgets,
    `runtime_settings` changes them. `contents` deletes kept prompts and answers, `usage_totals` sums the calls of each
    day. `tracer` exports spans, of tasks too.
    """

    gateway: LlmGateway
    prices: PriceList
    config: GatewayConfig
    operator_http: OutboundHttp
    models: ModelRecords
    answers: AnswerGrader
    ledger: BudgetLedger
    runtime_settings: RuntimeSettings
    contents: ContentService
    usage_totals: UsageTotals
    tracer: CallTracer | None

    async def stop(self) -> None:
        """Wait for what is still being recorded."""
        await self.gateway.close()
        await self.operator_http.close()


def open_llm(infra: Infrastructure, find_agent: FindAgent, is_active: IsActive) -> LlmParts:
    """Wire the gateway. Raises StartRefused."""
    settings, db, clock, runlog, redactor = infra.settings, infra.db, infra.clock, infra.runlog, infra.redactor
    operator_providers = providers_from_settings(settings)
    # The operator's providers may be at private addresses; those that callers register may not.
    operator_http = OutboundHttp(operator_hosts(operator_providers))
    limits = TransportLimits(
        total_seconds=settings.llm.timeout_seconds,
        idle_seconds=settings.llm.idle_seconds,
        max_retries=settings.llm.retries,
    )
    transport = ProviderTransport(operator_http, infra.outbound, limits, redactor.redact)
    prices = PriceList(settings.llm.prices)
    providers = ProviderRegistry(
        db,
        runlog,
        Sealer(settings.storage.data_dir, settings.llm.master_key),
        operator_providers,
        transport,
        infra.outbound.check_url,
        find_ollama=settings.llm.find_ollama,
        include_local=settings.llm.local,
        redactor=redactor,
    )
    ledger = BudgetLedger(db, costs.parse_budgets(settings.llm.budgets))
    tracer = open_tracer(settings, redactor.add_secret)
    guard = CallGuard(
        db,
        clock,
        runlog,
        CircuitBreaker(clock),
        prices,
        ledger,
        infra.roles.team_of,
        tracer,
        _open_content_keeper(settings, redactor),
    )
    contents = ContentService(db, runlog, keeps=settings.llm.log_content, days=settings.llm.content_days)
    local = LocalBackend(_summarize, _local_embedding(settings)) if settings.llm.local else None
    gateway = LlmGateway(
        db,
        providers,
        ModelCatalog(transport, local.models if local else ()),
        guard,
        TenantRoutes(ModelRoutes(settings.llm.groups, settings.llm.fallbacks)),
        HttpBackend(transport),
        local,
        settings.llm.default_provider,
        settings.llm.default_model,
    )
    config = GatewayConfig(
        settings.llm.timeout_seconds,
        settings.llm.idle_seconds,
        settings.llm.retries,
        settings.llm.local,
        tuple(settings.llm.budgets),
    )
    models = ModelRecords()
    outcomes = ModelOutcomeRecorder(db, runlog, infra.roles, models, settings.routing.daily_lessons)
    gateway.auto_router = AutoModelRouter(
        db, clock, runlog, gateway, guard, prices, models, outcomes, settings.routing.alpha
    )
    answers = AnswerGrader(db, runlog, models, is_active)
    runtime_settings = RuntimeSettings(db, runlog, ledger, gateway, find_agent, infra.roles.team_of)
    return LlmParts(
        gateway,
        prices,
        config,
        operator_http,
        models,
        answers,
        ledger,
        runtime_settings,
        contents,
        UsageTotals(db),
        tracer,
    )


def _open_content_keeper(settings: Settings, redactor: Redactor) -> ContentKeeper | None:
    """Return what redacts prompts and answers, None if they are not kept. Raises StartRefused."""
    # The patterns run in a process of their own: one that backtracks without end can only be killed.
    # Checked at every start, not only when somebody switches the content on.
    entries = settings.llm.redact_patterns
    patterns = PatternProcess(entries) if entries else None
    if not settings.llm.log_content:
        return None
    return ContentKeeper(ContentRedactor(redactor, settings.llm.redact), patterns)


def open_tracer(settings: Settings, add_secret: Callable[[str], None]) -> CallTracer | None:
    """Import OpenTelemetry only with a collector; return None without one.

    Raises StartRefused for settings that its SDK rejects.
    """
    base = settings.llm.otel_endpoint and settings.llm.otel_endpoint.rstrip("/") + "/v1/traces"
    if not (endpoint := settings.llm.otel_traces_endpoint or base):
        return None
    try:
        tracer: CallTracer = importlib.import_module("stentor.domains.llm.calls.otel").open_tracer(endpoint, add_secret)
    except ModuleNotFoundError:
        # The variable may be set for every program of the machine, so it does not stop the start.
        log.warning("otel: spans not sent, the extra otel is missing: %s", install_command("otel"))
        return None
    except (ValueError, OSError) as error:
        raise StartRefused(f"A variable of OpenTelemetry (OTEL_...) is invalid: {error}.") from None
    return tracer


async def _summarize(text: str) -> str:
    summary = await asyncio.to_thread(summarize, text, SUMMARY_SENTENCES)
    return " ".join(summary.sentences)


def _local_embedding(settings: Settings) -> EmbedTexts | None:
    embedder = open_embedder(settings)
    if embedder is None:
        return None

    async def embed(texts: Sequence[str]) -> Any:
        await embedder.load()
        # A caller waits for it, so it goes ahead of the notes that are embedded in the background.
        return await embedder.embed(texts, urgent=True)

    return embed
