"""Names by which a service may be called."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.service import Service


def called(service: Service, host: str, surface: str = "gateway") -> int:
    path = "/" if surface == "dashboard" else "/api/v1/health/live"
    return httpx.get(service.ready[surface] + path, headers={"Host": host}, timeout=200).status_code


@pytest.mark.requirement("http.host-list")
def test_on_loopback_a_host_of_another_name_is_refused(start: Callable[..., Service]) -> None:
    service = start()
    for surface in ("gateway", "dashboard"):
        for own in ("127.0.0.1", "localhost:8080", "LOCALHOST", "[::1]:1", "10.0.0.7:8080"):
            assert called(service, own, surface) < 400, own
        for foreign in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "a b", ""):
            assert called(service, foreign, surface) == 421, foreign
    by_proxy = {"Host": "stentor.example", "X-API-Key": "admin-key-7c1e"}
    assert httpx.get(service.address + "/api/v1/tasks", headers=by_proxy, timeout=200).status_code == 200


@pytest.mark.requirement("http.host-list")
@pytest.mark.parametrize("development", [{}, {"NODE_ENV": "development", "SKIP_AUTH": "true"}])
def test_a_key_that_nobody_knows_does_not_open_another_name(
    start: Callable[..., Service], development: dict[str, str]
) -> None:
    service = start(**development)
    for header in ({"X-API-Key": "any"}, {"Authorization": "Bearer any"}):
        for address in (service.address + "/api/v1/whoami", service.ready["dashboard"] + "/"):
            answer = httpx.get(address, headers={"Host": "evil.example", **header}, timeout=200)
            assert answer.status_code == 421, (address, header)


@pytest.mark.requirement("http.host-list")
def test_elsewhere_any_host_is_answered_unless_the_operator_lists_names(start: Callable[..., Service]) -> None:
    open_ = start(SERVICE_HOST="0.0.0.0")
    assert called(open_, "anything.example") == 200
    open_.process.terminate()
    open_.process.wait()
    listed = start(SERVICE_HOST="0.0.0.0", SERVICE_ALLOWED_HOSTS="stentor.example, other.example")
    refused = httpx.get(listed.address, headers={"Host": "Anything.example:80"}, timeout=200)
    assert "The host name anything.example is not allowed" in refused.text
    assert called(listed, "stentor.example:8080") == 200
    assert called(listed, "10.1.2.3:8080") == 200  # a probe by address
    assert called(listed, "anything.example") == 421


@pytest.mark.requirement("http.host-list")
def test_a_star_allows_any_host_on_loopback(start: Callable[..., Service]) -> None:
    assert called(start(SERVICE_ALLOWED_HOSTS="*"), "anything.example") == 200
