"""Checks every few seconds what is wrong, opens and resolves alerts, and mails what changed.

One process of an installation checks. A check that fails changes nothing, so no alert resolves because its condition
could not be read. An e-mail that cannot be sent is tried again with every check for a day; meanwhile further changes
wait for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import DAY, Clock, format_iso
from stentor.core.db import Database, Tx
from stentor.core.db.locks.leader import LeaderElection
from stentor.core.errors import Conflict, Forbidden, InvalidRequest, ServiceUnavailable
from stentor.core.mail import Mailer, MailError
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.alerts import store
from stentor.domains.alerts.model import (
    RESOLVE_AFTER_US,
    Alert,
    AlertChanges,
    AlertKey,
    AlertMail,
    Finding,
    StoredThresholds,
    Thresholds,
    compare,
)

INTERVAL_SECONDS = 15.0
MAX_MAILED = 50
"""Alerts in one e-mail."""
_LOCK = "alerts"
log = logging.getLogger(__name__)

Check = Callable[[frozenset[AlertKey]], Awaitable[list[Finding]]]
"""Returns what is wrong now. Gets the keys of the open alerts."""


class AlertService:
    """`mailer` is None without a mail server, `configured` are the thresholds of the service's settings."""

    def __init__(
        self, db: Database, runlog: RunLog, clock: Clock, configured: Thresholds, mailer: Mailer | None
    ) -> None:
        self._db, self._runlog, self._clock = db, runlog, clock
        self.configured, self._mailer = configured, mailer
        self._checks: list[Check] = []
        self._stored: dict[str, StoredThresholds] = {}
        self._gone_since: dict[AlertKey, int] = {}
        self._mail_problem = ""
        self._lock = asyncio.Lock()

    def add_check(self, check: Check) -> None:
        """Add a check to each round."""
        self._checks.append(check)

    async def run(self, leader: LeaderElection) -> None:
        """Check forever, while this process is the leader."""
        await leader.tick_while_leader("alerts", INTERVAL_SECONDS, self.check)

    async def check(self) -> None:
        """Check everything once, and mail what changed."""
        async with self._lock:  # two concurrent rounds would mail twice
            await self._check()

    def find_thresholds(self, tenant: str) -> Thresholds:
        """Return the thresholds that the present round of checks uses."""
        stored = self._stored.get(tenant)
        return self.configured if stored is None else stored.in_force(self.configured)

    async def _check(self) -> None:
        open_alerts, stored = await self._db.read(lambda tx: (store.list_open(tx), store.list_thresholds(tx)))
        self._stored = {row.tenant: row for row in stored}
        keys = frozenset(alert.key for alert in open_alerts)
        # One check that raises ends the round: its open alerts must not resolve because nothing was found.
        findings = [finding for check in self._checks for finding in await check(keys)]
        overdue = self._overdue(keys - {finding.key for finding in findings})
        # Most rounds change nothing, and then need no write transaction.
        if compare(findings, open_alerts, overdue):
            await self._db.write(lambda tx: self._apply(tx, findings, overdue))
        if self._mailer is not None:
            await self._mail(self._mailer)

    async def list_alerts(
        self, reader: Principal, state: Literal["open", "resolved", "all"], limit: int
    ) -> list[Alert]:
        """List the alerts of the reader's tenant that it may see, open ones first, the newest first."""
        return await self._db.read(lambda tx: store.list_alerts(tx, reader.tenant, reader, state, limit))

    async def read_thresholds(self, tenant: str) -> StoredThresholds:
        """Return what a tenant's admins set."""
        return await self._db.read(lambda tx: store.find_thresholds(tx, tenant))

    async def set_thresholds(self, caller: Principal, changes: Mapping[str, float | None]) -> StoredThresholds:
        """Set thresholds of the caller's tenant by name, from the next round of checks; None resets one.

        Raises Forbidden for an agent's key, and InvalidRequest without changes.
        """
        if not caller.is_person:
            raise Forbidden(
                f"The key {caller.name!r} has the role agent, so it may not change the alerts about agents."
            )
        if not changes:
            raise InvalidRequest("The request changes nothing. Set failure_percent, wait_seconds or budget_percent.")

        def work(tx: Tx) -> StoredThresholds:
            tx.lock(_LOCK)
            before = store.find_thresholds(tx, caller.tenant)
            after = msgspec.structs.replace(before, **changes, set_by=caller.name, set_at=tx.now)
            if after.own == before.own:
                return before
            store.save_thresholds(tx, after)
            changed = [name for name in changes if getattr(after, name) != getattr(before, name)]
            values = ", ".join(f"{name} to {_describe(changes[name])}" for name in changed)
            meta = {"thresholds": after.own, "previous": before.own, "changed": changed, "by": caller.name}
            draft = EventDraft("alert_thresholds_changed", "alerts", f"Thresholds of alerts set: {values}.", meta)
            self._runlog.append(tx, caller.tenant, [draft])
            return after

        return await self._db.write(work)

    @property
    def email_recipients(self) -> tuple[str, ...]:
        """Who gets an e-mail of each alert."""
        return self._mailer.recipients if self._mailer else ()

    async def send_test(self) -> tuple[str, ...]:
        """Send a test e-mail and return the recipients. Raises Conflict without a mail server, ServiceUnavailable."""
        if self._mailer is None:
            raise Conflict("E-mail is not configured: set SERVICE_SMTP_URL and SERVICE_ALERT_EMAILS, and restart.")
        text = "This is a test. Alerts of this Stentor installation are sent to this address.\n"
        try:
            refused = await asyncio.to_thread(self._mailer.send, "Stentor: test of alerts", text)
        except MailError as error:
            raise ServiceUnavailable(f"The e-mail was not sent: {error}.") from None
        if refused:
            names = ", ".join(refused)
            raise ServiceUnavailable(f"The mail server refused {names}; the other recipients have the e-mail.")
        return self._mailer.recipients

    def _overdue(self, gone: frozenset[AlertKey]) -> set[AlertKey]:
        """Return the keys of the alerts whose conditions have been gone long enough to resolve."""
        now = self._clock.monotonic()
        self._gone_since = {key: self._gone_since.get(key, now) for key in gone}
        return {key for key, since in self._gone_since.items() if now - since >= RESOLVE_AFTER_US}

    def _apply(self, tx: Tx, findings: list[Finding], overdue: set[AlertKey]) -> AlertChanges:
        # Read again under the lock: for a moment there can be two leaders.
        tx.lock(_LOCK)
        changes = compare(findings, store.list_open(tx), overdue)
        for finding in changes.opened:
            alert_id = store.insert(tx, finding)
            self._record(tx, "alert_opened", alert_id, finding, finding.message)
        for alert, finding in changes.updated:
            store.update_message(tx, alert.alert_id, finding.message)
        for alert in changes.resolved:
            store.resolve(tx, alert.alert_id)
            self._record(tx, "alert_resolved", alert.alert_id, alert, f"Resolved: {alert.message}")
        return changes

    def _record(
        self,
        tx: Tx,
        event_type: Literal["alert_opened", "alert_resolved"],
        alert_id: str,
        alert: Finding | Alert,
        text: str,
    ) -> None:
        metadata = {"alert_id": alert_id, "kind": alert.kind, "subject": alert.subject, "severity": alert.severity}
        metadata["message"] = alert.message
        self._runlog.append(
            tx, alert.tenant, [EventDraft(event_type, "alerts", text, metadata, agent_id=alert.agent_id)]
        )

    async def _mail(self, mailer: Mailer) -> None:
        """Send one e-mail with every alert whose state no e-mail says. Logs an outage once.

        The e-mail is stored with its id before it is sent. After a crash in between the same one is sent again.
        """
        mail = await self._db.read(store.find_open_mail)
        if mail is None:
            # After a long outage of the mail server nobody needs e-mails about the alerts of last week.
            since = self._clock.now() - DAY
            if await self._db.read(lambda tx: store.list_unmailed(tx, since, 1)):
                mail = await self._db.write(lambda tx: self._write_mail(tx, mailer, since))
        if mail is None:
            return
        try:
            # In a thread, because smtplib blocks and a mail server may take a minute to answer.
            refused = await asyncio.to_thread(mailer.send, mail.subject, mail.body, mail.message_id, mail.created_at)
        except MailError as error:
            await self._note_failure(mail, str(error))
            return
        problem = ", ".join(refused)
        if problem and problem != self._mail_problem:
            log.warning("alerts: e-mail refused for some recipients=%s message_id=%s", problem, mail.message_id)
        self._mail_problem = problem
        await self._db.write(lambda tx: store.set_mail_sent(tx, mail.mail_id))

    def _write_mail(self, tx: Tx, mailer: Mailer, since: int) -> AlertMail | None:
        """Store the next e-mail; None if another process has done so."""
        tx.lock(_LOCK)
        if (mail := store.find_open_mail(tx)) is not None:
            return mail
        alerts = store.list_unmailed(tx, since, MAX_MAILED)
        if not alerts:
            return None
        mail_id = ids.new_id()
        mail = AlertMail(mail_id, mailer.make_message_id(mail_id), mail_subject(alerts), mail_text(alerts), tx.now)
        store.insert_mail(tx, mail)
        store.set_mailed(tx, alerts)
        return mail

    async def _note_failure(self, mail: AlertMail, problem: str) -> None:
        """Log why an e-mail was not taken, and give it up after a day."""
        is_old = self._clock.now() - mail.created_at > DAY
        if is_old:
            await self._db.write(lambda tx: store.give_up_mail(tx, mail.mail_id))
            log.error("alerts: e-mail not sent within a day, given up message_id=%s error=%s", mail.message_id, problem)
        elif problem != self._mail_problem:
            log.warning("alerts: e-mail not sent, retrying message_id=%s error=%s", mail.message_id, problem)
        self._mail_problem = "" if is_old else problem


def _describe(value: float | None) -> str:
    return "the default" if value is None else f"{value:g}"


def mail_subject(alerts: list[Alert]) -> str:
    """Return the subject of an e-mail about these alerts."""
    first = next((alert for alert in alerts if alert.resolved_at is None), alerts[0])
    state = "resolved" if first.resolved_at is not None else first.severity
    more = f" (and {len(alerts) - 1} more)" if len(alerts) > 1 else ""
    # One line: a header cannot have more, and the text may come from elsewhere.
    message = " ".join(first.message.split()).rstrip(".")[:120]
    return f"Stentor, {state}: {message}{more}"


def mail_text(alerts: list[Alert]) -> str:
    """Return the text of an e-mail: open alerts first."""
    ordered = sorted(alerts, key=lambda alert: (alert.resolved_at is not None, alert.opened_at))
    return "\n\n".join(map(_mail_paragraph, ordered)) + "\n\nThe page Alerts of the dashboard has them all.\n"


def _mail_paragraph(alert: Alert) -> str:
    if alert.resolved_at is None:
        head = f"{alert.severity.upper()} since {format_iso(alert.opened_at)}"
    else:
        head = f"RESOLVED at {format_iso(alert.resolved_at)}, open since {format_iso(alert.opened_at)}"
    return f"{head}\n{alert.message}\nTenant {alert.tenant}, kind {alert.kind}"
