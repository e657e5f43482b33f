"""Which providers there are, whose keys they use, and where those keys may go."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stentor.core import jsontext, settings
from stentor.core.db import Database, Sql
from stentor.core.errors import ProviderTimeout, ProviderUnreachable, StartRefused
from stentor.domains.llm import store
from stentor.domains.llm.providers import Provider, parse_ollama_host, providers_from_settings
from stentor.domains.llm.providers.registry import ModelCatalog, ProviderDraft, ProviderRegistry
from stentor.domains.llm.store import ProviderRow
from tests.conftest import MakeWorld, World
from tests.domains.llm.conftest import KEY, Gate, chat
from tests.domains.llm.upstream import ANSWER, Upstream, serving, status
from tests.patience import soon
from tests.requirements import requirement

OTHER_KEY = "canary-api-77aa-secret"
REMOVALS = Sql("select metadata from events where event_type = 'provider_changed' and message like '%removed.'")


async def register(world: World, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = await world.admin.post("/api/v1/llm/provider", json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json()["data" if status == 200 else "error"])


async def listed(world: World) -> dict[str, dict[str, Any]]:
    answer = await world.admin.get("/api/v1/llm/providers")
    assert answer.status_code == 200, answer.text
    return {provider["name"]: provider for provider in answer.json()["data"]}


@pytest.fixture
async def open_world(make_llm: Gate, upstream: Upstream) -> World:
    """Registered providers may be on the scripted server."""
    return await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")


@requirement("llm.providers-from-environment")
def test_each_variable_configures_its_provider() -> None:
    environ = {
        "OPENAI_API_KEY": "a",
        "OPENAI_BASE_URL": "http://10.0.0.1:8000/v1/",
        "ANTHROPIC_API_KEY": "b",
        "ANTHROPIC_BASE_URL": "https://anthropic.example.com",
        "GEMINI_API_KEY": "c",
        "OLLAMA_HOST": "box:5000",
    }
    found = providers_from_settings(settings.load(environ))
    assert {name: (p.base_url, p.key) for name, p in found.items()} == {
        "openai": ("http://10.0.0.1:8000/v1", "a"),
        "anthropic": ("https://anthropic.example.com", "b"),
        "gemini": ("https://generativelanguage.googleapis.com", "c"),
        "ollama": ("http://box:5000/v1", ""),
    }
    assert providers_from_settings(settings.load({})) == {}
    assert set(providers_from_settings(settings.load({"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}))) == {"openai"}
    assert "key" not in repr(found["openai"])
    with pytest.raises(StartRefused, match="OPENAI_BASE_URL"):
        providers_from_settings(settings.load({"OPENAI_BASE_URL": "ftp://x"}))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:9", "http://127.0.0.1:9/v1"),
        ("http://box", "http://box:80/v1"),
        ("https://box/ollama/", "https://box:443/ollama/v1"),
        ("[::1]:7", "http://[::1]:7/v1"),
        (":8", "http://127.0.0.1:8/v1"),
    ],
)
def test_the_forms_of_ollama_host(host: str, url: str) -> None:
    assert parse_ollama_host(host) == url


@requirement("llm.providers")
async def test_the_list_of_providers_tells_whether_each_is_reachable_and_never_a_key(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm(OLLAMA_HOST="127.0.0.1:1")
    answer = await world.admin.get("/api/v1/llm/providers")
    assert KEY not in answer.text
    found = {provider["name"]: provider for provider in answer.json()["data"]}
    assert set(found) == {"openai", "anthropic", "ollama"}
    openai = found["openai"]
    assert (openai["reachable"], openai["apiKeyConfigured"], openai["baseUrl"]) == (True, True, upstream.v1)
    assert openai["latency_ms"] >= 0
    assert (found["ollama"]["reachable"], found["ollama"]["apiKeyConfigured"]) == (False, False)


@requirement("llm.providers-need-admin")
async def test_providers_are_for_admins_alone(world: World) -> None:
    for key in ("READER", "WRITER", "BOB"):
        for answer in (
            await world.clients[key].get("/api/v1/llm/providers"),
            await world.clients[key].post("/api/v1/llm/provider", json={"provider": "openai", "apiKey": "x"}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")


@requirement("llm.provider-registration")
async def test_a_provider_is_registered_used_and_changed_at_runtime(open_world: World, upstream: Upstream) -> None:
    options = {"default_model": "sea-large"}
    made = await register(open_world, provider="acme", apiKey=OTHER_KEY, baseUrl=upstream.v1, options=options)
    assert (made["apiKeyConfigured"], made["apiKey"], made["default_model"]) == (True, "[redacted]", "sea-large")
    assert (await chat(open_world, "acme/sea-large")).json()["data"]["content"] == ANSWER
    assert upstream.asked[-1]["headers"]["authorization"] == f"Bearer {OTHER_KEY}"
    await register(open_world, provider="acme", apiKey="second-key-123")
    await chat(open_world, "acme/sea-large")
    assert upstream.asked[-1]["headers"]["authorization"] == "Bearer second-key-123"
    assert (await listed(open_world))["acme"]["default_model"] == "sea-large"


@requirement("llm.provider-removal")
async def test_a_removed_provider_is_gone_with_its_key_and_leaves_an_event(
    open_world: World, upstream: Upstream
) -> None:
    path = "/api/v1/llm/provider/acme"
    await register(open_world, provider="acme", apiKey=OTHER_KEY, baseUrl=upstream.v1)
    for key in ("READER", "WRITER"):
        assert (await open_world.clients[key].delete(path)).status_code == 403
    gone = await open_world.admin.delete(path)
    assert (gone.status_code, gone.json()["data"]) == (200, {"name": "acme", "removed": True})
    assert (await open_world.admin.delete(path)).json()["error"]["code"] == "NOT_FOUND"
    assert (await chat(open_world, "acme/sea-large")).status_code == 404
    rows = await open_world.kernel.infra.db.read(lambda tx: tx.rows(REMOVALS))
    assert [jsontext.load(row[0]) for row in rows] == [{"provider": "acme", "removed": True, "by": "admin"}]


async def test_a_registered_provider_is_its_tenants_alone(open_world: World, upstream: Upstream) -> None:
    await register(open_world, provider="acme", apiKey=OTHER_KEY, baseUrl=upstream.v1)
    other = open_world.clients["OTHER"]
    names = {p["name"] for p in (await other.get("/api/v1/llm/providers")).json()["data"]}
    assert names == {"openai", "anthropic"}
    body = {"messages": [{"role": "user", "content": "x"}], "model": "acme/sea-large"}
    assert (await other.post("/api/v1/llm/chat", json=body)).status_code == 404


@requirement("llm.provider-options")
async def test_options_of_a_client_override_neither_key_nor_address(open_world: World, upstream: Upstream) -> None:
    options = {"apiKey": "mine", "baseUrl": "http://evil.test/v1", "default_model": "sea-small"}
    await register(open_world, provider="acme", apiKey=OTHER_KEY, baseUrl=upstream.v1, options=options)
    found = (await listed(open_world))["acme"]
    assert (found["baseUrl"], found["default_model"]) == (upstream.v1, "sea-small")
    await chat(open_world, "acme/sea-large", options={"apiKey": "mine", "baseUrl": "http://evil.test/v1"})
    assert upstream.asked[-1]["headers"]["authorization"] == f"Bearer {OTHER_KEY}"
    for odd in ("text", 5, [1], True, None):
        await register(open_world, provider="acme", options=odd)
        assert (await listed(open_world))["acme"]["default_model"] == "sea-small"
        assert (await chat(open_world, "acme/sea-large", options=odd)).status_code == 200


@requirement("llm.provider-keys-protected")
async def test_keys_lie_encrypted_in_the_database_under_a_key_for_the_owner_alone(
    open_world: World, upstream: Upstream, tmp_path: Path
) -> None:
    await register(open_world, provider="acme", apiKey=OTHER_KEY, baseUrl=upstream.v1)
    rows = await open_world.kernel.infra.db.read(lambda tx: tx.rows(Sql("select sealed_key from llm_providers")))
    assert len(rows[0][0]) > len(OTHER_KEY)
    assert OTHER_KEY not in rows[0][0]
    master = tmp_path / "keys" / "providers.key"
    assert stat.S_IMODE(master.stat().st_mode) == 0o600
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and OTHER_KEY.encode() in p.read_bytes()]


@requirement("llm.provider-keys-protected")
async def test_another_base_address_drops_the_key(make_llm: Gate, upstream: Upstream) -> None:
    async with serving() as second:
        world = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port},127.0.0.1:{second.port}")
        await register(world, provider="acme", apiKey=OTHER_KEY, baseUrl=upstream.v1)
        moved = await register(world, provider="acme", baseUrl=second.v1)
        assert moved["apiKeyConfigured"] is False
        await chat(world, "acme/sea-large")
        assert "authorization" not in second.asked[-1]["headers"]
        assert (await register(world, provider="acme", baseUrl=upstream.v1))["apiKeyConfigured"] is False


async def test_a_sealed_key_that_is_moved_to_another_row_does_not_open(open_world: World, upstream: Upstream) -> None:
    await register(open_world, provider="acme", apiKey=OTHER_KEY, baseUrl=upstream.v1)
    await register(open_world, provider="thief", baseUrl=upstream.v1)
    steal = Sql(
        "update llm_providers set sealed_key = (select sealed_key from llm_providers where name = 'acme') "
        "where name = 'thief'"
    )
    await open_world.kernel.infra.db.write(lambda tx: tx.run(steal))
    open_world.kernel.llm.gateway.provider_registry._cached.clear()
    assert (await listed(open_world))["thief"]["apiKeyConfigured"] is False


@requirement("llm.operators-providers-stand")
@pytest.mark.parametrize("name", ["openai", "local"])
async def test_a_provider_of_the_environment_cannot_be_replaced_at_run_time(
    make_llm: Gate, upstream: Upstream, name: str
) -> None:
    async with serving() as second:
        allowed = f"127.0.0.1:{upstream.port},127.0.0.1:{second.port}"
        world = await make_llm(SERVICE_OUTBOUND_ALLOW=allowed, SERVICE_LLM_LOCAL_BASELINE="true")
        for fields in ({"apiKey": OTHER_KEY}, {"baseUrl": second.v1}, {"format": "gemini"}):
            answer = await world.admin.post("/api/v1/llm/provider", json={"provider": name, **fields})
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT")
            assert OTHER_KEY not in answer.text
        assert (await chat(world)).status_code == 200
        assert upstream.asked[-1]["headers"]["authorization"] == f"Bearer {KEY}"
        assert second.asked == []


@requirement("llm.operators-providers-stand")
async def test_a_registration_from_before_the_operator_configured_the_provider_does_not_count(
    world: World, upstream: Upstream
) -> None:
    put = ProviderRow("openai", "openai", "http://192.0.2.1/v1", None, "")
    await world.kernel.infra.db.write(lambda tx: store.upsert_provider(tx, "default", put))
    assert (await chat(world)).status_code == 200
    assert upstream.asked[-1]["headers"]["authorization"] == f"Bearer {KEY}"
    assert (await listed(world))["openai"]["baseUrl"] == upstream.v1


async def test_the_default_model_of_the_operators_provider_may_be_changed(world: World, upstream: Upstream) -> None:
    await register(world, provider="openai", options={"default_model": "sea-small"})
    assert (await chat(world)).status_code == 200
    assert upstream.asked[-1]["headers"]["authorization"] == f"Bearer {KEY}"
    assert (await listed(world))["openai"]["default_model"] == "sea-small"


@requirement("llm.provider-ssrf")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/v1",
        "http://localhost/v1",
        "http://169.254.169.254/latest",
        "http://[::1]/v1",
        "http://[::ffff:10.0.0.1]/v1",
        "http://2130706433/v1",
        "http://user:pass@example.com/v1",
        "https://example.com/v1?key=x",
        "ftp://example.com",
        "file:///etc/passwd",
        "example.com",
        "http://",
        "http://exa mple.com",
    ],
)
async def test_an_address_that_callers_may_not_name_is_refused(world: World, upstream: Upstream, url: str) -> None:
    error = await register(world, 400, provider="acme", baseUrl=url.format(port=upstream.port))
    assert error["code"] == "INVALID_REQUEST"
    assert "acme" not in await listed(world)


@requirement("llm.provider-ssrf")
async def test_a_name_that_resolves_to_a_private_address_is_not_called(
    world: World, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(world, provider="acme", apiKey=OTHER_KEY, baseUrl=f"http://llm.example.com:{upstream.port}/v1")

    async def resolve(host: str, port: int, **kinds: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    answer = await chat(world, "acme/sea-large")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "PROVIDER_ERROR")
    assert upstream.asked == []


async def test_a_provider_without_a_base_address_of_its_own_has_to_name_one(world: World) -> None:
    assert "baseUrl" in (await register(world, 400, provider="acme", apiKey="x"))["message"]
    assert (await register(world, provider="groq", apiKey="x"))["baseUrl"] == "https://api.groq.com/openai/v1"


@requirement("llm.model-names")
async def test_a_bare_name_goes_to_the_provider_that_lists_it_or_else_to_the_default(make_llm: Gate) -> None:
    async with serving(models=["river"]) as second:
        world = await make_llm(OLLAMA_HOST=f"127.0.0.1:{second.port}", SERVICE_LLM_DEFAULT_PROVIDER="anthropic")
        assert (await chat(world, "river")).json()["data"]["model"] == "ollama/river"
        assert (await chat(world, "sea-large")).json()["data"]["model"] == "anthropic/sea-large"
        assert (await chat(world, "unlisted/name")).json()["data"]["model"] == "anthropic/unlisted/name"
        assert (await chat(world, "openai/a/b")).json()["data"]["model"] == "openai/a/b"


async def test_a_model_that_is_nowhere_is_404_and_says_what_to_do(world: World, make_world: MakeWorld) -> None:
    answer = await chat(world, "river")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "MODEL_NOT_FOUND")
    assert "llm/models" in answer.json()["error"]["message"]
    bare = await make_world()
    assert "OPENAI_API_KEY" in (await chat(bare, "river")).json()["error"]["message"]


async def test_a_request_without_a_model_takes_the_default_one(make_llm: Gate) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    world = await make_llm()
    assert (await world.admin.post("/api/v1/llm/chat", json=body)).status_code == 400
    chosen = await make_llm(SERVICE_LLM_DEFAULT_MODEL="anthropic/sea-small")
    answer = await chosen.admin.post("/api/v1/llm/chat", json=body)
    assert answer.json()["data"]["model"] == "anthropic/sea-small"


@requirement("llm.models")
async def test_models_of_all_providers_are_listed_with_limits_and_prices_where_known(make_llm: Gate) -> None:
    async with serving(models=["gpt-4o-mini", "my-own"]) as known:
        world = await make_llm(OPENAI_BASE_URL=known.v1)
        answer = await world.clients["READER"].get("/api/v1/llm/models")
    found = {model["id"]: model for model in answer.json()["data"]}
    assert {"openai/gpt-4o-mini", "openai/my-own", "anthropic/sea-large"} <= set(found)
    priced = found["openai/gpt-4o-mini"]
    assert priced["provider"] == "openai"
    assert 0 < priced["inputCost"] < priced["outputCost"]
    assert priced["contextWindow"] >= 100_000
    assert found["openai/my-own"] == {"id": "openai/my-own", "provider": "openai"}


@requirement("llm.config")
async def test_config_tells_the_set_up_and_asks_the_providers(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(
        OLLAMA_HOST="127.0.0.1:1",
        SERVICE_LLM_DEFAULT_PROVIDER="openai",
        SERVICE_LLM_DEFAULT_MODEL="openai/sea-large",
        SERVICE_LLM_TIMEOUT_SECONDS="30",
        SERVICE_LLM_FALLBACKS="*=anthropic/sea-small",
    )
    answer = await world.clients["READER"].get("/api/v1/llm/config")
    data = answer.json()["data"]
    assert (data["defaultProvider"], data["defaultModel"], data["localBaseline"]) == (
        "openai",
        "openai/sea-large",
        False,
    )
    assert data["timeouts"]["total_seconds"] == 30
    assert data["fallbacks"] == {"*": ["anthropic/sea-small"]}
    states = {provider["name"]: provider for provider in data["providers"]}
    assert (states["openai"]["reachable"], states["openai"]["models"]) == (True, 2)
    assert states["ollama"]["reachable"] is False
    assert KEY not in answer.text
    before = len(upstream.calls)
    await world.clients["READER"].get("/api/v1/llm/config")
    assert len(upstream.calls) == before + 2  # asked live


@requirement("llm.local-baseline")
async def test_the_local_baseline_is_there_when_the_operator_wants_it_and_says_degraded(make_llm: Gate) -> None:
    without = await make_llm()
    assert (await chat(without, "local/extractive")).status_code == 404
    world = await make_llm(SERVICE_LLM_LOCAL_BASELINE="1")
    data = (await chat(world, "local/extractive")).json()["data"]
    assert (data["content"], data["degraded"]) == ("Why is the sea salty?", True)
    body = {"messages": [{"role": "user", "content": "Salt."}], "model": "local/extractive"}
    streamed = await world.admin.post("/api/v1/llm/stream", json=body)
    assert '"degraded":true' in streamed.text
    refused = await world.admin.post("/api/v1/llm/embed", json={"text": "x", "model": "local/embedding"})
    assert refused.status_code == 400  # no model on this machine
    await register(world, 409, provider="local", apiKey="x")


@requirement("llm.local-baseline", "llm.models")
async def test_the_local_baseline_lists_what_it_can_do_on_this_machine_and_has_nothing_else(
    make_llm: Gate, tmp_path: Path
) -> None:
    for model, names in (("none", {"local/extractive"}), (str(tmp_path), {"local/extractive", "local/embedding"})):
        world = await make_llm(SERVICE_LLM_LOCAL_BASELINE="1", SERVICE_EMBEDDING_MODEL=model)
        found = (await world.admin.get("/api/v1/llm/models")).json()["data"]
        assert {one["id"] for one in found if one["provider"] == "local"} == names
    missing = await chat(world, "local/nope")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "MODEL_NOT_FOUND")
    body = {"text": "x", "model": "local/nope"}
    assert (await world.admin.post("/api/v1/llm/embed", json=body)).status_code == 404
    alone = await make_llm(SERVICE_LLM_LOCAL_BASELINE="1", SERVICE_LLM_DEFAULT_PROVIDER="local")
    assert (await chat(alone, "nope")).status_code == 404
    assert (await chat(alone, "extractive")).json()["data"]["model"] == "local/extractive"


async def test_registering_at_the_same_time_keeps_every_provider(open_world: World, upstream: Upstream) -> None:
    work = [register(open_world, provider=f"acme-{n}", apiKey=f"key-{n}", baseUrl=upstream.v1) for n in range(8)]
    await asyncio.gather(*work)
    assert len(await listed(open_world)) == 10


async def test_a_provider_that_answers_without_a_list_of_models_is_reachable(world: World, upstream: Upstream) -> None:
    upstream.list_mood = status(404)
    found = await listed(world)
    assert found["openai"]["reachable"] is True
    assert (await chat(world)).status_code == 200


async def test_a_master_key_that_others_can_read_is_not_used(
    open_world: World, upstream: Upstream, tmp_path: Path
) -> None:
    path = tmp_path / "keys" / "providers.key"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text("00" * 32)
    path.chmod(0o644)
    error = await register(open_world, 503, provider="acme", apiKey=OTHER_KEY, baseUrl=upstream.v1)
    assert "chmod 600" in error["message"]
    path.chmod(0o600)
    path.write_text("not a key")
    assert (
        "master key" in (await register(open_world, 503, provider="acme", apiKey="x", baseUrl=upstream.v1))["message"]
    )


@requirement("llm.finds-ollama")
async def test_an_ollama_on_this_machine_is_found_by_itself(
    make_llm: Gate, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.domains.llm.providers.registry.LOCAL_OLLAMA_URL", upstream.v1)
    world = await make_llm(SERVICE_LLM_FIND_OLLAMA="1")
    assert (await chat(world, "ollama/sea-large")).json()["data"]["content"] == ANSWER
    assert "authorization" not in upstream.asked[-1]["headers"]
    await register(world, provider="ollama", options={"default_model": "sea-small"})
    assert (await chat(world, "ollama/sea-large")).status_code == 200


class LocalOllama:
    """Stands for the transport: lists its models once the test lets it go, or fails."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.asked = 0
        self.go = asyncio.Event()

    async def list_models(self, provider: Provider) -> list[str]:
        self.asked += 1
        await self.go.wait()
        if self.fault is not None:
            raise self.fault
        return ["sea-large"]


@pytest.fixture
def local_ollama() -> LocalOllama:
    return LocalOllama()


@pytest.fixture
def finder(open_world: World, local_ollama: LocalOllama) -> ProviderRegistry:
    infra, sealer = open_world.kernel.infra, open_world.kernel.llm.gateway.provider_registry._sealer
    transport: Any = local_ollama
    return ProviderRegistry(infra.db, infra.runlog, sealer, {}, transport, lambda url: None, find_ollama=True)


@requirement("llm.finds-ollama")
async def test_all_that_ask_while_it_is_first_looked_for_wait_for_what_is_found(
    finder: ProviderRegistry, local_ollama: LocalOllama
) -> None:
    cancelled, *others = [asyncio.ensure_future(finder.providers_of("default")) for _ in range(3)]
    await soon(lambda: local_ollama.asked)
    cancelled.cancel()
    local_ollama.go.set()
    assert [set(found) for found in await asyncio.gather(*others)] == [{"ollama"}] * 2
    assert local_ollama.asked == 2  # once more for the one that was cancelled


@requirement("llm.finds-ollama")
async def test_one_that_is_looked_for_again_stays_until_it_is_gone(
    finder: ProviderRegistry, local_ollama: LocalOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_ollama.go.set()
    assert set(await finder.providers_of("default")) == {"ollama"}
    monkeypatch.setattr("stentor.domains.llm.providers.registry.OLLAMA_PROBE_SECONDS", 0)
    local_ollama.go.clear()
    looking = asyncio.ensure_future(finder.providers_of("default"))
    await soon(lambda: local_ollama.asked == 2)
    assert set(await finder.providers_of("default")) == {"ollama"}
    local_ollama.fault = ProviderTimeout("It is busy.")
    local_ollama.go.set()
    assert set(await looking) == {"ollama"}
    local_ollama.fault = ProviderUnreachable("It is gone.")
    assert set(await finder.providers_of("default")) == set()


class SlowReads:
    """Stands for the database: what it has read it gives back once the test lets it go."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.write = db.write
        self.asked = 0
        self.has_read = asyncio.Event()
        self.go = asyncio.Event()

    async def read(self, fn: Any) -> Any:
        self.asked += 1
        result = await self._db.read(fn)
        self.has_read.set()
        await self.go.wait()
        return result


@pytest.fixture
def slow_reads(open_world: World) -> SlowReads:
    return SlowReads(open_world.kernel.infra.db)


@pytest.fixture
def slow_registry(open_world: World, slow_reads: SlowReads) -> ProviderRegistry:
    db: Any = slow_reads
    transport: Any = None
    sealer = open_world.kernel.llm.gateway.provider_registry._sealer
    return ProviderRegistry(db, open_world.kernel.infra.runlog, sealer, {}, transport, lambda url: None)


@requirement("llm.provider-registration")
async def test_calls_that_need_the_providers_at_once_read_them_once(
    slow_registry: ProviderRegistry, slow_reads: SlowReads
) -> None:
    cancelled, *others = [asyncio.ensure_future(slow_registry.providers_of("default")) for _ in range(8)]
    await slow_reads.has_read.wait()
    cancelled.cancel()
    slow_reads.go.set()
    assert await asyncio.gather(*others) == [{}] * 7
    assert slow_reads.asked == 1


@requirement("llm.provider-registration")
async def test_providers_read_before_a_registration_are_not_kept_after_it(
    slow_registry: ProviderRegistry, slow_reads: SlowReads
) -> None:
    early = asyncio.ensure_future(slow_registry.providers_of("default"))
    await slow_reads.has_read.wait()
    await slow_registry.register("default", ProviderDraft("acme", base_url="http://127.0.0.1:9/v1"), "admin")
    slow_reads.go.set()
    assert await early == {}
    assert set(await slow_registry.providers_of("default")) == {"acme"}


@pytest.fixture
async def catalog(local_ollama: LocalOllama) -> AsyncIterator[ModelCatalog]:
    transport: Any = local_ollama
    catalog = ModelCatalog(transport)
    yield catalog
    await catalog.close()


LISTED = Provider("acme", "openai", "http://127.0.0.1:9/v1")


@requirement("llm.model-names")
async def test_all_that_need_a_list_of_models_wait_for_one_request(
    catalog: ModelCatalog, local_ollama: LocalOllama
) -> None:
    cancelled, *others = [asyncio.ensure_future(catalog.listings([LISTED])) for _ in range(3)]
    await soon(lambda: local_ollama.asked)
    cancelled.cancel()
    local_ollama.go.set()
    assert [found.models for (found,) in await asyncio.gather(*others)] == [("sea-large",)] * 2
    assert local_ollama.asked == 1


@requirement("llm.model-names")
async def test_a_provider_that_hangs_delays_nobody_who_knows_its_last_list(
    catalog: ModelCatalog, local_ollama: LocalOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LISTING_CACHE_SECONDS", -1), ("FAILED_LISTING_CACHE_SECONDS", -1), ("REFRESH_SECONDS", 0)):
        monkeypatch.setattr(f"stentor.domains.llm.providers.registry.{name}", seconds)
    local_ollama.fault = ProviderTimeout("It hangs.")
    local_ollama.go.set()
    before = await catalog.listings([LISTED])
    local_ollama.go.clear()
    asked = [asyncio.ensure_future(catalog.listings([LISTED])) for _ in range(3)]
    await soon(lambda: all(one.done() for one in asked))
    assert [one.result() for one in asked] == [before] * 3
    assert local_ollama.asked == 2
    live = asyncio.ensure_future(catalog.listings([LISTED], live=True))
    local_ollama.fault = None
    local_ollama.go.set()
    assert [found.models for found in await live] == [("sea-large",)]
