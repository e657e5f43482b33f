"""What a provider is, which ones are known by name, and those that the operator's settings configure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from stentor.core.errors import InvalidRequest, StartRefused
from stentor.core.settings import Settings
from stentor.domains.llm.formats import FormatName, Quirks

OLLAMA_PORT = 11434
FOUND_OLLAMA = f"http://127.0.0.1:{OLLAMA_PORT}/v1"


@dataclass(frozen=True)
class Provider:
    """`base_url` has no slash at its end; `operator`: the address is the operator's, and may be private."""

    name: str
    format: FormatName
    base_url: str
    key: str = field(default="", repr=False)
    default_model: str = ""
    operator: bool = False

    @cached_property
    def quirks(self) -> Quirks:
        host = urlsplit(self.base_url).hostname or ""
        if host == "api.openai.com":
            return Quirks(max_tokens="max_completion_tokens")
        if host.endswith(".azure.com"):
            return Quirks(max_tokens="max_completion_tokens", key_header="api-key")
        return Quirks(stream_usage=host != "api.mistral.ai")


@dataclass(frozen=True)
class Known:
    """A provider's format and its base address, empty where everybody has an own one."""

    format: FormatName = "openai"
    base_url: str = ""


KNOWN = {
    "openai": Known("openai", "https://api.openai.com/v1"),
    "anthropic": Known("anthropic", "https://api.anthropic.com"),
    "gemini": Known("gemini", "https://generativelanguage.googleapis.com"),
    "ollama": Known("openai", FOUND_OLLAMA),
    "openrouter": Known("openai", "https://openrouter.ai/api/v1"),
    "groq": Known("openai", "https://api.groq.com/openai/v1"),
    "mistral": Known("openai", "https://api.mistral.ai/v1"),
    "deepseek": Known("openai", "https://api.deepseek.com/v1"),
}


def normal_url(url: str) -> str:
    """A base address without its last slash. Raises InvalidRequest for what is none."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(c.isspace() or not c.isprintable() for c in url.strip()):
        raise InvalidRequest("A provider's base address must be an http or https URL.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidRequest("A provider's base address has no credentials, query or fragment.")
    return url.strip().rstrip("/")


def ollama_url(host: str) -> str:
    """The base address that OLLAMA_HOST means: a host with or without scheme and port, or what it listens on."""
    scheme, found, rest = host.strip().rpartition("://")
    parts = urlsplit(f"//{rest}")
    name = parts.hostname or "127.0.0.1"
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)  # noqa: S104 - not to listen on
    name = f"[{name}]" if ":" in name else name
    default = {"http": 80, "https": 443}[scheme] if scheme in ("http", "https") else OLLAMA_PORT
    base = f"{scheme if found else 'http'}://{name}:{parts.port or default}{parts.path.rstrip('/')}"
    return base if base.endswith("/v1") else f"{base}/v1"


def from_settings(settings: Settings) -> dict[str, Provider]:
    """The providers that the environment configures. Raises StartRefused for an address that is none."""
    found = {}
    given = {
        "openai": (settings.openai_key, settings.openai_url),
        "anthropic": (settings.anthropic_key, settings.anthropic_url),
        "gemini": (settings.gemini_key, ""),
        "ollama": ("", settings.ollama_host and ollama_url(settings.ollama_host)),
    }
    for name, (key, url) in given.items():
        if key or url:
            default = settings.llm_default_model if name == settings.llm_default_provider else ""
            found[name] = _of_operator(name, key, url, default)
    return found


def _of_operator(name: str, key: str, url: str, default_model: str) -> Provider:
    known = KNOWN[name]
    try:
        base = normal_url(url or known.base_url)
    except (InvalidRequest, ValueError):
        raise StartRefused(f"The base address of the provider {name} is not an http or https URL.") from None
    return Provider(name, known.format, base, key, default_model, operator=True)


def private_hosts(providers: dict[str, Provider]) -> tuple[str, ...]:
    """host:port of the operator's base addresses, for the guard of outbound connections."""
    addresses = [provider.base_url for provider in providers.values()] + [FOUND_OLLAMA]
    hosts = []
    for parts in map(urlsplit, addresses):
        port = parts.port or (443 if parts.scheme == "https" else 80)
        hosts.append(f"{(parts.hostname or '').lower()}:{port}")
    return tuple(hosts)
