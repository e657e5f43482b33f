"""`stentor config`: everything that is set, and no secret."""

from __future__ import annotations

import pytest

from stentor.core import settings
from tests.cli.program import Program

SECRETS = {
    "MCP_API_KEY": "mcp-9f21c0",
    "SERVICE_CLIENT_KEY": "client-9f21c0",
    "SERVICE_DATABASE_URL": "postgresql://u:pw-9f21c0@127.0.0.1:1/db",
    "SERVICE_URL": "http://u:url-9f21c0@127.0.0.1:1",
    "SERVICE_RAY_ADDRESSES": "ray://u:ray-9f21c0@127.0.0.1:1",
    "SERVICE_API_KEY_ALICE": "alice-9f21c0:admin:read,write:acme",
    "SERVICE_API_KEY_BROKEN": "broken-9f21c0:nothing",
    "SERVICE_API_KEY_ROLE": "role-9f21c0:9f21c0:read",
}


def test_every_setting_is_listed_with_value_source_and_meaning(program: Program) -> None:
    program.environ = {"SERVICE_HEBBIAN_ROUTING_ALPHA": "0.5", "SERVICE_OUTBOUND_ALLOW": "a:1, B"}
    listed = {s["env"]: s for s in program("config", "--json").json["settings"]}
    assert set(listed) == {meta.env for meta in settings.setting_infos().values()}
    assert listed["SERVICE_HEBBIAN_ROUTING_ALPHA"] | {"doc": ""} == {
        "name": "routing.alpha",
        "env": "SERVICE_HEBBIAN_ROUTING_ALPHA",
        "value": "0.5",
        "source": "environment",
        "doc": "",
        "problem": None,
    }
    assert listed["SERVICE_OUTBOUND_ALLOW"]["value"] == "a:1, b"
    assert (listed["SKIP_AUTH"]["value"], listed["SKIP_AUTH"]["source"]) == ("false", "default")
    unset = ("MCP_API_KEY", "SERVICE_ARCHIVE_DIR", "SERVICE_GRPC_PORT", "SERVICE_METRICS_URL")
    assert [listed[name]["value"] for name in unset] == ["not set"] * len(unset)
    assert all(s["doc"] for s in listed.values())
    text = program("config", "--data-dir", "/elsewhere").out
    assert "/elsewhere" in text
    assert "(from the option)" in text
    program.environ |= {"COLUMNS": "80"}
    lines = [line.rstrip() for line in program("config").out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "SERVICE_GATEWAY_PORT = 8080  (default)" in lines
    assert len(lines) < 4 * len(listed), "sentences are as wide as the terminal"


@pytest.mark.parametrize(
    "words", [["config"], ["config", "--json"], ["doctor"], ["doctor", "--json"], ["task", "list"]]
)
def test_no_secret_is_ever_printed(program: Program, words: list[str]) -> None:
    program.environ = dict(SECRETS)
    done = program(*words)
    assert "9f21c0" not in done.out + done.err


@pytest.mark.parametrize("words", [["config"], ["doctor"], ["db", "status"]])
def test_a_refused_value_is_repeated_without_its_password(program: Program, words: list[str]) -> None:
    program.environ = {"SERVICE_METRICS_URL": "http://u:pw-9f21c0@127.0.0.1:1"}
    done = program(*words)
    assert "SERVICE_METRICS_URL must not contain credentials" in " ".join((done.out + done.err).split())
    assert "9f21c0" not in done.out + done.err


def test_the_port_of_a_url_is_no_secret(program: Program) -> None:
    program.environ = {"SERVICE_METRICS_URL": "http://127.0.0.1:9090"}
    listed = {s["env"]: s["value"] for s in program("config", "--json").json["settings"]}
    assert listed["SERVICE_METRICS_URL"] == "http://127.0.0.1:9090"


def test_keys_are_listed_by_name_role_permissions_and_tenant(program: Program) -> None:
    program.environ = dict(SECRETS)
    alice, broken, role = program("config", "--json").json["keys"]
    expected = {"name": "alice", "role": "admin", "permissions": ["read", "write"], "tenant": "acme", "problem": None}
    assert {name: alice[name] for name in expected} == expected
    assert broken["problem"].startswith("ignored: expected <key>:<role>")
    assert role["problem"] == "ignored: the role must be admin or agent"
    text = program("config").out
    assert "SERVICE_API_KEY_ALICE" in text
    assert "acme" in text


def test_a_setting_that_cannot_be_read_is_shown_as_such(program: Program) -> None:
    program.environ = {"SERVICE_GATEWAY_PORT": "many", "SERVICE_HEBBIAN_ROUTING_BETA": "2"}
    done = program("config", "--json")
    assert done.code == 0
    problems = {s["env"]: s["problem"] for s in done.json["settings"] if s["problem"]}
    assert problems["SERVICE_GATEWAY_PORT"] == "SERVICE_GATEWAY_PORT must be a whole number from 0 to 65535."
    assert set(problems) == set(program.environ)
    assert "The service would not start" in program("config").err
