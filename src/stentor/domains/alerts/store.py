"""SQL of alerts and of the e-mails about them."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import DAY
from stentor.core.db import Sql, Tx
from stentor.domains.alerts.model import Alert, AlertMail, Finding, StoredThresholds

_COLUMNS = ", ".join(Alert.__struct_fields__)
_LIST_OPEN = Sql(f"select {_COLUMNS} from alerts where resolved_at is null order by tenant, opened_at, alert_id")
# What others spend, and when their keys expire, is for admins. In the query, so that a limit counts what is seen.
_VISIBLE = """(cast(:own as text) is null or kind not in ('budget', 'key')
    or substr(subject, 1, length(cast(:own as text))) = :own
    or kind = 'budget' and substr(subject, 1, length(cast(:own_team as text))) = :own_team)"""
_LIST = {
    "open": Sql(
        f"""select {_COLUMNS} from alerts where tenant = :tenant and resolved_at is null and {_VISIBLE}
        order by opened_at desc, alert_id desc limit :limit"""
    ),
    "resolved": Sql(
        f"""select {_COLUMNS} from alerts where tenant = :tenant and resolved_at is not null and {_VISIBLE}
        order by opened_at desc, alert_id desc limit :limit"""
    ),
}
# Dozens of agents may be offline for one reason: within a limit they must hide no other alert.
_LIST_URGENT_FIRST = Sql(
    f"""select {_COLUMNS} from alerts where tenant = :tenant and resolved_at is null and {_VISIBLE}
    order by (severity = 'critical') desc, (kind = 'agent_offline'), opened_at desc, alert_id desc limit :limit"""
)
# Alerts that opened long ago are not news, even if they resolve now: the bound lets the query use the index.
_LIST_RECENT = Sql(
    f"""select {_COLUMNS} from alerts where tenant = :tenant and opened_at >= :opened_after
    and (opened_at >= :since or resolved_at >= :since) and {_VISIBLE}
    order by (kind = 'agent_offline'), opened_at desc, alert_id desc limit :limit"""
)
_INSERT = Sql(
    """insert into alerts (alert_id, tenant, kind, subject, severity, message, agent_id, opened_at, mailed)
    values (:alert_id, :tenant, :kind, :subject, :severity, :message, :agent_id, :now, '')"""
)
_UPDATE = Sql("update alerts set message = :message where alert_id = :alert_id")
_RESOLVE = Sql("update alerts set resolved_at = :now where alert_id = :alert_id and resolved_at is null")
# The first bound lets the query use the index.
_LIST_UNMAILED = Sql(
    f"""select {_COLUMNS} from alerts
    where opened_at >= :opened_after and coalesce(resolved_at, opened_at) >= :since
    and mailed <> case when resolved_at is null then 'opened' else 'resolved' end
    order by tenant, opened_at, alert_id limit :limit"""
)
# An alert that resolved while its e-mail was sent keeps its mark, so that the resolution is mailed too.
_SET_MAILED = Sql(
    """update alerts set mailed = :state
    where alert_id = :alert_id and (:state = 'opened') = (resolved_at is null)"""
)
_THRESHOLD_COLUMNS = ", ".join(StoredThresholds.__struct_fields__)
_LIST_THRESHOLDS = Sql(f"select {_THRESHOLD_COLUMNS} from alert_thresholds")
_FIND_THRESHOLDS = Sql(f"select {_THRESHOLD_COLUMNS} from alert_thresholds where tenant = :tenant")
_DELETE_THRESHOLDS = Sql("delete from alert_thresholds where tenant = :tenant")
_INSERT_THRESHOLDS = Sql.insert("alert_thresholds", StoredThresholds.__struct_fields__)
_MAIL_COLUMNS = ", ".join(AlertMail.__struct_fields__)
_INSERT_MAIL = Sql.insert("alert_mails", AlertMail.__struct_fields__)
_FIND_OPEN_MAIL = Sql(
    f"""select {_MAIL_COLUMNS} from alert_mails where sent_at is null and given_up = 0
    order by created_at, mail_id limit 1"""
)
_SET_SENT = Sql("update alert_mails set sent_at = :now where mail_id = :mail_id and sent_at is null")
_GIVE_UP = Sql("update alert_mails set given_up = 1 where mail_id = :mail_id and sent_at is null")
_PURGE_MAILS = Sql("delete from alert_mails where created_at < :before and (sent_at is not null or given_up = 1)")


def list_open(tx: Tx) -> list[Alert]:
    """List the open alerts of all tenants. For the checks only, never for a request of a caller."""
    return [Alert(*row) for row in tx.rows(_LIST_OPEN)]


def list_alerts(tx: Tx, tenant: str, reader: Principal, state: str, limit: int) -> list[Alert]:
    """List a tenant's `open` or `resolved` alerts, or `all` of them, open ones first, the newest first.

    For a `reader` without `admin`, without those about what others spend.
    """
    states = ("open", "resolved") if state == "all" else (state,)
    bounds = {"tenant": tenant, "limit": limit, **_own(reader)}
    rows = [row for name in states for row in tx.rows(_LIST[name], **bounds)]
    return [Alert(*row) for row in rows[:limit]]


def list_urgent_first(tx: Tx, tenant: str, reader: Principal, limit: int) -> list[Alert]:
    """List a tenant's open alerts, critical ones first and offline agents last. `reader` as in `list_alerts`."""
    return [Alert(*row) for row in tx.rows(_LIST_URGENT_FIRST, tenant=tenant, limit=limit, **_own(reader))]


def list_recent(tx: Tx, tenant: str, reader: Principal, since: int, limit: int) -> list[Alert]:
    """List a tenant's alerts that opened or resolved since a time (microseconds), those that opened last first, but
    offline agents last.

    Leaves out those that opened more than 30 days before that time. `reader` as in `list_alerts`.
    """
    bounds = {"since": since, "opened_after": since - 30 * DAY, **_own(reader)}
    return [Alert(*row) for row in tx.rows(_LIST_RECENT, tenant=tenant, limit=limit, **bounds)]


def _own(reader: Principal) -> dict[str, str | None]:
    """Return how the subjects of the alerts about a key itself, its budgets and those of its team begin."""
    if reader.may("admin"):
        return {"own": None, "own_team": None}
    return {"own": f"key:{reader.name}:", "own_team": f"team:{reader.team}:" if reader.team else None}


def insert(tx: Tx, finding: Finding) -> str:
    """Open an alert and return its id."""
    alert_id = ids.new_id()
    fields: dict[str, Any] = {name: getattr(finding, name) for name in Finding.__struct_fields__}
    tx.run(_INSERT, alert_id=alert_id, now=tx.now, **fields)
    return alert_id


def update_message(tx: Tx, alert_id: str, message: str) -> None:
    tx.run(_UPDATE, alert_id=alert_id, message=message)


def resolve(tx: Tx, alert_id: str) -> None:
    tx.run(_RESOLVE, alert_id=alert_id, now=tx.now)


def list_thresholds(tx: Tx) -> list[StoredThresholds]:
    """List what admins set in all tenants. For the checks only, never for a request of a caller."""
    return [StoredThresholds(*row) for row in tx.rows(_LIST_THRESHOLDS)]


def find_thresholds(tx: Tx, tenant: str) -> StoredThresholds:
    """Return what a tenant's admins set; nothing is set without a row."""
    row = tx.row(_FIND_THRESHOLDS, tenant=tenant)
    return StoredThresholds(tenant) if row is None else StoredThresholds(*row)


def save_thresholds(tx: Tx, thresholds: StoredThresholds) -> None:
    """Store what a tenant's admins set; call it under the lock of alerts."""
    tx.run(_DELETE_THRESHOLDS, tenant=thresholds.tenant)
    if thresholds.own:
        tx.run(_INSERT_THRESHOLDS, **msgspec.structs.asdict(thresholds))


def list_unmailed(tx: Tx, since: int, limit: int) -> list[Alert]:
    """List the alerts that opened or resolved since a time (microseconds) without an e-mail about it.

    Leaves out those that opened more than a year before that time.
    """
    bounds = {"since": since, "opened_after": since - 365 * DAY}
    return [Alert(*row) for row in tx.rows(_LIST_UNMAILED, limit=limit, **bounds)]


def set_mailed(tx: Tx, alerts: list[Alert]) -> None:
    """Record that an e-mail says the state that these alerts have here, unless it has changed since."""
    states = [(alert.alert_id, "opened" if alert.resolved_at is None else "resolved") for alert in alerts]
    tx.many(_SET_MAILED, [{"alert_id": alert_id, "state": state} for alert_id, state in states])


def insert_mail(tx: Tx, mail: AlertMail) -> None:
    """Store an e-mail before it is sent. Those that ended 30 days ago are deleted."""
    tx.run(_PURGE_MAILS, before=tx.now - 30 * DAY)
    tx.run(_INSERT_MAIL, **msgspec.structs.asdict(mail))


def find_open_mail(tx: Tx) -> AlertMail | None:
    """Return the e-mail that is to be sent, None without one."""
    row = tx.row(_FIND_OPEN_MAIL)
    return None if row is None else AlertMail(*row)


def set_mail_sent(tx: Tx, mail_id: str) -> None:
    """Record that the mail server has taken an e-mail."""
    tx.run(_SET_SENT, mail_id=mail_id, now=tx.now)


def give_up_mail(tx: Tx, mail_id: str) -> None:
    """Record that an e-mail was given up."""
    tx.run(_GIVE_UP, mail_id=mail_id)
