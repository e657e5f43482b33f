"""The remedies in the order in which the parts give out, for the installation that the page answers for."""

from __future__ import annotations

from dataclasses import replace

from bench.scale.remedies import Remedy

WORKING = 50
"""Processes with the role of a worker, when the other ones only take requests."""
DATABASES = 4
SERVER, PROCESS = "CPU of PostgreSQL", "CPU of a process"

REMEDIES = (
    Remedy(
        f"`SERVICE_ROLES`: {WORKING} processes work, the others take requests",
        "settings",
        SERVER,
        lambda one: replace(one, working=WORKING),
    ),
    Remedy("`SERVICE_NATS_URL`", "settings", "NOTIFY one after the other", lambda one: replace(one, nats=True)),
    Remedy(
        "one reader of each process, not three", "program", "connections", lambda o: replace(o, fewer_connections=2)
    ),
    Remedy("one working process is told of a task, not all", "program", PROCESS, lambda one: replace(one, told=0.0)),
    Remedy("a process hears of what it follows, not of all", "program", PROCESS, lambda one: replace(one, heard=0.05)),
    Remedy("`SERVICE_SNAPSHOT_REFRESH_SECONDS=10`", "settings", SERVER, lambda one: replace(one, refresh=10.0)),
    Remedy("a read replica for the refreshes", "operation", SERVER, lambda one: replace(one, replicas=1)),
    Remedy(
        f"tenants parted between {DATABASES} databases",
        "operation",
        "connections",
        lambda one: replace(one, databases=DATABASES),
    ),
)
TODAY = 2
"""How many of them are settings that there are, and come first."""
