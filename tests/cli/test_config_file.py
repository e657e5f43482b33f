"""`stentor.toml`: every setting may stand in it, and a mistake in it is named."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path

import pytest

from stentor.core import settings
from stentor.core.settings.config_file import TEMPLATE_SETTINGS
from tests.cli.program import Program
from tests.requirements import requirement


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "data", folder=tmp_path)


def write(program: Program, text: str) -> Path:
    assert program.folder is not None
    path = program.folder / "stentor.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def listed(program: Program, name: str) -> tuple[str, str]:
    """The value of a setting, and where it came from."""
    rows = {row["name"]: row for row in program("config", "--json").json["settings"]}
    return rows[name]["value"], rows[name]["source"]


@requirement("http.config-file")
def test_init_writes_a_commented_file_that_changes_nothing_until_it_is_edited(program: Program) -> None:
    done = program("init")
    assert done.code == 0, done.err
    assert program.folder is not None
    path = program.folder / "stentor.toml"
    assert str(path) in done.out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(not table for table in tomllib.loads(path.read_text()).values())
    assert listed(program, "server.port") == ("8080", "default")
    tables = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", path.read_text(), flags=re.MULTILINE))
    assert {f"{area}.{key}" for area, table in tables.items() for key in table} == set(TEMPLATE_SETTINGS)


def test_init_keeps_a_file_that_exists(program: Program) -> None:
    path = write(program, "[server]\nport = 9000\n")
    done = program("init")
    assert done.code == 1
    assert "exists already" in done.err
    assert path.read_text() == "[server]\nport = 9000\n"


@requirement("http.config-file")
def test_a_list_of_patterns_may_have_commas_in_them(program: Program) -> None:
    write(program, "[llm]\nredact = ['emails', 'cards']\nredact_patterns = ['customer=KD-\\d{6,8}', 'badge=B\\d{4}']\n")
    value = listed(program, "llm.redact_patterns")[0]
    assert "KD-\\d{6,8}" in value
    assert "badge=B\\d{4}" in value
    assert "cards" in listed(program, "llm.redact")[0]


@requirement("http.config-file")
def test_every_setting_may_stand_in_the_file(program: Program) -> None:
    defaults = settings.Settings()
    lines: dict[str, list[str]] = {}
    for name in settings.setting_infos():
        area, _, key = name.partition(".")
        value = defaults.get(name)
        if isinstance(value, bool):
            lines.setdefault(area, []).append(f"{key} = {str(value).lower()}")
        elif isinstance(value, int | float):
            lines.setdefault(area, []).append(f"{key} = {value}")
        elif isinstance(value, tuple) and value:
            lines.setdefault(area, []).append(f"{key} = {list(value)}")
    program.environ = {"SERVICE_DATA_DIR": str(program.data_dir)}
    write(program, "".join(f"[{area}]\n" + "\n".join(rows) + "\n" for area, rows in lines.items()))
    document = program("config", "--json").json
    assert document["problem"] is None
    sources = {row["name"]: row["source"] for row in document["settings"]}
    written = {f"{area}.{row.partition(' ')[0]}" for area, rows in lines.items() for row in rows}
    assert {name for name, source in sources.items() if source == "file"} == written


@requirement("http.config-file")
def test_options_win_over_variables_and_variables_over_the_file(program: Program) -> None:
    write(program, '[server]\nport = 9001\nlog_level = "debug"\n[storage]\ndata_dir = "there"\n')
    program.environ = {"SERVICE_GATEWAY_PORT": "9002"}
    assert listed(program, "server.port") == ("9002", "environment")
    assert listed(program, "server.log_level") == ("debug", "file")
    assert listed(program, "storage.data_dir") == (str(program.data_dir), "environment")


def test_another_file_is_named_by_a_variable_or_none_is_used(program: Program, tmp_path: Path) -> None:
    write(program, "[server]\nport = 9001\n")
    (tmp_path / "other.toml").write_text("[server]\nport = 9003\n")
    program.environ = {"SERVICE_CONFIG_FILE": "other.toml"}
    assert listed(program, "server.port") == ("9003", "file")
    program.environ = {"SERVICE_CONFIG_FILE": ""}
    assert listed(program, "server.port") == ("8080", "default")
    program.environ = {"SERVICE_CONFIG_FILE": "missing.toml"}
    done = program("config")
    assert done.code != 0
    assert f"{tmp_path / 'missing.toml'} cannot be read: No such file" in done.err


def test_keys_stand_in_the_file_by_the_names_of_their_variables(program: Program) -> None:
    write(program, '[environment]\nSERVICE_API_KEY_CI = "key-5d20c1:agent:read,write"\n')
    (key,) = program("config", "--json").json["keys"]
    assert (key["name"], key["role"], key["permissions"]) == ("ci", "agent", ["read", "write"])
    assert "5d20c1" not in program("config").out


@requirement("http.config-file")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1\n", "unknown setting `server.prot`; did you mean `server.port`?"),
        ("[server]\ndata_dir = 'x'\n", "unknown setting `server.data_dir`; did you mean `storage.data_dir`?"),
        ("port = 1\n", "`port` must be in a table, such as `[server]`; did you mean `server.port`"),
        ("[sever]\nport = 1\n", "unknown table `[sever]`; did you mean `[server]`?"),
        ("[zzz]\nport = 1\n", "unknown table `[zzz]`; the tables are storage, server,"),
        ("[server]\nport = {}\n", "`server.port` must be a text, a number, true or false, or a list of texts."),
        ("[server]\nport = 'x'\n", "`server.port` must be a whole number from 0 to 65535 (it is 'x')"),
        (
            "[dashboard]\nport = 'eightyone'\n",
            "`dashboard.port` must be a whole number from 0 to 65535 (it is 'eightyone')",
        ),
        ("[llm]\nretries = 1.5\n", "`llm.retries` must be a whole number from 0 to 10 (it is '1.5')"),
        ("[server]\nrate_limit = -1\n", "`server.rate_limit` must be a whole number from 0 to 1000000000 (it is '-1')"),
        ("[server\n", "is not valid TOML"),
        ("[environment]\nPATH = '/tmp'\n", "`PATH` in `[environment]` is not a variable that Stentor reads."),
        ('[llm]\nredact = ["emials"]\n', "`llm.redact` may contain only emails, cards (it is 'emials')."),
        ("[server]\nport = 0\n[llm]\nbudgets = 'key:*:usd=20'\n", "sets SERVICE_LLM_BUDGETS as `llm.budgets`."),
        ("[server]\nport = 0\n[llm]\nopenai_url = 'example'\n", "sets OPENAI_BASE_URL as `llm.openai_url`."),
        ("[server]\nhost = '999.1.1.1'\n", "sets SERVICE_HOST as `server.host`."),
        ("[tls]\ncert = 'a'\n[llm]\nretries = 2\n", "sets SERVICE_TLS_CERT as `tls.cert`."),
    ],
)
def test_a_mistake_in_the_file_is_named(program: Program, text: str, message: str) -> None:
    path = write(program, text)
    done = program("serve")
    assert done.code == 3
    assert message in done.err
    assert str(path) in done.err
    assert "Traceback" not in done.err


def test_a_file_of_bytes_that_are_no_text_is_an_error(program: Program) -> None:
    path = write(program, "")
    path.write_bytes(b"\xff\xfe[server]")
    done = program("serve")
    assert (done.code, "is not valid TOML" in done.err) == (3, True)


@requirement("http.config-file")
def test_a_byte_order_mark_that_editors_on_windows_write_is_no_part_of_the_text(program: Program) -> None:
    write(program, "\ufeff[server]\r\nport = 9000\r\n")
    assert listed(program, "server.port") == ("9000", "file")


def test_doctor_warns_of_secrets_that_others_can_read(program: Program) -> None:
    path = write(program, "[llm]\nopenai_key = 'sk-1f00'\n")
    path.chmod(0o644)
    checks = {check["check"]: check for check in program("doctor", "--json").json["checks"]}
    assert checks["stentor.toml"]["level"] == "warning"
    assert f"chmod 600 {path}" in checks["stentor.toml"]["message"]
    assert "sk-1f00" not in checks["stentor.toml"]["message"]
    path.chmod(0o600)
    checks = {check["check"]: check for check in program("doctor", "--json").json["checks"]}
    assert checks["stentor.toml"]["level"] == "ok"
