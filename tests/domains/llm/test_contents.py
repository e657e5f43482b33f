"""Kept prompts and answers: where they are, what is redacted, who reads them, and how they are deleted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import zlib
from typing import Any

import pytest

from stentor.core.db import Sql, Tx
from stentor.core.errors import StartRefused
from stentor.core.runlog import EventDraft
from stentor.core.security.content_redaction import ContentRedactor
from stentor.core.security.pattern_process import PatternProcess
from stentor.core.security.redaction import Redactor
from stentor.domains.llm.contents import service
from stentor.domains.llm.contents.model import MAX_TEXT_CHARS, Content, decompress
from stentor.domains.llm.contents.service import NOT_REDACTED, ContentKeeper
from stentor.domains.provenance.audit.verification import verify_run_log
from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import KEY, Gate, asking, chat
from tests.domains.llm.upstream import ANSWER, Upstream
from tests.patience import soon
from tests.requirements import requirement

# Put together here, so that no scanner takes this file for a leak.
API_KEY = "sk-" + "proj-Zq7x9Kd0mWn3Lp5Rt8Vb"
AWS_KEY = "AKIA" + "Z7Q4XK2MN8PLR5TV"
BEARER = "ya7c9Kd0mWn3Lp5Rt8VbQq"
TOKEN = "eyJ" + "hbGciOiJFZERTQSJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJl"
KEY_BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"
PRIVATE_KEY = f"-----BEGIN {'PRIVATE'} KEY-----\n{KEY_BODY}\n{KEY_BODY}\n-----END {'PRIVATE'} KEY-----"
PASSWORD = "hunter2-canary"
KNOWN = 'quoted"known\\canary-77'
EMAIL, CARD, CUSTOMER = "canary.person@example.org", "4111 1111 1111 1111", "KD-123456"
CANARIES = (API_KEY, AWS_KEY, BEARER, TOKEN, KEY_BODY, PASSWORD, KNOWN, json.dumps(KNOWN)[1:-1], EMAIL, CARD, CUSTOMER)
ALL = (
    f"use {API_KEY} and {AWS_KEY}, Authorization: Bearer {BEARER}, jwt {TOKEN},\n{PRIVATE_KEY}\n"
    f"postgres://app:{PASSWORD}@db/x, {KNOWN}, mail {EMAIL}, card {CARD}, customer {CUSTOMER}."
)
REDACTING = {
    "SERVICE_LLM_LOG_CONTENT": "1",
    "SERVICE_LLM_REDACT": "emails,cards",
    "SERVICE_LLM_REDACT_PATTERNS": r"customer=KD-\d{6,}",
}
EVENTS = Sql("select metadata from events where event_type = 'llm_called' order by event_id")
CONTENTS = Sql("select count(*) from llm_contents")
LIST_TABLES = {
    "sqlite": Sql("select name from sqlite_master where type = 'table' order by 1"),
    "postgresql": Sql("select table_name from information_schema.tables where table_schema = 'public' order by 1"),
}


async def newest(world: World, caller: str = "ADMIN") -> dict[str, Any]:
    """The newest call in full."""
    calls = (await world.admin.get("/api/v1/llm/calls?limit=1")).json()["calls"]
    response = await world.clients[caller].get(f"/api/v1/llm/calls/{calls[0]['call_id']}")
    assert response.status_code == 200, response.text
    return dict(response.json())


async def count(world: World) -> int:
    return int((await world.kernel.infra.db.read(lambda tx: tx.rows(CONTENTS)))[0][0])


async def dump(world: World) -> str:
    """Every value of every row of the database, contents decompressed."""
    db = world.kernel.infra.db

    def read(tx: Tx) -> list[Any]:
        tables = [str(row[0]) for row in tx.rows(LIST_TABLES[db.driver.name])]
        return [value for table in tables for row in tx.rows(Sql(f"select * from {table}")) for value in row]

    return "\n".join(map(_text, await db.read(read)))


def _text(value: Any) -> str:
    if not isinstance(value, bytes | memoryview):
        return str(value)
    try:
        return zlib.decompress(bytes(value)).decode("utf-8", "replace")
    except zlib.error:
        return bytes(value).decode("utf-8", "replace")


def canaries_in(text: str) -> list[str]:
    return [canary for canary in CANARIES if canary in text]


@requirement("llm.content-beside-the-log")
async def test_the_event_of_a_call_is_the_same_whether_content_is_kept_or_not(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    await chat(world)
    event = json.loads((await world.kernel.infra.db.read(lambda tx: tx.rows(EVENTS)))[0][0])
    assert {"request", "response"}.isdisjoint(event)
    call = await newest(world)
    assert call["content"] == "kept"
    assert ANSWER in call["response"]
    for side in ("request", "response"):
        assert hashlib.sha256(call[side].encode()).hexdigest() == event[f"{side}_sha256"]
    assert (call["redacted"], call["truncated"]) == (False, False)


@requirement("llm.content-beside-the-log")
async def test_the_run_log_verifies_after_the_content_is_deleted(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    await chat(world)
    call = await newest(world)
    assert (await world.admin.delete(f"/api/v1/llm/calls/{call['call_id']}/content")).json() == {"deleted": 1}
    after = await newest(world)
    assert (after["content"], after["request"], after["response"]) == ("none", None, None)
    assert after["request_sha256"] == hashlib.sha256(call["request"].encode()).hexdigest()
    assert ANSWER not in await dump(world)
    assert (await world.admin.post("/api/v1/provenance/checkpoint")).json()["size"] >= 2
    driver = world.kernel.infra.db.driver
    report = await asyncio.to_thread(verify_run_log, driver, [])
    assert not report.findings


@requirement("llm.content-beside-the-log", "llm.record-fails-closed")
async def test_content_is_stored_with_the_record_or_not_at_all(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    world.runlog.broken = True
    assert (await chat(world)).status_code == 503
    world.runlog.broken = False
    assert await count(world) == 0


@requirement("llm.content-beside-the-log")
async def test_content_that_is_not_kept_leaves_no_row(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="0")
    await chat(world)
    assert await count(world) == 0
    assert (await newest(world))["content"] == "none"


@requirement("llm.content-beside-the-log")
async def test_content_that_an_earlier_version_left_in_the_run_log_is_shown(make_llm: Gate) -> None:
    world = await make_llm()
    await chat(world)
    call = await newest(world)
    legacy = {"call_id": call["call_id"], "request": '{"messages": []}', "response": "old answer"}

    def replace(tx: Tx) -> None:
        for table in ("events", "events_waiting"):
            tx.run(Sql(f"delete from {table} where event_id = :id"), id=call["call_id"])
        draft = EventDraft("llm_called", "llm", "old", legacy, event_id=call["call_id"])
        world.runlog.append(tx, "default", [draft])

    await world.kernel.infra.db.write(replace)
    shown = await newest(world)
    assert (shown["content"], shown["response"], shown["content_expires_at"]) == ("in_run_log", "old answer", None)


@requirement("llm.content-redacted")
@pytest.mark.parametrize("model", ["openai/sea-large", "anthropic/sea-small"])
@pytest.mark.parametrize("path", ["/api/v1/llm/chat", "/api/v1/llm/stream"])
async def test_no_secret_reaches_database_or_responses(
    make_llm: Gate, upstream: Upstream, caplog: pytest.LogCaptureFixture, model: str, path: str
) -> None:
    world = await make_llm(**REDACTING)
    world.kernel.infra.redactor.add_secret(KNOWN)
    # Every third character is a chunk of its own, so each secret is split many times.
    upstream.words = [ALL[start : start + 3] for start in range(0, len(ALL), 3)]
    upstream.reasoning = f"I think of {API_KEY} for {EMAIL}"
    upstream.tool = {"name": "pay", "args": {"card": CARD, "deep": [{"note": ALL}], API_KEY: 4111111111111111}}
    upstream.talking = True
    body = asking(model, messages=[{"role": "system", "content": ALL}, {"role": "user", "content": ALL}])
    response = await world.admin.post(path, json=body)
    assert response.status_code == 200, response.text
    # The caller and the provider still get everything.
    assert API_KEY in json.dumps(upstream.asked[-1]["body"])
    call = await newest(world)
    assert call["redacted"] is True
    assert "[redacted: api key]" in call["request"]
    assert "[redacted: customer]" in call["response"]
    assert '"pay"' in call["response"]
    everything = "\n".join([await dump(world), json.dumps(call), caplog.text])
    assert canaries_in(everything) == []
    assert "4111111111111111" not in everything


@requirement("llm.content-redacted")
async def test_what_a_failed_or_interrupted_call_leaves_is_redacted_too(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(**REDACTING)
    upstream.mood = moods.status(500, {"error": {"message": f"bad key {API_KEY}"}})
    await chat(world, messages=[{"role": "user", "content": ALL.replace(KNOWN, "")}])
    call = await newest(world)
    assert call["content"] == "kept"
    assert call["response"] == "The provider openai returned 500: bad [redacted]"
    upstream.mood = moods.hanging_up
    await world.admin.post("/api/v1/llm/stream", json=asking(messages=[{"role": "user", "content": API_KEY}]))
    assert canaries_in(await dump(world)) == []


@requirement("llm.content-redacted")
async def test_an_image_is_kept_as_its_type_size_and_hash(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    image = bytes(range(256)) * 40
    data = base64.b64encode(image).decode()
    content = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    ]
    for model in ("openai/sea-large", "anthropic/sea-small"):
        body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 9}
        response = await world.admin.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        call = await newest(world)
        assert data[:40] not in await dump(world)
        assert f"[image/png, {len(image)} bytes, SHA-256 {hashlib.sha256(image).hexdigest()}]" in call["request"]
        assert "What is it?" in call["request"]


async def redacted(value: Any, *entries: str) -> Any:
    """What is stored of a JSON value."""
    patterns = PatternProcess(entries) if entries else None
    keeper = ContentKeeper(ContentRedactor(Redactor(), ("emails", "cards")), patterns)
    content = await keeper.redact(json.dumps(value).encode(), b"")
    await keeper.close()
    assert content.request is not None
    return json.loads(decompress(content.request.data))


@requirement("llm.content-redacted")
@pytest.mark.parametrize("at", [*range(-60, 60, 7), 15_000])
async def test_a_long_text_is_cut_and_no_half_of_a_secret_is_left(at: int) -> None:
    text = "x " * ((MAX_TEXT_CHARS + at) // 2) + API_KEY + " y" * 40_000
    stored = await redacted({"prompt": text, "after": API_KEY})
    assert len(stored["prompt"]) <= MAX_TEXT_CHARS
    assert "sk-" not in json.dumps(stored)
    assert stored["after"] == "[redacted: api key]"


@requirement("llm.content-redacted")
async def test_many_secrets_before_the_cut_do_not_move_half_of_another_into_it() -> None:
    secret = PRIVATE_KEY.replace("\n", "\n" * 40)
    text = (secret + "\n") * 2_000
    stored = await redacted({"prompt": text})
    assert KEY_BODY[:8] not in json.dumps(stored)


@requirement("llm.content-redacted")
async def test_a_secret_that_json_in_a_text_escapes_is_found() -> None:
    hidden = json.dumps({"token": API_KEY, "key": PRIVATE_KEY}).replace("sk", "\\u0073\\u006b").replace("/", "\\/")
    stored = json.dumps(await redacted({"arguments": hidden}))
    assert API_KEY[3:] not in stored
    assert KEY_BODY not in stored


@requirement("llm.content-redacted")
@pytest.mark.parametrize(("password", "shown"), [("", ""), (":", ":"), (":x-oauth-basic", ":[redacted: password]")])
async def test_a_token_in_place_of_a_urls_user_is_redacted(password: str, shown: str) -> None:
    stored = await redacted({"prompt": f"git clone https://{BEARER}{password}@git.example.com/a.git"})
    assert stored == {"prompt": f"git clone https://[redacted: token]{shown}@git.example.com/a.git"}


@requirement("llm.content-redacted")
@pytest.mark.parametrize(
    "url",
    [
        "https://host/back#access_token=",
        "https://host/?next=%2Fa%3Faccess_token%3D",
        "https://host/?next=%252Fa%253Faccess_token%253d",
        "https://host/?token[]=",
        "https://host/back?state=a&amp;code=",
    ],
)
async def test_a_token_in_a_url_is_redacted(url: str) -> None:
    assert await redacted({"prompt": url + BEARER}) == {"prompt": url + "[redacted: secret]"}


@requirement("llm.content-redacted")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (BEARER, ""),
        (f'Digest username="ann", uri="/a b", response="{BEARER}", nc=1, opaque={BEARER}', "Digest "),
        (f"AWS4-HMAC-SHA256 Credential=A/b,SignedHeaders=host, Signature={BEARER}", ""),
    ],
)
async def test_credentials_of_any_scheme_are_redacted(value: str, shown: str) -> None:
    prompt = f"send\nAuthorization: {value}\nHost: example.com"
    stored = await redacted({"prompt": prompt})
    shown = f"send\nAuthorization: {shown}[redacted: credentials]"
    assert stored["prompt"].startswith(shown)
    assert stored["prompt"].endswith("Host: example.com")
    assert BEARER not in Redactor().redact(prompt)


@requirement("llm.content-redacted")
async def test_all_cookies_of_a_header_are_redacted() -> None:
    stored = await redacted(
        {"prompt": f"curl -H 'Cookie: page=2; session={BEARER}' x\nSet-Cookie: id={BEARER}; Secure"}
    )
    assert stored == {"prompt": "curl -H 'Cookie: [redacted: cookie]' x\nSet-Cookie: [redacted: cookie]"}


@requirement("llm.content-redacted")
async def test_ordinary_text_stays_as_it_is() -> None:
    text = (
        "The bearer of this letter, a task-based sk-learn pipeline and 1234567890123456 grains. "
        "http://user@example.com:8080/a ratio 3:4, password reset, the api key is missing, eyJust a word. "
        "See https://agents-of-2026.example.com?of=@ann. Authorization: required, authorization=none. "
        "https://example.com/?status_code=200404&code=404&sort_key=created_at"
    ).replace("user@example.com", "example.com")
    assert await redacted({"prompt": text}) == {"prompt": text}


@requirement("llm.content-redacted")
async def test_a_pattern_that_never_ends_neither_stops_the_service_nor_stores_the_text() -> None:
    patterns = PatternProcess([r"evil=(a+)+$"], timeout_seconds=0.5)
    keeper = ContentKeeper(ContentRedactor(Redactor()), patterns)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    content = await keeper.redact(json.dumps({"prompt": "a" * 60 + "!"}).encode(), b"")
    assert ticks > 0
    assert content.request is not None
    assert json.loads(decompress(content.request.data)) == NOT_REDACTED
    # The next text is redacted again, by a new process.
    patterns.timeout_seconds = 60
    content = await keeper.redact(b'{"prompt": "aaa"}', b"")
    assert content.request is not None
    assert json.loads(decompress(content.request.data)) == {"prompt": "[redacted: evil]"}
    ticking.cancel()
    await keeper.close()


@requirement("llm.content-redacted")
@pytest.mark.parametrize("text", ["sk-" * 90_000, "eyJ" * 90_000, "a." * 130_000 + "@", "4 " * 130_000, "://" * 90_000])
async def test_no_text_makes_the_own_patterns_slow(text: str) -> None:
    # Quadratic patterns would take hours.
    await redacted({"prompt": text[:MAX_TEXT_CHARS]})
    await redacted({"prompt": "-----BEGIN PRIVATE KEY-----!" * 3_000})


@requirement("llm.content-redacted")
@pytest.mark.parametrize("entry", ["no-equals", "=x", "name=", "name=(", "name=a*"])
async def test_a_pattern_that_cannot_be_used_stops_the_start(make_llm: Gate, entry: str) -> None:
    with pytest.raises(StartRefused, match="SERVICE_LLM_REDACT_PATTERNS"):
        await make_llm(SERVICE_LLM_REDACT_PATTERNS=entry)


async def test_a_body_that_is_no_json_is_kept_as_text() -> None:
    content = Content(b"\xff plain {")
    assert decompress(content.finish(content.texts).data) == "\ufffd plain {"


@requirement("llm.content-readers")
async def test_a_key_reads_the_content_of_its_own_calls_and_of_nobody_elses(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    assert (await world.clients["WRITER"].post("/api/v1/llm/chat", json=asking())).status_code == 200
    assert (await newest(world, "WRITER"))["content"] == "kept"
    call = await newest(world)
    for other in ("BOB", "READER", "OTHER"):
        response = await world.clients[other].get(f"/api/v1/llm/calls/{call['call_id']}")
        assert response.status_code == 404, other


@requirement("llm.content-readers")
async def test_the_prompt_of_a_model_agent_is_not_shown_to_who_submitted_the_task(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    options = {"model": "openai/sea-large", "system_prompt": "The secret recipe of the agent."}
    await world.register("chef", capabilities=["cook"], runtime={"kind": "llm", "options": options})
    body = {"type": "cook", "input": "Soup?", "required_capabilities": ["cook"]}
    task = (await world.clients["WRITER"].post("/api/v1/tasks", json=body)).json()
    assert (await world.ended(task["task_id"]))["status"] == "completed"
    call = await newest(world, "WRITER")
    assert (call["key"], call["content"], call["request"]) == ("writer", "hidden", None)
    assert "secret recipe" in (await newest(world))["request"]


@requirement("llm.content-readers")
async def test_a_worker_reads_what_it_asked_for_its_own_agent(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    agent_id = await world.register("ann", key_name="BOB")
    task_id = await world.submit()
    await world.claim(agent_id)
    response = await world.clients["BOB"].post("/api/v1/llm/chat", json=asking(), headers={"X-Task-Id": task_id})
    assert response.status_code == 200, response.text
    assert (await newest(world, "BOB"))["content"] == "kept"


@requirement("llm.content-deletion")
async def test_content_is_deleted_after_its_days_and_the_record_stays(
    make_llm: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BATCH", 2)
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1", SERVICE_LLM_CONTENT_DAYS="7")
    for _ in range(5):
        await chat(world)
    expires = (await newest(world))["content_expires_at"]
    world.clock.advance(days=6)
    await world.kernel.llm.contents.delete_expired()
    assert await count(world) == 5
    await chat(world)
    world.clock.advance(days=1, seconds=1)
    assert expires < "2" + "9"
    await world.kernel.llm.contents.delete_expired()
    assert await count(world) == 1
    assert len((await world.admin.get("/api/v1/llm/calls")).json()["calls"]) == 6


@requirement("llm.content-deletion")
async def test_content_is_kept_for_good_with_no_days(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1", SERVICE_LLM_CONTENT_DAYS="0")
    await chat(world)
    assert (await newest(world))["content_expires_at"] is None


@requirement("llm.content-deletion")
async def test_an_admin_deletes_the_content_of_a_key_or_before_a_time(
    make_llm: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BATCH", 2)
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    for _ in range(3):
        await chat(world)
        await world.clients["WRITER"].post("/api/v1/llm/chat", json=asking())
        world.clock.advance(seconds=60)
    assert (await world.admin.delete("/api/v1/llm/contents")).status_code == 400
    for other in ("WRITER", "BOB"):
        assert (await world.clients[other].delete("/api/v1/llm/contents?key=writer")).status_code == 403
    assert (await world.clients["OTHER"].delete("/api/v1/llm/contents?key=writer")).status_code in (200, 403)
    earliest = {"before": "1970-01-01T00:00:00Z"}
    assert (await world.admin.delete("/api/v1/llm/contents", params=earliest)).json() == {"deleted": 0}
    assert await count(world) == 6
    assert (await world.admin.delete("/api/v1/llm/contents?key=writer")).json() == {"deleted": 3}
    oldest = (await world.admin.get("/api/v1/llm/calls")).json()["calls"][2]["happened_at"]
    assert (await world.admin.delete("/api/v1/llm/contents", params={"before": oldest})).json() == {"deleted": 1}
    assert await count(world) == 2
    rows = await world.kernel.infra.db.read(
        lambda tx: tx.rows(Sql("select metadata from events where event_type = 'content_deleted' order by event_id"))
    )
    deletions = [json.loads(row[0]) for row in rows]
    assert [(one["by"], one["of_key"], one["deleted"]) for one in deletions] == [
        ("admin", "writer", 2),
        ("admin", "writer", 1),
        ("admin", None, 1),
    ]


@requirement("llm.content-deletion")
async def test_deleting_what_is_not_there_is_told_apart(make_llm: Gate) -> None:
    world = await make_llm()
    await chat(world)
    path = f"/api/v1/llm/calls/{(await newest(world))['call_id']}/content"
    assert (await world.clients["WRITER"].delete(path)).status_code == 403
    assert (await world.clients["OTHER"].delete(path)).status_code in (403, 404)
    assert (await world.admin.delete(path)).json() == {"deleted": 0}
    assert (await world.admin.delete("/api/v1/llm/calls/nothing/content")).status_code == 404


@requirement("llm.content-beside-the-log")
async def test_a_caller_who_hangs_up_while_content_is_redacted_leaves_a_record(
    make_llm: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1")
    reached, go = asyncio.Event(), asyncio.Event()
    redact = ContentKeeper.redact

    async def held(self: ContentKeeper, request: bytes, response: bytes) -> Any:
        reached.set()
        await go.wait()
        return await redact(self, request, response)

    monkeypatch.setattr(ContentKeeper, "redact", held)
    asked = asyncio.create_task(chat(world))
    await reached.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    go.set()
    await soon(lambda: _is_recorded(world))
    assert KEY not in await dump(world)


async def _is_recorded(world: World) -> bool:
    return await count(world) == 1
