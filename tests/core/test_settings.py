"""Settings: names, sources, bounds; what cannot be read stops the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor.core.errors import StartRefused
from stentor.core.settings import load, setting_infos
from tests.requirements import requirement


def test_every_setting_has_a_default_a_name_and_a_sentence() -> None:
    found = setting_infos()
    load({})
    assert len({meta.env for meta in found.values()}) == len(found)
    assert all(meta.doc.endswith(".") for meta in found.values())


def test_an_option_wins_over_the_environment_and_that_over_the_default() -> None:
    settings = load(
        {"SERVICE_HOST": " ::1 ", "SERVICE_DATA_DIR": "here"}, {"SERVICE_DATA_DIR": Path("there"), "SERVICE_HOST": None}
    )
    assert (settings.server.host, settings.storage.data_dir, settings.server.port) == ("::1", Path("there"), 8080)
    assert [settings.sources[name] for name in ("SERVICE_HOST", "SERVICE_DATA_DIR", "SERVICE_GATEWAY_PORT")] == [
        "environment",
        "option",
        "default",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SERVICE_GATEWAY_PORT", "70000"),
        ("SERVICE_GATEWAY_PORT", "http"),
        ("SERVICE_GATEWAY_PORT", ""),
        ("SERVICE_TASK_MAX_ATTEMPTS", "0"),
        ("SERVICE_LEASE_SECONDS", "2"),
        ("SERVICE_ROUTING_TRUST_FLOOR", "1.01"),
        ("SERVICE_ROUTING_TRUST_FLOOR", "nan"),
        ("SERVICE_BUILTIN_AGENTS", "maybe"),
        ("SERVICE_LOG_LEVEL", "verbose"),
        ("SERVICE_RATE_LIMIT_PER_MINUTE", "-1"),
        ("SERVICE_RATE_LIMIT_PER_MINUTE", "1.5"),
        ("SERVICE_OIDC_ISSUER", "http://login.example.com"),
        ("SERVICE_OIDC_ISSUER", "https://user:pw@login.example.com"),
        ("SERVICE_OIDC_ISSUER", "login"),
        ("SERVICE_OIDC_ISSUER", "https://login.example.com"),  # without a client and roles
        ("SERVICE_OIDC_ROLES", "staff=root"),
        ("SERVICE_OIDC_ROLES", "=admin"),
        ("SERVICE_OIDC_ROLES", "staff=agent"),
        ("SERVICE_OIDC_SCOPES", "email"),
        ("SERVICE_DATA_DIR", ""),
        ("SERVICE_DATA_DIR", "  "),
        ("SERVICE_KUBERNETES_NAMESPACE", "Agents"),
        ("SERVICE_KUBERNETES_NAMESPACE", "agents/jobs"),
        ("SERVICE_RAY_ADDRESSES", "head"),
        ("SERVICE_RAY_ADDRESSES", "head:6379, http://head:8265"),
        ("SERVICE_RAY_ADDRESSES", "head:99999"),
        # Without SERVICE_DATABASE_URL.
        ("SERVICE_NATS_URL", "nats://localhost:4222"),
        # Without SERVICE_DATABASE_URL, the address of the pooler.
        ("SERVICE_DATABASE_SESSION_URL", "postgresql://localhost/stentor"),
    ],
)
def test_a_value_that_cannot_be_read_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(StartRefused, match=name):
        load({name: value})


@pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("on", True), ("1", True), ("No", False), ("0", False)])
def test_flags_are_read_in_any_case(text: str, value: bool) -> None:
    assert load({"SERVICE_BUILTIN_AGENTS": text}).tasks.builtin_agents is value


def test_hosts_are_a_list_in_lower_case() -> None:
    assert load({"SERVICE_OUTBOUND_ALLOW": "A.example:80, ,10.0.0.1 "}).server.outbound_allow == (
        "a.example:80",
        "10.0.0.1",
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SERVICE_OUTBOUND_ALLOW", "http://127.0.0.1:9000"),
        ("SERVICE_OUTBOUND_ALLOW", "10.0.0.0/8"),
        ("SERVICE_OUTBOUND_ALLOW", "10.0.0.1 10.0.0.2"),
        ("SERVICE_ALLOWED_HOSTS", "https://stentor.example.com"),
        ("SERVICE_OUTBOUND_ALLOW", "*.example.com"),
        ("SERVICE_OUTBOUND_ALLOW", "llm.internal:*"),
        ("SERVICE_ALLOWED_HOSTS", "stentor.example.com:8443"),
        ("SERVICE_ALLOWED_HOSTS", "one.example.com, two.example.com:8443"),
        ("SERVICE_ALLOWED_HOSTS", "*.example.com"),
        ("SERVICE_ALLOWED_HOSTS", "[::1]:8443"),
        ("SERVICE_ALLOWED_HOSTS", "[::1]"),
        ("SERVICE_ALLOWED_HOSTS", "bücher.example"),
        ("SERVICE_MCP_ALLOWED_HOSTS", "*.example.com"),
    ],
)
def test_a_host_that_would_never_match_is_refused(variable: str, value: str) -> None:
    with pytest.raises(StartRefused, match=f"{variable} must be "):
        load({variable: value})


def test_origins_are_urls_and_names_may_be_addresses_or_any() -> None:
    loaded = load({"SERVICE_MCP_ALLOWED_ORIGINS": "https://A.example", "SERVICE_ALLOWED_HOSTS": "*, ::1"})
    hosts = "*, ::1, 10.0.0.1, a_b.example"
    assert load({"SERVICE_ALLOWED_HOSTS": hosts}).connections.allowed_hosts == tuple(hosts.split(", "))
    hosts = "memory.example:*, [::1]:8443, memory.example"
    assert load({"SERVICE_MCP_ALLOWED_HOSTS": hosts}).mcp.hosts == tuple(hosts.split(", "))
    assert (loaded.mcp.origins, loaded.connections.allowed_hosts) == (("https://a.example",), ("*", "::1"))


@requirement("http.auth-unsafe-start-refused")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.com"])
def test_skipped_authentication_is_for_loopback_only(host: str) -> None:
    environ = {"NODE_ENV": "development", "SKIP_AUTH": "true", "SERVICE_HOST": host}
    with pytest.raises(StartRefused, match="SKIP_AUTH"):
        load(environ)
    assert load({**environ, "SERVICE_HOST": "127.0.0.1"}).auth.skip_auth is True
    assert load({**environ, "NODE_ENV": "production"}).server.host == host
