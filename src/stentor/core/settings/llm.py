"""Settings: providers of language models and what may be spent on them."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting


@dataclass(frozen=True)
class LlmSettings:
    openai_key: str = setting("OPENAI_API_KEY", "", "Key of the provider `openai`.", parsers.text, secret=True)
    openai_url: str = setting(
        "OPENAI_BASE_URL", "", "Base address of the provider `openai`, such as http://127.0.0.1:8000/v1.", parsers.text
    )
    anthropic_key: str = setting("ANTHROPIC_API_KEY", "", "Key of the provider `anthropic`.", parsers.text, secret=True)
    anthropic_url: str = setting("ANTHROPIC_BASE_URL", "", "Base address of the provider `anthropic`.", parsers.text)
    gemini_key: str = setting("GEMINI_API_KEY", "", "Key of the provider `gemini`.", parsers.text, secret=True)
    ollama_host: str = setting("OLLAMA_HOST", "", "Address of an Ollama, the provider `ollama`.", parsers.text)
    find_ollama: bool = setting(
        "SERVICE_LLM_FIND_OLLAMA",
        True,
        "Without OLLAMA_HOST: use an Ollama on this machine when one answers.",
        parsers.boolean,
    )
    master_key: str = setting(
        "SERVICE_MASTER_KEY",
        "",
        "Secret that the keys of providers registered at runtime are encrypted with; empty makes one in the data "
        "folder. Machines that share a database need the same one.",
        parsers.text,
        secret=True,
    )
    llm_default_provider: str = setting(
        "SERVICE_LLM_DEFAULT_PROVIDER", "", "The provider of models that no provider lists.", parsers.text
    )
    llm_default_model: str = setting(
        "SERVICE_LLM_DEFAULT_MODEL", "", "The model of requests that name none, as provider/model.", parsers.text
    )
    llm_timeout: float = setting(
        "SERVICE_LLM_TIMEOUT_SECONDS",
        120.0,
        "How long a provider may take to answer.",
        parsers.number(0.05, 3600, float),
    )
    llm_idle: float = setting(
        "SERVICE_LLM_STREAM_IDLE_SECONDS",
        120.0,
        "How long a provider's stream may be silent.",
        parsers.number(0.05, 3600, float),
    )
    llm_retries: int = setting(
        "SERVICE_LLM_RETRIES",
        1,
        "Further tries of a call that the provider did not take: not reached, or refused for now.",
        parsers.number(0, 10, int),
    )
    llm_fallbacks: tuple[str, ...] = setting(
        "SERVICE_LLM_FALLBACKS",
        (),
        "What is tried when a model's provider fails: `model=model|model`, comma separated; `*` for every model.",
        parsers.text_list,
    )
    llm_groups: tuple[str, ...] = setting(
        "SERVICE_LLM_GROUPS",
        (),
        "Names that stand for several models, which take turns by weight: `fast=openai/a*3|groq/b`. `auto:fast` picks "
        "one by what each has shown, `auto` one of the group `auto`.",
        parsers.text_list,
    )
    llm_prices: tuple[str, ...] = setting(
        "SERVICE_LLM_PRICES",
        (),
        "Prices in US dollars per million tokens in and out: `provider/model=0.5/1.5`; the model may be `*`.",
        parsers.text_list,
    )
    llm_budgets: tuple[str, ...] = setting(
        "SERVICE_LLM_BUDGETS",
        (),
        "What keys and agents may spend: `key:NAME:tokens/day=100000`, `agent:ID:usd/month=20`; a name may be `*`.",
        parsers.text_list,
    )
    llm_log_content: bool = setting(
        "SERVICE_LLM_LOG_CONTENT",
        False,
        "Keep requests and answers of models in the run log, not only hashes.",
        parsers.boolean,
    )
    llm_local: bool = setting(
        "SERVICE_LLM_LOCAL_BASELINE",
        False,
        "Have the provider `local`: extractive answers, marked degraded.",
        parsers.boolean,
    )
    otel_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT", "", "Collector that gets a span per model call (extra `otel`).", parsers.text
    )
    otel_traces_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "The same, as the whole address for traces.", parsers.text
    )
