"""The store fails under load: a PostgreSQL server that dies, a disk that reports an error at the flush."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import KEYS, Service
from tests.faults.checker import check
from tests.faults.flushes import failing_flushes
from tests.faults.load import Load, summaries, wait_for
from tests.faults.server import Server
from tests.faults.test_webhooks import complete, in_order, receiving, subscribe
from tests.patience import until
from tests.requirements import requirement
from tests.service import SHORT_LEASE
from tests.system import need

KEY = KEYS["ADMIN"].split(":")[0]
pytestmark = pytest.mark.fault


def refused_as_outage(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = client.post("/api/v1/tasks", json=body)
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "SERVICE_UNAVAILABLE"
    assert int(answer.headers["Retry-After"]) >= 1


@requirement("activity.log-is-fail-closed")
@pytest.mark.only("postgresql", reason="a file has no server")
def test_a_postgresql_server_that_dies_is_an_outage_and_no_loss(
    serve: Callable[..., Service], own_postgres: Server
) -> None:
    url = own_postgres.url
    service = serve(SERVICE_DATABASE_URL=url, **SHORT_LEASE)
    load = Load(service.address, KEY, summaries(300))
    load.start()
    with service.client() as client:
        for moment in (50, 200):
            until(lambda moment=moment: len(load.accepted) >= moment)
            own_postgres.kill()
            refused_as_outage(client, summaries(1, "never")[0])
            assert client.get("/api/v1/tasks").status_code == 503
            until(lambda: client.get("/api/v1/health/ready").status_code == 503)
            assert client.get("/api/v1/health/live").status_code == 200
            own_postgres.start()
            until(lambda: client.get("/api/v1/health/ready").status_code == 200)
        load.join()
        wait_for(client, 300)
        assert client.get("/api/v1/tasks/never-00000").status_code == 404
    assert service.process.poll() is None
    service.kill()
    assert check(url, load.accepted) == []


@pytest.mark.slow
@requirement("webhooks.at-least-once", "webhooks.one-commit")
@pytest.mark.only("postgresql", reason="a file has no server")
def test_a_postgresql_server_that_dies_loses_no_event_of_a_webhook(
    serve: Callable[..., Service], own_postgres: Server
) -> None:
    url = own_postgres.url
    service = serve(SERVICE_DATABASE_URL=url, SERVICE_OUTBOUND_ALLOW="127.0.0.1", **SHORT_LEASE)
    load = Load(service.address, KEY, summaries(100))
    with receiving() as sink, service.client() as client:
        subscribe(service, sink.url)
        load.start()
        until(lambda: len(load.accepted) >= 40)
        own_postgres.kill()
        until(lambda: client.get("/api/v1/health/ready").status_code == 503)
        own_postgres.start()
        until(lambda: client.get("/api/v1/health/ready").status_code == 200)
        load.join()
        until(lambda: complete(sink, load.accepted))
    assert set(sink.tasks) == set(load.accepted)
    assert in_order(sink)
    assert service.process.poll() is None


@requirement("activity.log-is-fail-closed")
@pytest.mark.only("sqlite", reason="the flush is the PostgreSQL server's")
def test_an_error_of_the_disk_at_the_flush_is_an_outage_and_no_loss(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    strace = need("strace")
    service = serve(data_dir=tmp_path / "data")
    with service.client() as client:
        before, refused, after = summaries(5, "before"), summaries(5, "refused"), summaries(5, "after")
        for body in before:
            assert client.post("/api/v1/tasks", json=body).status_code == 202
        wait_for(client, 5)
        with failing_flushes(strace, [service.process.pid]) as reason:
            if reason:
                pytest.skip(f"strace cannot attach here: {reason}")
            for body in refused:
                refused_as_outage(client, body)
        for body in refused:
            assert client.get(f"/api/v1/tasks/{body['id']}").status_code == 404
        for body in after:
            assert client.post("/api/v1/tasks", json=body).status_code == 202
        wait_for(client, 10)
    service.kill()
    assert check(service.database, [body["id"] for body in before + after]) == []
