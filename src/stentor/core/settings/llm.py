"""Settings of the LLM gateway: providers, timeouts, routing between models, budgets and tracing."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting


@dataclass(frozen=True)
class LlmSettings:
    openai_key: str = setting("OPENAI_API_KEY", "", "API key of the provider `openai`.", parsers.text, secret=True)
    openai_url: str = setting(
        "OPENAI_BASE_URL", "", "Base URL of the provider `openai`, such as http://127.0.0.1:8000/v1.", parsers.text
    )
    anthropic_key: str = setting(
        "ANTHROPIC_API_KEY", "", "API key of the provider `anthropic`.", parsers.text, secret=True
    )
    anthropic_url: str = setting("ANTHROPIC_BASE_URL", "", "Base URL of the provider `anthropic`.", parsers.text)
    gemini_key: str = setting("GEMINI_API_KEY", "", "API key of the provider `gemini`.", parsers.text, secret=True)
    ollama_host: str = setting("OLLAMA_HOST", "", "URL of an Ollama server, the provider `ollama`.", parsers.text)
    find_ollama: bool = setting(
        "SERVICE_LLM_FIND_OLLAMA",
        True,
        "If OLLAMA_HOST is empty, use an Ollama server on this machine if one is reachable.",
        parsers.boolean,
    )
    master_key: str = setting(
        "SERVICE_MASTER_KEY",
        "",
        "Secret that encrypts the API keys of providers registered at runtime; empty means a generated one in the data "
        "folder. Machines that share a database need the same secret.",
        parsers.text,
        secret=True,
    )
    default_provider: str = setting(
        "SERVICE_LLM_DEFAULT_PROVIDER", "", "Provider for models that no provider lists.", parsers.text
    )
    default_model: str = setting(
        "SERVICE_LLM_DEFAULT_MODEL", "", "Model for requests without one, as provider/model.", parsers.text
    )
    timeout_seconds: float = setting(
        "SERVICE_LLM_TIMEOUT_SECONDS",
        120.0,
        "Seconds until a call to a provider times out.",
        parsers.number(0.05, 3600, float),
    )
    idle_seconds: float = setting(
        "SERVICE_LLM_STREAM_IDLE_SECONDS",
        120.0,
        "Seconds without data after which a provider's stream is closed.",
        parsers.number(0.05, 3600, float),
    )
    retries: int = setting(
        "SERVICE_LLM_RETRIES",
        1,
        "Retries of a call that the provider did not process (unreachable, or temporarily rejected).",
        parsers.number(0, 10, int),
    )
    fallbacks: tuple[str, ...] = setting(
        "SERVICE_LLM_FALLBACKS",
        (),
        "Fallback models for failed providers: `model=model|model`, comma separated; `*` applies to every model.",
        parsers.text_list,
    )
    groups: tuple[str, ...] = setting(
        "SERVICE_LLM_GROUPS",
        (),
        "Names for groups of models, chosen by weight: `fast=openai/a*3|groq/b`, comma separated. The model "
        "`auto:fast` chooses by past results, `auto` does so in the group `auto`.",
        parsers.text_list,
    )
    prices: tuple[str, ...] = setting(
        "SERVICE_LLM_PRICES",
        (),
        "Prices in US dollars per million input and output tokens: `provider/model=0.5/1.5`; the model may be `*`.",
        parsers.text_list,
    )
    budgets: tuple[str, ...] = setting(
        "SERVICE_LLM_BUDGETS",
        (),
        "Spending limits: `key:NAME:tokens/day=100000`, `agent:ID:usd/month=20`, `team:NAME:usd/month=50`, "
        "`tenant:NAME:usd/month=200`; a name may be `*`. Admins set more of them at runtime.",
        parsers.text_list,
    )
    log_content: bool = setting(
        "SERVICE_LLM_LOG_CONTENT",
        False,
        "Keep prompts and answers of models, redacted, in the database next to the run log; without it only their "
        "hashes are recorded.",
        parsers.boolean,
    )
    content_days: int = setting(
        "SERVICE_LLM_CONTENT_DAYS",
        30,
        "Days after which kept prompts and answers are deleted; 0 keeps them for good.",
        parsers.number(0, 36_500, int),
    )
    redact: tuple[str, ...] = setting(
        "SERVICE_LLM_REDACT",
        (),
        "What is removed from kept prompts and answers besides secrets: `emails`, `cards`, or both with a comma.",
        parsers.choice_list("emails", "cards"),
    )
    redact_patterns: tuple[str, ...] = setting(
        "SERVICE_LLM_REDACT_PATTERNS",
        (),
        "Further patterns that are removed from kept prompts and answers, as `NAME=REGULAR EXPRESSION`; a list in the "
        "file, one per line in the variable.",
        parsers.line_list,
    )
    local: bool = setting(
        "SERVICE_LLM_LOCAL_BASELINE",
        False,
        "Enable the provider `local`: extractive answers without a model, marked as degraded.",
        parsers.boolean,
    )
    otel_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "OTLP collector that receives a span for each model call, attempt and step (extra `otel`).",
        parsers.text,
    )
    otel_traces_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "",
        "Complete URL of the collector for traces; overrides OTEL_EXPORTER_OTLP_ENDPOINT.",
        parsers.text,
    )
