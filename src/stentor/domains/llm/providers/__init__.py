"""Providers of language models: the type, those known by name, and those that the operator's settings configure.

`registry` adds the ones registered at runtime; `transport` and `backends` call them; `failures` maps their errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from stentor.core.errors import InvalidRequest, StartRefused
from stentor.core.settings import Settings
from stentor.core.settings.parsers import split_web_url
from stentor.domains.llm.formats.base import FormatName, ProviderQuirks

OLLAMA_PORT = 11434
LOCAL_OLLAMA_URL = f"http://127.0.0.1:{OLLAMA_PORT}/v1"
REASONING_HOSTS = ("api.deepseek.com", "api.moonshot.ai", "api.moonshot.cn")
"""Hosts that refuse the call of a tool without the reasoning before it. Others refuse the field, such as Groq."""


@dataclass(frozen=True)
class Provider:
    """One configured provider.

    `base_url` has no trailing slash. `is_operator_owned`: the operator configured the address, so it may be private.
    """

    name: str
    format: FormatName
    base_url: str
    key: str = field(default="", repr=False)
    default_model: str = ""
    is_operator_owned: bool = False

    @cached_property
    def quirks(self) -> ProviderQuirks:
        host = urlsplit(self.base_url).hostname or ""
        # Also the hosts of one region, such as eu.api.openai.com.
        if f".{host}".endswith(".api.openai.com"):
            return ProviderQuirks(max_tokens="max_completion_tokens")
        # Decided by host and not by name: a tenant may register OpenAI or Azure under any name.
        if host.endswith((".azure.com", ".azure.us")):
            return ProviderQuirks(max_tokens="max_completion_tokens", key_header="api-key")
        if host == "api.mistral.ai":
            return ProviderQuirks(stream_usage=False, short_call_ids=True, seed="random_seed", user_after_tool=False)
        return ProviderQuirks(wants_reasoning=host in REASONING_HOSTS)


@dataclass(frozen=True)
class ProviderDefaults:
    """Format and base address of a provider; the address is empty if each customer has a different one."""

    format: FormatName = "openai"
    base_url: str = ""


KNOWN_PROVIDERS = {
    "openai": ProviderDefaults("openai", "https://api.openai.com/v1"),
    "anthropic": ProviderDefaults("anthropic", "https://api.anthropic.com"),
    "gemini": ProviderDefaults("gemini", "https://generativelanguage.googleapis.com"),
    "ollama": ProviderDefaults("openai", LOCAL_OLLAMA_URL),
    "openrouter": ProviderDefaults("openai", "https://openrouter.ai/api/v1"),
    "groq": ProviderDefaults("openai", "https://api.groq.com/openai/v1"),
    "mistral": ProviderDefaults("openai", "https://api.mistral.ai/v1"),
    "deepseek": ProviderDefaults("openai", "https://api.deepseek.com/v1"),
}


def normalize_url(url: str) -> str:
    """Return a base address without its trailing slash. Raises InvalidRequest if it is not a plain http(s) URL."""
    parts = split_web_url(url.strip())
    if parts is None or any(c.isspace() or not c.isprintable() for c in url.strip()):
        raise InvalidRequest("A provider's base address must be an http or https URL.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidRequest("A provider's base address must not have credentials, a query or a fragment.")
    return url.strip().rstrip("/")


def parse_ollama_host(host: str) -> str:
    """Return the base address for a value of OLLAMA_HOST: a host with optional scheme and port.

    The variable also configures where Ollama listens; a wildcard address there becomes the loopback address here.
    """
    scheme, separator, rest = host.strip().rpartition("://")
    parts = urlsplit(f"//{rest}")
    name = parts.hostname or "127.0.0.1"
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)  # noqa: S104 - not used to listen
    name = f"[{name}]" if ":" in name else name
    default = {"http": 80, "https": 443}[scheme] if scheme in ("http", "https") else OLLAMA_PORT
    base = f"{scheme if separator else 'http'}://{name}:{parts.port or default}{parts.path.rstrip('/')}"
    # Ollama's own API has no prefix; the OpenAI-compatible one is below /v1.
    return base if base.endswith("/v1") else f"{base}/v1"


BASE_URL_VARIABLES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "ollama": "OLLAMA_HOST"}


def providers_from_settings(settings: Settings) -> dict[str, Provider]:
    """Return the providers that the environment configures. Raises StartRefused for an invalid base address."""
    providers = {}
    configured = {
        "openai": (settings.llm.openai_key, settings.llm.openai_url),
        "anthropic": (settings.llm.anthropic_key, settings.llm.anthropic_url),
        "gemini": (settings.llm.gemini_key, ""),
        "ollama": ("", settings.llm.ollama_host and parse_ollama_host(settings.llm.ollama_host)),
    }
    for name, (key, url) in configured.items():
        if key or url:
            default = settings.llm.default_model if name == settings.llm.default_provider else ""
            providers[name] = _operator_provider(name, key, url, default)
    return providers


def _operator_provider(name: str, key: str, url: str, default_model: str) -> Provider:
    defaults = KNOWN_PROVIDERS[name]
    try:
        base = normalize_url(url or defaults.base_url)
    except (InvalidRequest, ValueError):
        raise StartRefused(f"{BASE_URL_VARIABLES[name]} must be an http or https URL.") from None
    return Provider(name, defaults.format, base, key, default_model, is_operator_owned=True)


def operator_hosts(providers: dict[str, Provider]) -> tuple[str, ...]:
    """Return host:port of the operator's base addresses, which the SSRF guard lets through."""
    addresses = [provider.base_url for provider in providers.values()] + [LOCAL_OLLAMA_URL]
    hosts = []
    for parts in map(urlsplit, addresses):
        port = parts.port or (443 if parts.scheme == "https" else 80)
        hosts.append(f"{(parts.hostname or '').lower()}:{port}")
    return tuple(hosts)
