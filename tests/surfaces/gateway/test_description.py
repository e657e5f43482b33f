"""schemathesis holds the service to its own OpenAPI: no failure, no answer that is not described."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal import lambda_sources
from schemathesis.checks import (
    CheckFunction,
    allow_header_conformance,
    ignored_auth,
    negative_data_rejection,
    not_a_server_error,
    positive_data_acceptance,
)

from tests.conftest import Service
from tests.databases import thorough
from tests.surfaces.gateway.operations import DOCUMENT

# To name a lambda in a message that nobody sees, hypothesis parses its file and runs a copy of it while it draws. The
# one run of hundreds whose drawing raised did so while it made such a message.
lambda_sources.lambda_description = lambda f: "<lambda>"

EXAMPLES = 25 if thorough() else 2
NOT_HELD: list[CheckFunction] = [
    allow_header_conformance,  # trust/levels is an entity id for other methods; test_errors holds the header
    ignored_auth,  # sends a right key beside the wrong one; the tests of the keys are in test_authentication
    positive_data_acceptance,  # cursors, printable names and strict integers are no matter of a schema
]
ACCEPTED = {
    "/api/v1/atp/validate": "it says what is wrong with a message",
    "/api/v1/registry/agents": "a parameter that is given many times counts as given once",
}
REFUSALS = [400, 401, 403, 404, 405, 409, 413, 422]
config = schemathesis.Config.from_dict(
    {
        "checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}},
        "phases": {"coverage": {"enabled": thorough()}},
    }
)
schema = schemathesis.openapi.from_dict(DOCUMENT, config=config)


@pytest.fixture(scope="module")
def service(
    serve_module: Callable[..., Service], tmp_path_factory: pytest.TempPathFactory, model_cache: Path
) -> Service:
    folder = tmp_path_factory.mktemp("described") / "data"
    (folder / "index").mkdir(mode=0o700, parents=True)
    (folder / "index" / "models").symlink_to(model_cache)
    return serve_module(folder, SERVICE_EMBEDDING_MODEL="")


@schema.parametrize()  # pyrefly: ignore[untyped-function-decorator] - schemathesis does not type what it returns
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_description_has(case: schemathesis.Case[Any], service: Service) -> None:
    excluded = list(NOT_HELD)
    if "501" in case.operation.definition.raw["responses"]:
        excluded.append(not_a_server_error)
    if case.operation.full_path in ACCEPTED:
        excluded.append(negative_data_rejection)
    case.call_and_validate(
        base_url=service.address,
        headers={"X-API-Key": service.key},
        timeout=200,
        excluded_checks=excluded,
    )
