"""The remedies in the order in which the parts give out, for the installation that the page answers for."""

from __future__ import annotations

from dataclasses import replace

from bench.scale.remedies import Remedy

DATABASES = 4
SERVER = "CPU of PostgreSQL"

REMEDIES = (
    Remedy("`SERVICE_NATS_URL`", "settings", "NOTIFY one after the other", lambda one: replace(one, nats=True)),
    Remedy("`SERVICE_SNAPSHOT_REFRESH_SECONDS=10`", "settings", SERVER, lambda one: replace(one, refresh=10.0)),
    Remedy("a pooler and `SERVICE_DATABASE_SESSION_URL`", "settings", "connections", lambda o: replace(o, pooled=True)),
    Remedy("a read replica for the refreshes", "operation", SERVER, lambda one: replace(one, replicas=1)),
    Remedy(
        f"tenants parted between {DATABASES} databases",
        "operation",
        "connections",
        lambda one: replace(one, databases=DATABASES),
    ),
)
TODAY = 3
"""How many of them are settings that there are, and come first."""
