"""Wires the LLM gateway: providers, the gate before them, and both of its surfaces."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

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
from stentor.domains.llm import api, budgets
from stentor.domains.llm.backends import Embed, Local, Remote
from stentor.domains.llm.breaker import Breaker
from stentor.domains.llm.catalogue import Catalogue
from stentor.domains.llm.directory import Directory
from stentor.domains.llm.gate import Gate
from stentor.domains.llm.openai import api as openai_api
from stentor.domains.llm.prices import Prices
from stentor.domains.llm.providers import from_settings, private_hosts
from stentor.domains.llm.routes import Routes
from stentor.domains.llm.service import Gateway
from stentor.domains.llm.spans import NoSpans, Spans
from stentor.domains.llm.talk import Talk
from stentor.domains.llm.transport import Limits, Transport
from stentor.domains.modelrouting import api as modelrouting_api
from stentor.domains.modelrouting.grades import Answers
from stentor.domains.modelrouting.learning import Teacher
from stentor.domains.modelrouting.records import Records
from stentor.domains.modelrouting.service import AutoModels
from stentor.web.sse import StreamLimit

SENTENCES = 3
"""Of an answer of the local baseline."""
log = logging.getLogger(__name__)


@dataclass
class Llm:
    """The wired parts; `stop` waits for what is still being recorded."""

    gateway: Gateway
    prices: Prices
    about: api.About
    trusted: OutboundHttp
    models: Records
    answers: Answers

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
    operators = from_settings(settings)
    trusted = OutboundHttp(private_hosts(operators))
    limits = Limits(total=settings.llm_timeout, idle=settings.llm_idle, retries=settings.llm_retries)
    transport = Transport(trusted, outbound, limits, redactor.redact if redactor else str)
    prices, routes = Prices(settings.llm_prices), Routes(settings.llm_groups, settings.llm_fallbacks)
    directory = Directory(
        db,
        runlog,
        Sealer(settings.data_dir, settings.master_key),
        operators,
        transport,
        outbound.check_url,
        find_ollama=settings.find_ollama,
        local=settings.llm_local,
        redactor=redactor,
    )
    limits_of_money = budgets.parse(settings.llm_budgets)
    spans, keep = open_spans(settings, (redactor or Redactor()).add_secret), settings.llm_log_content
    gate = Gate(db, clock, runlog, Breaker(clock), prices, limits_of_money, spans, keep_content=keep)
    local = Local(_summary, _local_embed(settings)) if settings.llm_local else None
    gateway = Gateway(
        db,
        directory,
        Catalogue(transport, local.models if local else ()),
        gate,
        routes,
        Remote(transport),
        local,
        settings.llm_default_provider,
        settings.llm_default_model,
    )
    about = api.About(
        settings.llm_timeout, settings.llm_idle, settings.llm_retries, settings.llm_local, tuple(settings.llm_budgets)
    )
    models = Records()
    teacher = Teacher(db, runlog, roles, models, settings.daily_lessons)
    gateway.auto = AutoModels(db, clock, runlog, gateway, gate, prices, models, teacher, settings.alpha)
    return Llm(gateway, prices, about, trusted, models, Answers(db, runlog, models))


def llm_routers(llm: Llm, talk: Talk, speaker: api.Speaker, streams: StreamLimit) -> list[APIRouter]:
    """The routes of the contract, those of answers, and those in OpenAI's dialect."""
    ours = api.router(llm.gateway, talk, speaker, llm.prices, llm.about, streams)
    return [ours, modelrouting_api.router(llm.answers), openai_api.router(llm.gateway, talk, streams)]


def open_spans(settings: Settings, secret: Callable[[str], None]) -> Spans:
    """Nothing of OpenTelemetry is imported without a collector. Raises StartRefused for what its SDK cannot read."""
    base = settings.otel_endpoint and settings.otel_endpoint.rstrip("/") + "/v1/traces"
    if not (endpoint := settings.otel_traces_endpoint or base):
        return NoSpans()
    try:
        spans: Spans = importlib.import_module("stentor.domains.llm.otel").open_spans(endpoint, secret)
    except ModuleNotFoundError:
        # The variable may be there for every program of the machine: no reason to refuse the start.
        log.warning("a collector of OpenTelemetry is set; to send spans: pip install 'stentor[otel]'")
        return NoSpans()
    except (ValueError, OSError) as error:
        raise StartRefused(f"A variable of OpenTelemetry (OTEL_...) cannot be used: {error}.") from None
    return spans


async def _summary(text: str) -> str:
    found = await asyncio.to_thread(summarize, text, SENTENCES)
    return " ".join(found.sentences)


def _local_embed(settings: Settings) -> Embed | None:
    local = embedder(settings)
    if local is None:
        return None

    async def embed(texts: Sequence[str]) -> Any:
        await local.load()
        return await local.embed(texts, urgent=True)

    return embed
