"""The run log, the live hub, redaction and the error tree."""

from __future__ import annotations

import asyncio
import logging
import warnings

import pytest

from stentor.core.db import Database, Sql, Tx
from stentor.core.errors import CorruptRecord, ProviderFault, all_errors
from stentor.core.fanout.live import MAX_QUEUED, MAX_TOKEN_CHARACTERS, MAX_TOKENS, Hub
from stentor.core.runlog import EventDraft, RunLog, read_task_events
from stentor.core.security.redaction import MASK, RedactingFormatter, Redactor, configure_logging
from tests.requirements import requirement

DRAFTS = [EventDraft("tool_called", "test", f"number {i}", {"i": i, "text": "\u0000é"}) for i in range(9)]


@requirement("activity.root-and-parents", "activity.limit-keeps-oldest")
async def test_events_are_a_chain_under_their_parent_oldest_first(db: Database) -> None:
    runlog = RunLog(Hub())
    last = await db.write(lambda tx: runlog.append(tx, "default", DRAFTS, task_id="t", parent="root"))
    events = await db.read(lambda tx: read_task_events(tx, "default", "t", 500))
    assert [event.message for event in events] == [f"number {i}" for i in range(9)]
    assert [event.parent_id for event in events] == ["root", *(event.event_id for event in events[:-1])]
    assert (last, events[3].metadata) == (events[-1].event_id, {"i": 3, "text": "\u0000é"})
    after = await db.read(lambda tx: read_task_events(tx, "default", "t", 2, events[4].event_id))
    assert after == events[5:7]


@requirement("activity.exact-id-match")
async def test_only_exactly_this_tenant_and_task_is_read(db: Database) -> None:
    runlog = RunLog(Hub())
    for tenant, task_id in [("default", "t"), ("default", "T"), ("default", "tt"), ("other", "t")]:
        draft = [EventDraft("tool_called", "test", f"{tenant} {task_id}")]
        await db.write(lambda tx, d=draft, n=tenant, i=task_id: runlog.append(tx, n, d, task_id=i))
    events = await db.read(lambda tx: read_task_events(tx, "default", "t", 500))
    assert [event.message for event in events] == ["default t"]


@requirement("activity.log-is-fail-closed")
async def test_an_event_is_announced_only_once_it_is_durable(db: Database) -> None:
    hub = Hub()
    runlog = RunLog(hub)
    with hub.watch("default", "t") as watcher:

        def work(tx: Tx, fail: bool) -> None:
            runlog.append(tx, "default", [EventDraft("tool_called", "test", "x")], task_id="t")
            if fail:
                raise ValueError

        with pytest.raises(ValueError):
            await db.write(lambda tx: work(tx, True))
        assert watcher.is_empty
        await db.write(lambda tx: work(tx, False))
        assert (await watcher.get()).message == "x"


@requirement("activity.unreadable-500")
async def test_a_malformed_event_is_a_corrupt_record(db: Database) -> None:
    runlog = RunLog(Hub())
    await db.write(lambda tx: runlog.append(tx, "default", DRAFTS[:1], task_id="t"))
    await db.write(lambda tx: tx.run(Sql("update events set metadata = '{'")))
    with pytest.raises(CorruptRecord):
        await db.read(lambda tx: read_task_events(tx, "default", "t", 500))


async def test_a_watcher_gets_what_is_published_while_it_watches_and_is_cut_when_it_lags() -> None:
    hub = Hub()
    hub.publish("a", "t", ["early"])
    with hub.watch("a", "t") as watcher, hub.watch("a", "t") as slow:
        hub.publish("a", "t", [1, 2])
        hub.publish("b", "t", ["foreign"])
        assert [await watcher.get(), await watcher.get(), watcher.is_empty] == [1, 2, True]
        hub.publish("a", "t", list(range(MAX_QUEUED)))
        assert (watcher.has_overflowed, slow.has_overflowed) == (False, True)
    hub.publish("a", "t", ["late"])
    assert hub._watchers == {}


def test_a_long_text_or_many_at_once_do_not_cut_off_a_watcher() -> None:
    hub = Hub()
    with hub.watch("a", "t") as watcher:
        hub.append_token("a", "t", "first", "x" * 1_300_000)
        for _ in range(1_000):
            hub.append_token("a", "t", "first", "y" * 1_500)
        assert not watcher.has_overflowed


def test_tokens_are_numbered_per_attempt_bounded_and_forgotten() -> None:
    hub = Hub()
    for i in range(MAX_TOKENS + 5):
        hub.append_token("a", "t", "first", str(i))
    kept = hub.tokens("a", "t")
    assert (len(kept), kept[0].n, kept[-1].n) == (MAX_TOKENS, 6, MAX_TOKENS + 5)
    hub.append_token("a", "t", "second", "x")
    assert [(token.attempt, token.n) for token in hub.tokens("a", "t")] == [("second", 1)]
    for _ in range(3):
        hub.append_token("a", "t", "second", "y" * (MAX_TOKEN_CHARACTERS // 2))
    assert "".join(token.text for token in hub.tokens("a", "t")) == "y" * MAX_TOKEN_CHARACTERS
    hub.drop_tokens("a", "t")
    assert hub.tokens("a", "t") == []


@pytest.mark.parametrize(
    "text",
    [
        "key s3cret-value used",
        "Authorization: Bearer abcdef123",
        "X-API-Key: abcdef123",
        '{"api_key": "abcdef123"}',
        "postgresql://me:abcdef123@host/db",
        "redis://:abcdef123@host:6379/0",
        "a URL that was cut off: postgresql://me:abcdef123",
        "http://host:1/,http://me:abcdef123@host",
        "clone https://abcdef123abcdef123@git.example.com/x failed",
        "clone https://abcdef123abcdef123:@git.example.com/x failed",
        "clone https://abcdef123abcdef123:x-oauth-basic@git.example.com/x failed",
        "{'Authorization': 'Basic abcdef123'}",
        "authorization=token abcdef123",
        "http://host:9090/?token=abcdef123",
        "https://host/x?page=2&X-Amz-Signature=abcdef123&y=abcdef123",
        "https://host/back#access_token=abcdef123&token_type=bearer",
        '<a href="https://host/x?a=1&amp;token=abcdef123">',
        r'{"url": "https://host/x?a=1\u0026token=abcdef123"}',
        "https://host/?next=https%3A%2F%2Fhost%2F%3Faccess_token%3Dabcdef123",
        "https://host/?next=%252Fa%253Ftoken%253Dabcdef123",
        "https://host/?token[]=abcdef123",
        "https://host/?token%5B0%5D=abcdef123",
        "https://host/callback?state=a&code=abcdef123",
        "https://host/?pwd=abcdef123&client_assertion=abcdef123",
        "Proxy-Authorization: abcdef123",
        "{'Cookie': 'page=2; session=abcdef123', 'Accept': '*/*'}",
        "Set-Cookie: session=abcdef123; Path=/\nSet-Cookie: other=abcdef123",
        'Cookie: page="2"; session="abcdef123"',
    ],
)
def test_no_secret_reaches_the_log(text: str) -> None:
    redactor = Redactor()
    redactor.add_secret("s3cret-value")
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (text,), None)
    shown = RedactingFormatter(redactor).format(record)
    assert MASK in shown
    assert "abcdef123" not in shown
    assert "s3cret-value" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "FATAL: host=db user=me password=abcdef123",
        '{"client_secret": "abcdef123"}',
        "x-auth-token: abcdef123",
        "git clone failed: ghp_abcdef123abcdef123abcdef",
        "-----BEGIN RSA PRIVATE KEY-----\nabcdef123\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_shapes_of_secrets_in_kept_prompts_are_masked_in_the_log_too(text: str) -> None:
    shown = Redactor().redact(text)
    assert "[redacted" in shown
    assert "abcdef123" not in shown


@pytest.mark.parametrize("password", ["123", "123.4", "12345a", "123456"])
def test_a_password_of_digits_is_no_port(password: str) -> None:
    assert Redactor().redact(f"nats://me:{password}@host:4222/") == f"nats://me:{MASK}@host:4222/"


@pytest.mark.parametrize(
    "url",
    [
        "http://host:9090/v1",
        "ray://:10001",
        "http://[::1]:80/",
        "http://host:80/a@b",
        "ssh://user@host:22/a",
        "https://agents.example.com?to=me@example.com",
        "https://host/tasks?tokens=12&keyword=a&status_code=404",
    ],
)
def test_the_port_of_a_url_stays_in_the_log(url: str) -> None:
    text = f"connection failed url={url}, then {url}."
    assert Redactor().redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "session cookie: expired at 12:00, person=anna path=/api/v1/tasks",
        "Fortune cookie: you will be rich if a=b",
    ],
)
def test_a_sentence_about_a_cookie_stays_in_the_log(text: str) -> None:
    assert Redactor().redact(text) == text


def test_the_mark_of_a_cookie_ends_with_its_text_in_json() -> None:
    assert Redactor().redact('{"Cookie": "a=b1==", "X": "c" }') == f'{{"Cookie": "{MASK}", "X": "c" }}'


def test_codes_are_unique_but_for_specialised_errors() -> None:
    # What a provider does is told by the code of the same fact here: busy, too slow, not there.
    ours = (cls for cls in all_errors() if not issubclass(cls, ProviderFault))
    codes = [cls.code for cls in ours if "code" in vars(cls)]
    assert len(codes) == len(set(codes))


async def test_a_watcher_that_leaves_does_not_disturb_the_others() -> None:
    hub = Hub()
    with hub.watch("a", "t") as stays:
        with hub.watch("a", "t"):
            pass
        hub.publish("a", "t", [1])
        assert await asyncio.wait_for(stays.get(), 60) == 1


def test_warnings_of_python_are_redacted_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    # Whoever configured the log in this process before: pytest has replaced since what it had put in place.
    logging.captureWarnings(False)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            configure_logging("warning", Redactor())
            warnings.warn("postgresql://me:abcdef123@host/db", UserWarning, stacklevel=1)
        finally:
            logging.captureWarnings(False)
            root.setLevel(level)
    printed = capsys.readouterr().err
    assert "WARNING py.warnings: " in printed
    assert "abcdef123" not in printed


@requirement("http.malformed-not-logged")
def test_a_malformed_request_is_no_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, server = logging.getLogger(), logging.getLogger("uvicorn.error")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(server, "level", logging.NOTSET)
    level = root.level
    try:
        configure_logging("debug", Redactor())
        # As uvicorn does for each.
        server.warning("Invalid HTTP request received.")
        server.error("Exception in ASGI application")
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
    printed = capsys.readouterr().err
    assert "Invalid HTTP request" not in printed
    assert "Exception in ASGI application" in printed
