"""`stentor doctor`: says what is wrong and what to do, whatever it meets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from stentor.cli.checks import run_checks
from stentor.cli.checks.components import check_health
from stentor.cli.client import connection
from stentor.cli.inspection import CheckContext, inspect_config
from stentor.core.settings import Settings
from tests.cli.program import COMMAND, Done, Program
from tests.databases import limited_role
from tests.identity_provider import identity_provider
from tests.requirements import requirement
from tests.system import need

Served = tuple[Program, Any]


def _found(done: Done, check: str) -> list[tuple[str, str]]:
    return [(c["level"], c["message"]) for c in done.json["checks"] if c["check"] == check]


def _worst(done: Done, check: str) -> tuple[str, str]:
    order = ("ok", "warning", "problem")
    return max(_found(done, check), key=lambda found: order.index(found[0]))


def test_a_fresh_installation_has_no_problem_and_nothing_is_made(program: Program) -> None:
    program.environ = {"SERVICE_GATEWAY_PORT": "0"}
    done = program("doctor", "--json")
    assert done.code == 0
    assert done.json["ok"] is True
    assert {c["level"] for c in done.json["checks"]} == {"ok"}
    assert not program.data_dir.exists()


def test_a_running_service_is_well(served: Served) -> None:
    program, service = served
    done = program("doctor", "--json")
    assert done.code == 0
    messages = " ".join(message for _, message in _found(done, "service"))
    assert f"Process {service.process.pid} has been running on" in messages
    assert f"{service.address} is healthy." in messages
    database = "PostgreSQL" if service.state else "database"
    assert [level for level, _ in _found(done, database)] == ["ok", "ok"]
    assert "healthy" in program("doctor").out


def test_key_files_that_others_may_read_are_a_problem(program: Program) -> None:
    path = program.data_dir / "keys" / "admin.key"
    path.parent.mkdir(parents=True, mode=0o700)
    program.data_dir.chmod(0o755)
    path.write_text("key-in-a-file")
    path.chmod(0o640)
    done = program("doctor", "--json")
    assert done.code == 1
    assert _worst(done, "key files") == (
        "problem",
        f"{path} has mode 0640, so other users can read it: `chmod 600 {path}`.",
    )
    assert _worst(done, "data folder")[0] == "warning"
    path.chmod(0o600)
    program.data_dir.chmod(0o700)
    assert program("doctor", "--json").json["ok"] is True


@pytest.mark.parametrize(
    ("environ", "check", "level", "words"),
    [
        ({"SERVICE_GATEWAY_PORT": "x"}, "settings", "problem", "SERVICE_GATEWAY_PORT must be a whole number"),
        ({"SERVICE_HEBBIAN_ROUTING_BETA": "1.9"}, "settings", "problem", "must be a number from 0 to 1"),
        ({"SERVICE_LLM_BUDGETS": "x"}, "settings", "problem", "SERVICE_LLM_BUDGETS: 'x' is invalid"),
        ({"SERVICE_CAGE_ROOTS": "x"}, "sandbox", "problem", "SERVICE_CAGE_ROOTS"),
        ({"SERVICE_CAGE_TOOLS": "/no/such"}, "sandbox", "problem", "SERVICE_CAGE_TOOLS: /no/such cannot be read"),
        ({"SERVICE_GATEWAY_PROT": "1"}, "settings", "warning", "did you mean SERVICE_GATEWAY_PORT?"),
        ({"SERVICE_RATE_LIMIT": "5"}, "settings", "warning", "did you mean SERVICE_RATE_LIMIT_PER_MINUTE?"),
        ({"SKIP_AUTH": "1"}, "safety", "warning", "no effect"),
        ({"SKIP_AUTH": "1", "NODE_ENV": "development"}, "safety", "warning", "every local process an admin"),
        ({"SKIP_AUTH": "1", "NODE_ENV": "development", "SERVICE_HOST": "::"}, "settings", "problem", "loopback only"),
        ({"SERVICE_HOST": "0.0.0.0"}, "safety", "warning", "without TLS"),
        ({"SERVICE_RATE_LIMIT_PER_MINUTE": "0"}, "safety", "warning", "rate limit is off"),
        ({"MCP_API_KEY": "changeme"}, "keys", "problem", "MCP_API_KEY is a publicly known key"),
        ({"SERVICE_API_KEY_A": "test:admin:read"}, "keys", "problem", "SERVICE_API_KEY_A is a publicly known key"),
        ({"MCP_API_KEY": "x9"}, "keys", "warning", "MCP_API_KEY holds a key of fewer than 16 characters"),
        ({"SERVICE_API_KEY_A": "x9:admin:admin"}, "keys", "warning", "SERVICE_API_KEY_A holds a key of fewer than 16"),
        ({"SERVICE_API_KEY_A": "nonsense"}, "keys", "warning", "SERVICE_API_KEY_A: ignored"),
        ({"SERVICE_API_KEY_A": "k:agent:read"}, "keys", "warning", "SERVICE_API_KEY_* has the permission admin"),
        ({"SERVICE_DATA_DIR": "/dev/null/x"}, "data folder", "problem", "cannot be created"),
        ({"SERVICE_DATA_DIR": "/dev/null"}, "data folder", "problem", "is not a folder"),
        ({"SERVICE_AUTHORITY_ISSUERS": "/dev/null"}, "receipts", "problem", "SERVICE_AUTHORITY_ISSUERS"),
        ({"SERVICE_URL": "nonsense"}, "SERVICE_URL", "problem", "must be a URL"),
    ],
)
def test_each_danger_is_named(program: Program, environ: dict[str, str], check: str, level: str, words: str) -> None:
    program.environ = environ
    done = program("doctor", "--json")
    worst = _worst(done, check)
    assert worst[0] == level
    assert words in " ".join(message for _, message in _found(done, check))
    assert done.code == (1 if any(c["level"] == "problem" for c in done.json["checks"]) else 0)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SERVICE_LLM_PRICES", "x", "SERVICE_LLM_PRICES: 'x'"),
        ("SERVICE_LLM_GROUPS", "fast", "SERVICE_LLM_GROUPS: 'fast'"),
        ("SERVICE_LLM_REDACT_PATTERNS", "number=(", "SERVICE_LLM_REDACT_PATTERNS: 'number=('"),
        ("SERVICE_POLICY_FILE", "/no/such", "/no/such cannot be read"),
        ("SERVICE_RETENTION_DAYS", "3", "Archives need the extra"),
        ("SERVICE_MCP_URL", "x", "SERVICE_MCP_URL is 'x'"),
    ],
)
def test_a_setting_that_only_a_part_of_the_service_reads_is_checked_too(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # as if it were not installed
    assert words in (inspect_config({variable: value}).problem or "")


def test_no_password_of_an_address_is_shown() -> None:
    address = "http://me:s3cret-value@127.0.0.1:1/?token=s3cret-value"
    environ = {"SERVICE_VAULT_PLUGIN_URL": address, "SERVICE_EMBEDDING_URL": address, "SERVICE_MCP_URL": f"x{address}"}
    environ |= {"SERVICE_VAULT_PLUGIN_KEY": "k" * 16, "SERVICE_DATA_DIR": "/dev/null/x"}
    said = [finding.message for finding in run_checks(environ, None)]
    assert sum("127.0.0.1:1" in message for message in said) == 3
    assert not [message for message in said if "s3cret-value" in message]


def test_a_damaged_database_is_a_problem(program: Program) -> None:
    program("agent", "register", "ann")
    (program.data_dir / "stentor.db").write_bytes(b"this is no database at all" * 100)
    done = program("doctor", "--json")
    assert done.code == 1
    assert "restore a backup" in _worst(done, "database")[1]
    refused = program("serve", "--gateway-port", "0")
    assert f"{program.data_dir / 'stentor.db'} is damaged: file is not a database. Restore a backup." in refused.err


def test_a_database_that_cannot_be_read_is_not_called_damaged(program: Program) -> None:
    (program.data_dir / "stentor.db").mkdir(parents=True)
    level, message = _worst(program("doctor", "--json"), "database")
    assert (level, "cannot be checked (" in message) == ("problem", True)
    assert "backup" not in message


def test_a_port_that_the_service_could_not_have_is_told_before_its_start(program: Program) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program.environ = {"SERVICE_GATEWAY_PORT": str(port)}
        level, message = _worst(program("doctor", "--json"), "service")
    assert level == "warning"
    assert f"Port {port} on 127.0.0.1 cannot be used: Address already in use. Choose another" in message


def test_what_cannot_be_reached_is_a_problem(program: Program) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        program.environ["SERVICE_URL"] = f"http://127.0.0.1:{port}"
        program.environ["SERVICE_DATABASE_URL"] = f"postgresql://u:s3cret@127.0.0.1:{port}/db"
        done = program("doctor", "--json")
    assert done.code == 1
    assert "is the service running there?" in _worst(done, "SERVICE_URL")[1]
    assert _worst(done, "PostgreSQL")[0] == "problem"
    assert "s3cret" not in done.out + done.err


def test_a_service_that_is_late_is_not_told_as_one_that_is_not_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.2)
    context = CheckContext(inspect_config({}), Settings(), {})
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts connections, and says nothing
        found = check_health(context, "SERVICE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
    assert found.level == "problem"
    assert "did not respond within 0.2 s: it may be overloaded." in found.message


@requirement("people.provider-down")
def test_the_identity_provider_is_asked(program: Program) -> None:
    assert _worst(program("doctor", "--json"), "sign-in")[0] == "ok"
    with identity_provider(time.time) as provider:
        program.environ.update(provider.settings)
        assert "/sign-in/callback" in _worst(program("doctor", "--json"), "sign-in")[1]
        provider.description = {"issuer": "https://other.example"}
        wrong = _worst(program("doctor", "--json"), "sign-in")
        assert (wrong[0], "https://other.example" in wrong[1]) == ("problem", True)
        provider.description, provider.keys = {}, []
        assert _worst(program("doctor", "--json"), "sign-in")[0] == "problem"
    assert "cannot be reached" in _worst(program("doctor", "--json"), "sign-in")[1]


def test_postgresql_that_answers_is_well(program: Program, bare_url: str) -> None:
    program.environ["SERVICE_DATABASE_URL"] = bare_url
    done = program("doctor", "--json")
    assert done.code == 0, done.out
    assert [level for level, _ in _found(done, "PostgreSQL")] == ["ok", "warning"]
    assert "has no schema yet" in _worst(done, "PostgreSQL")[1]


def test_a_role_that_lacks_a_right_on_a_table_is_a_problem(program: Program, bare_url: str) -> None:
    program.environ["SERVICE_DATABASE_URL"] = bare_url
    assert program("db", "upgrade").code == 0
    with limited_role(bare_url) as (admin, role):
        admin.execute(f"grant all on all tables in schema public to {role}".encode())
        assert {level for level, _ in _found(program("doctor", "--json"), "PostgreSQL")} == {"ok"}
        admin.execute(f"revoke insert on events from {role}; revoke update on tasks from {role}".encode())
        level, message = _worst(program("doctor", "--json"), "PostgreSQL")
    assert level == "problem"
    assert "not all rights on 2 tables: events, tasks." in message


def test_a_data_folder_on_a_read_only_file_system_is_told_as_such(program: Program) -> None:
    program.data_dir.mkdir()
    folder = str(program.data_dir)
    words = [need("bwrap"), "--dev-bind", "/", "/", "--ro-bind", folder, folder]
    done = subprocess.run([*words, *COMMAND, "doctor", "--json"], env=program.env, capture_output=True)
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["data folder"]["level"] == "problem"
    assert "mounted read-only" in checks["data folder"]["message"]


@requirement("sandbox.settings")
def test_the_cage_is_tried_out_where_programs_may_be_run(program: Program) -> None:
    need("bwrap")
    assert "disabled" in _worst(program("doctor", "--json"), "sandbox")[1]
    folder = Path(tempfile.gettempdir()) / f"none-{os.getpid()}"  # short, as its sockets need
    program.environ.update(SERVICE_COMMAND_AGENTS="1", SERVICE_CAGE_DIR=str(folder))
    assert _worst(program("doctor", "--json"), "sandbox") == ("ok", "A test program ran in the sandbox.")
    assert not folder.exists()
    program.environ["SERVICE_CAGE_TOOLS"] = "/no/such"
    wrong = _worst(program("doctor", "--json"), "sandbox")
    assert (wrong[0], "cannot be read" in wrong[1]) == ("problem", True)
    del program.environ["SERVICE_CAGE_TOOLS"]
    program.environ["SERVICE_CAGE_DIR"] = "/tmp/" + "x" * 99
    assert "too long" in _said(program)
    program.environ["SERVICE_CAGE"] = "off"
    assert _worst(program("doctor", "--json"), "sandbox")[0] == "warning"


def _said(program: Program) -> str:
    return " ".join(message for _, message in _found(program("doctor", "--json"), "sandbox"))
