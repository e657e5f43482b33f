"""A route is made whole when it is asked for the first time, and once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import APIRouter

from stentor.web.routes import GatewayRoute

THREADS = 8


@pytest.fixture
def route() -> GatewayRoute:
    api = APIRouter(prefix="/things", route_class=GatewayRoute)

    @api.get("/{number}")
    async def thing(number: int) -> int:
        return number

    (made,) = api.routes
    assert isinstance(made, GatewayRoute)
    return made


def test_what_finds_it_is_there_and_the_rest_is_not_made_yet(route: GatewayRoute) -> None:
    assert (route.path, route.methods, route.permission) == ("/things/{number}", {"GET"}, "read")
    assert route.path_regex.match("/things/7")
    assert "dependant" not in vars(route)
    assert [one.name for one in route.dependant.path_params] == ["number"]
    assert "dependant" in vars(route)


def test_threads_that_ask_together_get_the_same(route: GatewayRoute) -> None:
    together = threading.Barrier(THREADS)

    def ask(_: int) -> int:
        together.wait(60)
        return id(route.dependant)

    with ThreadPoolExecutor(THREADS) as threads:
        assert len(set(threads.map(ask, range(THREADS)))) == 1


def test_what_no_route_has_it_has_not_either(route: GatewayRoute) -> None:
    with pytest.raises(AttributeError, match="colour"):
        _ = route.colour
    assert not hasattr(route, "colour")
