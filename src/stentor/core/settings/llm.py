"""Settings: providers of language models and what may be spent on them."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class LlmSettings:
    openai_key: str = setting("OPENAI_API_KEY", "", "Key of the provider `openai`.", kinds.text, secret=True)
    openai_url: str = setting(
        "OPENAI_BASE_URL", "", "Base address of the provider `openai`, such as http://127.0.0.1:8000/v1.", kinds.text
    )
    anthropic_key: str = setting("ANTHROPIC_API_KEY", "", "Key of the provider `anthropic`.", kinds.text, secret=True)
    anthropic_url: str = setting("ANTHROPIC_BASE_URL", "", "Base address of the provider `anthropic`.", kinds.text)
    gemini_key: str = setting("GEMINI_API_KEY", "", "Key of the provider `gemini`.", kinds.text, secret=True)
    ollama_host: str = setting("OLLAMA_HOST", "", "Address of an Ollama, the provider `ollama`.", kinds.text)
    find_ollama: bool = setting(
        "SERVICE_LLM_FIND_OLLAMA",
        True,
        "Without OLLAMA_HOST: use an Ollama on this machine when one answers.",
        kinds.flag,
    )
    master_key: str = setting(
        "SERVICE_MASTER_KEY",
        "",
        "Secret that the keys of providers registered at runtime are encrypted with; empty makes one in the data "
        "folder. Machines that share a database need the same one.",
        kinds.text,
        secret=True,
    )
    llm_default_provider: str = setting(
        "SERVICE_LLM_DEFAULT_PROVIDER", "", "The provider of models that no provider lists.", kinds.text
    )
    llm_default_model: str = setting(
        "SERVICE_LLM_DEFAULT_MODEL", "", "The model of requests that name none, as provider/model.", kinds.text
    )
    llm_timeout: float = setting(
        "SERVICE_LLM_TIMEOUT_SECONDS", 120.0, "How long a provider may take to answer.", kinds.number(0.05, 3600, float)
    )
    llm_idle: float = setting(
        "SERVICE_LLM_STREAM_IDLE_SECONDS",
        120.0,
        "How long a provider's stream may be silent.",
        kinds.number(0.05, 3600, float),
    )
    llm_retries: int = setting(
        "SERVICE_LLM_RETRIES",
        1,
        "Further tries of a call that the provider did not take: not reached, or refused for now.",
        kinds.number(0, 10, int),
    )
    llm_fallbacks: tuple[str, ...] = setting(
        "SERVICE_LLM_FALLBACKS",
        (),
        "What is tried when a model's provider fails: `model=model|model`, comma separated; `*` for every model.",
        kinds.items,
    )
    llm_groups: tuple[str, ...] = setting(
        "SERVICE_LLM_GROUPS",
        (),
        "Names that stand for several models, which take turns by weight: `fast=openai/a*3|groq/b`. `auto:fast` picks "
        "one by what each has shown, `auto` one of the group `auto`.",
        kinds.items,
    )
    llm_prices: tuple[str, ...] = setting(
        "SERVICE_LLM_PRICES",
        (),
        "Prices in US dollars per million tokens in and out: `provider/model=0.5/1.5`; the model may be `*`.",
        kinds.items,
    )
    llm_budgets: tuple[str, ...] = setting(
        "SERVICE_LLM_BUDGETS",
        (),
        "What keys and agents may spend: `key:NAME:tokens/day=100000`, `agent:ID:usd/month=20`; a name may be `*`.",
        kinds.items,
    )
    llm_log_content: bool = setting(
        "SERVICE_LLM_LOG_CONTENT",
        False,
        "Keep requests and answers of models in the run log, not only hashes.",
        kinds.flag,
    )
    llm_local: bool = setting(
        "SERVICE_LLM_LOCAL_BASELINE",
        False,
        "Have the provider `local`: extractive answers, marked degraded.",
        kinds.flag,
    )
    otel_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT", "", "Collector that gets a span per model call (extra `otel`).", kinds.text
    )
    otel_traces_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "The same, as the whole address for traces.", kinds.text
    )
