"""E-mails of alerts, taken by a real mail server that speaks TLS, asks for a password, or is down."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope

from stentor.core import settings
from stentor.core.errors import StartRefused
from stentor.core.mail import Mailer, MailError
from stentor.core.settings.alerts import parse_smtp_url
from stentor.domains.alerts.model import Finding
from stentor.domains.alerts.service import AlertService
from stentor.domains.monitoring import service as monitoring
from tests.conftest import MakeWorld, World
from tests.domains.alerts.test_alerts import check
from tests.ports import free_port
from tests.requirements import requirement
from tests.vaultplugin.certificate import self_signed

USER, PASSWORD = "stentor", "correct-horse-7c1e"


@dataclass
class MailServer:
    """`refuses` is the status that it answers instead of taking a message. One that `forgets` takes it all the same.

    `unknown` is a recipient that it refuses.
    """

    port: int = 0
    refuses: str = ""
    forgets: bool = False
    unknown: str = ""
    messages: list[EmailMessage] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)

    async def handle_RCPT(  # noqa: N802 - the name that the library calls
        self, server: object, session: object, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address == self.unknown:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - the name that the library calls
        self, server: object, session: object, envelope: Envelope
    ) -> str:
        if self.refuses:
            return self.refuses
        assert isinstance(envelope.content, bytes)
        message = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        self.messages.append(message)
        self.recipients.append(envelope.rcpt_tos)
        return "451 the connection is lost" if self.forgets else "250 taken"

    @property
    def texts(self) -> list[str]:
        return [str(message.get_content()) for message in self.messages]


@pytest.fixture
def mail_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., MailServer]]:
    """Starts mail servers: with TLS, after STARTTLS, they ask for a password."""
    running: list[Controller] = []
    certificate, key = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    def start(*, tls: bool = False) -> MailServer:
        server = MailServer(free_port())
        given: dict[str, Any] = {}
        if tls:
            given = {"tls_context": context, "authenticator": _authenticate, "auth_required": True}
        controller = Controller(server, hostname="127.0.0.1", port=server.port, **given)
        controller.start()
        running.append(controller)
        return server

    yield start
    for controller in running:
        controller.stop()


def _authenticate(server: object, session: object, envelope: object, mechanism: str, data: Any) -> AuthResult:
    is_right = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=is_right, handled=False)  # not handled: the server itself says no


async def open_world(make_world: MakeWorld, server: MailServer, login: str = "") -> World:
    world: World = await make_world(
        SERVICE_SMTP_URL=f"smtp://{login}127.0.0.1:{server.port}",
        SERVICE_ALERT_EMAILS="ops@example.com, boss@example.com",
        SERVICE_ALERT_EMAIL_FROM="stentor@example.com",
    )
    return world


async def mailing_world(make_world: MakeWorld, server: MailServer, login: str = "") -> World:
    world = await open_world(make_world, server, login)
    await world.register()
    await world.submit()
    return world


@requirement("alerts.email")
async def test_an_alert_is_mailed_once_when_it_opens_and_once_when_it_resolves(
    make_world: MakeWorld, mail_server: Callable[..., MailServer]
) -> None:
    server = mail_server(tls=True)
    world = await mailing_world(make_world, server, f"{USER}:{PASSWORD}@")
    await check(world)
    assert server.messages == []
    await check(world, minutes=6)
    await check(world, minutes=0.25)
    (message,) = server.messages
    assert server.recipients == [["ops@example.com", "boss@example.com"]]
    assert (message["From"], message["Auto-Submitted"]) == ("stentor@example.com", "auto-generated")
    assert message["Subject"].strip().startswith("Stentor, ")  # a long one is folded
    assert "1 task waits in the queue, for 6 minutes." in server.texts[0]
    answer = await world.admin.get("/api/v1/tasks")
    await world.admin.post(f"/api/v1/tasks/{answer.json()['tasks'][0]['task_id']}/cancel")
    await check(world)
    await check(world, minutes=1)
    await check(world, minutes=1)
    assert len(server.messages) == 2
    assert "RESOLVED at" in server.texts[1]


@requirement("alerts.email")
async def test_an_alert_that_was_open_for_days_is_mailed_when_it_resolves(
    make_world: MakeWorld, mail_server: Callable[..., MailServer]
) -> None:
    server = mail_server()
    world = await open_world(make_world, server)
    findings = [Finding("default", "budget", "key:ci", "warning", "The key ci has spent much.")]

    async def find(_: object) -> list[Finding]:
        return findings

    world.kernel.alerts.add_check(find)
    await check(world)
    await check(world, minutes=60 * 24 * 31)
    findings.clear()
    await check(world)
    await check(world, minutes=1)
    opened, resolved = server.texts
    assert "RESOLVED" not in opened
    assert "RESOLVED at" in resolved


@requirement("alerts.email")
async def test_an_email_that_was_not_taken_is_sent_with_the_next_check_and_loses_nothing(
    make_world: MakeWorld, mail_server: Callable[..., MailServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = mail_server()
    server.refuses = "451 the disk is full"
    world = await mailing_world(make_world, server)
    await check(world, minutes=6)
    await check(world, minutes=0.25)
    assert server.messages == []
    assert sum("e-mail not sent" in record.message for record in caplog.records) == 1
    server.refuses = ""
    await check(world, minutes=0.25)
    assert len(server.messages) == 1


@requirement("alerts.email")
async def test_an_email_whose_answer_was_lost_is_sent_again_as_the_same_message(
    make_world: MakeWorld, mail_server: Callable[..., MailServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the test checks: else the first world, too, would send the message again.
    monkeypatch.setattr(AlertService, "run", lambda *_: asyncio.Event().wait())
    server = mail_server()
    world = await mailing_world(make_world, server)
    server.forgets = True
    await check(world, minutes=6)
    server.forgets = False
    other = await open_world(make_world, server)  # nothing is in memory
    other.kernel.health.set_check("vault", monitoring.fixed_check("unavailable", "gone"))
    await check(other, world, minutes=0.25)
    first, second = server.messages
    assert first.as_bytes() == second.as_bytes()
    assert str(first["Message-ID"]).endswith("@example.com>")
    await check(other, world, minutes=0.25)
    third = server.messages[-1]
    assert third["Message-ID"] != first["Message-ID"]
    assert "The component vault" in server.texts[-1]
    await check(other, world, minutes=0.25)
    assert len(server.messages) == 3


@requirement("alerts.email")
async def test_an_email_that_is_never_taken_is_given_up_after_a_day_and_the_log_says_so(
    make_world: MakeWorld, mail_server: Callable[..., MailServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = mail_server()
    world = await mailing_world(make_world, server)
    server.refuses = "552 too big"
    await check(world, minutes=6)
    await check(world, minutes=60 * 25)
    (given_up,) = [record for record in caplog.records if "given up" in record.message]
    assert "too big" in given_up.message
    server.refuses = ""
    await world.register("boss", capabilities=["judge"], trust_tier="human")
    await world.submit(required_capabilities=["judge"])
    await check(world, minutes=6)
    (text,) = server.texts
    assert "waits for approval" in text
    assert "in the queue" not in text


@requirement("alerts.email")
async def test_a_reason_of_several_lines_is_mailed_too(
    make_world: MakeWorld, mail_server: Callable[..., MailServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the job's check of the moment before would still count.
    monkeypatch.setattr(monitoring, "CACHE_SECONDS", 0)
    server = mail_server()
    world = await mailing_world(make_world, server)
    world.kernel.health.set_check(
        "vault", monitoring.fixed_check("unavailable", "gone:\r\nBcc: everybody@example.com\x00\u2028")
    )
    await check(world)
    (message,) = server.messages
    assert "gone: Bcc: everybody@example.com" in message["Subject"]
    assert message["Bcc"] is None


@requirement("alerts.email")
async def test_a_test_email_is_sent_and_says_to_whom_or_why_not(
    make_world: MakeWorld, mail_server: Callable[..., MailServer]
) -> None:
    server = mail_server()
    world = await mailing_world(make_world, server)
    sent = await world.admin.post("/api/v1/alerts/test")
    assert (sent.status_code, sent.json()) == (200, {"recipients": ["ops@example.com", "boss@example.com"]})
    server.refuses = "554 no"
    refused = await world.admin.post("/api/v1/alerts/test")
    assert refused.status_code == 503
    assert "554" in refused.text


@requirement("alerts.email")
async def test_a_recipient_that_the_mail_server_refuses_is_named_and_the_others_get_the_email_once(
    make_world: MakeWorld, mail_server: Callable[..., MailServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = mail_server()
    server.unknown = "boss@example.com"
    world = await mailing_world(make_world, server)
    refused = await world.admin.post("/api/v1/alerts/test")
    assert refused.status_code == 503
    assert "refused boss@example.com; the other recipients" in refused.text
    await check(world, minutes=6)
    await check(world, minutes=0.25)
    assert server.recipients == [["ops@example.com"]] * 2
    assert sum("boss@example.com" in record.message for record in caplog.records if record.levelname == "WARNING") == 1


@requirement("alerts.email-secret")
def test_a_password_is_not_sent_without_tls_and_no_error_repeats_it(mail_server: Callable[..., MailServer]) -> None:
    plain, tls = mail_server(), mail_server(tls=True)
    with pytest.raises(MailError, match="offers no TLS"):
        mailer(f"smtp://{USER}:{PASSWORD}@127.0.0.1:{plain.port}").send("s", "t")
    assert plain.messages == []
    with pytest.raises(MailError, match="refused the user name") as refused:
        mailer(f"smtp://{USER}:wrong-{PASSWORD}@127.0.0.1:{tls.port}").send("s", "t")
    assert PASSWORD not in str(refused.value)
    with pytest.raises(MailError, match="only ASCII") as refused:
        mailer(f"smtp://{USER}:{PASSWORD}%C3%A4@127.0.0.1:{tls.port}").send("s", "t")
    assert "\\xe4" not in str(refused.value)
    with pytest.raises(MailError, match="did not accept"):
        mailer(f"smtp://127.0.0.1:{free_port()}").send("s", "t")


def mailer(url: str) -> Mailer:
    return Mailer(parse_smtp_url(url), ("ops@example.com",), "stentor@example.com")


@requirement("alerts.email-secret")
@pytest.mark.parametrize(
    "url", ["mail.example.com", "http://x", f"smtp://{USER}@x", f"smtp://:{PASSWORD}@x", "smtp://"]
)
def test_a_wrong_address_of_a_mail_server_stops_the_start_without_its_password(url: str) -> None:
    with pytest.raises(StartRefused, match="SERVICE_SMTP_URL") as refused:
        settings.load({"SERVICE_SMTP_URL": url, "SERVICE_ALERT_EMAILS": "ops@example.com"})
    assert PASSWORD not in str(refused.value)


@requirement("alerts.settings")
@pytest.mark.parametrize(
    "given",
    [
        {"SERVICE_ALERT_EMAILS": "ops@example.com"},
        {"SERVICE_ALERT_EMAILS": "nobody", "SERVICE_SMTP_URL": "smtp://x"},
        {"SERVICE_ALERT_EMAIL_FROM": "a@b, c@d"},
        {"SERVICE_ALERT_FAILURE_PERCENT": "101"},
    ],
)
def test_settings_that_cannot_work_stop_the_start(given: dict[str, str]) -> None:
    with pytest.raises(StartRefused, match="SERVICE_ALERT_"):
        settings.load(given)
