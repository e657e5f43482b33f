"""API keys from the environment, from MCP_API_KEY, or made in the data folder."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from stentor.auth.api_keys import LoadedKeys, admin_key_file, load_keys, parse_key_variable
from stentor.core import settings
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import RedactingFormatter, Redactor
from tests.requirements import requirement


def loaded(tmp_path: Path, **environ: str) -> LoadedKeys:
    chosen = settings.load({"SERVICE_DATA_DIR": str(tmp_path), **environ})
    return load_keys(chosen, environ, Redactor())


@requirement("http.auth-keys-from-environment", "http.auth-tenant-part")
@pytest.mark.parametrize(
    ("value", "role", "permissions", "tenant"),
    [
        ("k:admin:read,write,delete,admin", "admin", {"read", "write", "delete", "admin"}, "default"),
        (" k : agent : read , write ", "agent", {"read", "write"}, "default"),
        ("k:agent:read:north", "agent", {"read"}, "north"),
    ],
)
def test_a_key_has_a_role_permissions_and_a_tenant(value: str, role: str, permissions: set[str], tenant: str) -> None:
    key, principal = parse_key_variable("SERVICE_API_KEY_BUILD_BOT", value)
    assert (key, principal.name, principal.role) == ("k", "build_bot", role)
    assert (set(principal.permissions), principal.tenant) == (permissions, tenant)


@requirement("http.auth-keys-from-environment")
@pytest.mark.parametrize(
    "value",
    ["", "k", "k:admin", "k:root:read", "k:admin:fly", "k:admin:", ":admin:read", "k:admin:read:", "k:admin:read:t:x"],
)
def test_a_malformed_key_is_passed_over_with_a_warning_that_does_not_repeat_it(tmp_path: Path, value: str) -> None:
    found = loaded(tmp_path, SERVICE_API_KEY_BAD=value.replace("k", "sekret"), SERVICE_API_KEY_GOOD="good:admin:admin")
    assert [p.name for p in found.key_ring.principals] == ["good"]
    (warning,) = found.warnings
    assert "SERVICE_API_KEY_BAD" in warning
    assert "sekret" not in warning


@requirement("http.auth-keys-from-environment")
def test_a_start_warns_when_no_key_of_the_environment_is_an_admins(tmp_path: Path) -> None:
    (warning,) = loaded(tmp_path, SERVICE_API_KEY_CI="good-71c:agent:read,write").warnings
    assert f"accepts {admin_key_file(tmp_path)} only without such keys" in warning
    both = loaded(tmp_path, SERVICE_API_KEY_CI="good-71c:agent:read,write", SERVICE_API_KEY_B="other-71c:admin:admin")
    assert not both.warnings


@requirement("http.auth-fallback-key")
def test_the_fallback_key_is_an_admin_only_when_no_other_key_loads(tmp_path: Path) -> None:
    alone = loaded(tmp_path, MCP_API_KEY="fallback-71c", SERVICE_API_KEY_BAD="nonsense").key_ring.find("fallback-71c")
    assert alone is not None
    assert (alone.role, alone.may("admin"), alone.may("delete")) == ("admin", True, True)
    both = loaded(tmp_path, MCP_API_KEY="fallback-71c", SERVICE_API_KEY_A="good-71c:agent:read")
    assert both.key_ring.find("fallback-71c") is None
    assert both.key_ring.find("good-71c") is not None


def test_without_any_key_one_is_made_and_kept_for_its_owner_only(tmp_path: Path) -> None:
    first = loaded(tmp_path)
    assert first.generated is not None
    key, path = first.generated
    assert path == admin_key_file(tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    second = loaded(tmp_path)
    assert (second.generated, second.key_file) == (None, path)
    assert loaded(tmp_path, MCP_API_KEY="fallback-71c").key_file is None, "the key in the file is unknown then"
    for found in (first, second):
        principal = found.key_ring.find(key)
        assert principal is not None
        assert principal.may("admin")


@requirement("http.auth-key-file")
@pytest.mark.parametrize("content", [b"\n", b"st_\xff\xfe"], ids=["empty", "not-text"])
def test_a_key_file_without_a_key_stops_the_start_and_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = admin_key_file(tmp_path)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StartRefused, match="Delete it") as refused:
        loaded(tmp_path)
    assert str(path) in refused.value.message
    path.unlink()
    assert loaded(tmp_path).generated is not None


@requirement("http.auth-key-file")
def test_a_full_disk_leaves_no_empty_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space"):
            loaded(tmp_path)
    assert not list(tmp_path.rglob("*.key*"))
    assert loaded(tmp_path).generated is not None


@requirement("http.auth-keys-from-environment")
@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"SERVICE_API_KEY_A": "same-71c:admin:admin", "SERVICE_API_KEY_B": "same-71c:agent:read"}, "the same key"),
        ({"SERVICE_API_KEY_A": "one-71c:admin:admin", "SERVICE_API_KEY_a": "two-71c:agent:read"}, "the same name"),
    ],
    ids=["key", "name"],
)
def test_two_variables_with_one_key_or_name_stop_the_start(tmp_path: Path, environ: dict[str, str], named: str) -> None:
    with pytest.raises(StartRefused, match=named) as refused:
        loaded(tmp_path, **environ)
    assert all(variable in refused.value.message for variable in environ)
    assert "71c" not in refused.value.message


@requirement("http.auth-keys-from-environment")
def test_a_key_with_a_name_of_the_service_is_warned_of(tmp_path: Path) -> None:
    (warning,) = loaded(tmp_path, SERVICE_API_KEY_SYSTEM="good-71c:admin:admin").warnings
    assert "'system' is the service itself" in warning


@requirement("http.auth-unsafe-start-refused")
@pytest.mark.parametrize(
    "environ", [{"MCP_API_KEY": "changeme"}, {"SERVICE_API_KEY_A": "ChangeMe:admin:read"}], ids=str
)
def test_a_publicly_known_key_stops_the_start_outside_development(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(StartRefused, match="publicly known"):
        loaded(tmp_path, **environ)
    assert loaded(tmp_path, **environ, NODE_ENV="development").key_ring.find(next(iter(environ.values())).split(":")[0])


@requirement("http.auth-skip-in-development")
@pytest.mark.parametrize(
    ("environ", "skips"),
    [
        ({"NODE_ENV": "development", "SKIP_AUTH": "true"}, True),
        ({"NODE_ENV": "development", "SKIP_AUTH": "false"}, False),
        ({"NODE_ENV": "production", "SKIP_AUTH": "true"}, False),
        ({"SKIP_AUTH": "true"}, False),
    ],
    ids=str,
)
def test_authentication_is_skipped_in_development_only(tmp_path: Path, environ: dict[str, Any], skips: bool) -> None:
    found = loaded(tmp_path, SERVICE_API_KEY_A="good-71c:agent:read", **environ)
    assert (found.key_ring.development_admin is not None) is skips


@pytest.mark.parametrize("key", ["", "good-71", "good-71c ", "GOOD-71C", "good-71c\ud800", "x" * 10_000])
def test_a_key_is_found_only_whole_and_exact(tmp_path: Path, key: str) -> None:
    ring = loaded(tmp_path, SERVICE_API_KEY_A="good-71c:agent:read").key_ring
    assert ring.find(key) is None
    assert ring.find("good-71c") is not None


def test_secrets_are_known_to_the_redactor(tmp_path: Path) -> None:
    redactor = Redactor()
    environ = {"SERVICE_DATA_DIR": str(tmp_path), "SERVICE_API_KEY_A": "good-71c:agent:read"}
    load_keys(settings.load(environ), environ, redactor)
    assert "good-71c" not in redactor.redact("the key good-71c")


@pytest.mark.parametrize("secret", ["st_" + "aB3_-" * 8, "whsec_" + "aB3+" * 8])
def test_a_key_that_was_made_at_runtime_is_masked_by_its_shape(secret: str) -> None:
    assert Redactor().redact(f"path='/api/v1/tasks/{secret}'") == "path='/api/v1/tasks/[redacted]'"
    assert Redactor().redact("the file test_of_a_very_long_name_of_a_module") == (
        "the file test_of_a_very_long_name_of_a_module"
    )


@pytest.mark.parametrize("secret", ["st_" + "aB3_-" * 8, "whsec_" + "aB3+" * 8])
def test_a_key_that_was_made_at_runtime_is_masked_as_a_whole_after_another_key(secret: str) -> None:
    assert "aB3" not in Redactor().redact(f"key=sk-abc123def456ghi789-{secret}.")


def test_no_text_in_a_message_or_an_error_begins_a_line_of_the_log() -> None:
    forged = "no\r\n2026-11-28 10:00:00,000 WARNING stentor: forged\u2028x"
    try:
        raise ValueError(forged)
    except ValueError:
        record = logging.LogRecord("stentor", logging.WARNING, "", 1, "failed: %s", (forged,), sys.exc_info())
    first, *rest = RedactingFormatter(Redactor()).format(record).splitlines()
    assert first.endswith("WARNING stentor: failed: no")
    assert len(rest) > 4
    assert all(line.startswith("  ") for line in rest)
