"""Within v1 things are only added."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.requirements import requirement
from tests.surfaces.gateway.promised import generated, listed, promises

TASKS = "/api/v1/tasks"


@requirement("http.v1-only-adds")
def test_nothing_that_v1_promised_is_gone() -> None:
    gone = sorted(set(listed()) - promises(*generated()))
    assert gone == [], "clients of v1 rely on these"


def test_everything_that_v1_has_is_promised() -> None:
    new = sorted(promises(*generated()) - set(listed()))
    assert new == [], "new in v1: run `make docs`"


def out(document: dict[str, Any], path: str, status: str) -> Any:
    return document["paths"][path]["get"]["responses"][status]["content"]["application/json"]


def remove_route(document: dict[str, Any]) -> None:
    del document["paths"][TASKS]["post"]


def remove_parameter(document: dict[str, Any]) -> None:
    parameters = document["paths"][TASKS]["get"]["parameters"]
    parameters.remove(next(one for one in parameters if one["name"] == "limit"))


def require_parameter(document: dict[str, Any]) -> None:
    parameters = document["paths"][TASKS]["get"]["parameters"]
    next(one for one in parameters if one["name"] == "limit")["required"] = True


def remove_field(document: dict[str, Any]) -> None:
    name = out(document, TASKS, "200")["schema"]["$ref"].rpartition("/")[2]
    del document["components"]["schemas"][name]["properties"]["total"]


def require_field(document: dict[str, Any]) -> None:
    body = document["paths"][TASKS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    schema["required"] = list(schema["properties"])


CHANGES: dict[Callable[[dict[str, Any]], None], str] = {
    remove_route: f"POST {TASKS}",
    remove_parameter: f"GET {TASKS} query limit",
    require_parameter: f"GET {TASKS} query limit, not required",
    remove_field: f"GET {TASKS} 200 .total",
    require_field: f"POST {TASKS} takes .metadata, not required",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_a_change_that_breaks_a_client_is_seen(change: Callable[[dict[str, Any]], None]) -> None:
    document, errors = generated()
    changed = copy.deepcopy(document)
    change(changed)
    assert CHANGES[change] in promises(document, errors) - promises(changed, errors)


def test_a_code_that_goes_away_or_changes_its_status_is_seen() -> None:
    document, errors = generated()
    changed = promises(document, errors.replace("| 429 |", "| 430 |"))
    assert "error RATE_LIMITED 429" in promises(document, errors) - changed
