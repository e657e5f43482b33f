"""API keys from the environment, and the key that a first start makes.

Only SHA-256 digests are kept. Source: core contract, "Authentication".
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from stentor.auth.principal import DEFAULT_TENANT, PERMISSIONS, Principal, Role
from stentor.core.errors import StartRefused
from stentor.core.redaction import Redactor
from stentor.core.settings import Settings

PREFIX = "SERVICE_API_KEY_"
WELL_KNOWN = frozenset(
    "test changeme change-me secret password admin default example demo key apikey api-key token sk-1234 "
    "sk-test sk-123456 your-api-key your_api_key my-api-key dev development letmein 123456 12345678 "
    "test-key test-api-key".split()
)
log = logging.getLogger(__name__)


class KeyRing:
    """Digest to principal. Looks at every key on each check, in constant time for each."""

    def __init__(self, principals: Mapping[bytes, Principal], development_admin: Principal | None = None) -> None:
        self._principals = dict(principals)
        self.development_admin = development_admin

    def find(self, key: str) -> Principal | None:
        digest = _digest(key)
        found = None
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    @property
    def principals(self) -> list[Principal]:
        return list(self._principals.values())

    @property
    def tenants(self) -> list[str]:
        return sorted({p.tenant for p in self._principals.values()} | {DEFAULT_TENANT})


class LoadedKeys(msgspec.Struct):
    ring: KeyRing
    made: tuple[str, Path] | None = None
    """The key that this start made and the file it lies in."""
    warnings: list[str] = []


def load(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> LoadedKeys:
    """The keys of this start: SERVICE_API_KEY_*, else MCP_API_KEY, else one in the data folder.

    Raises StartRefused for a publicly known key outside development.
    """
    principals: dict[bytes, Principal] = {}
    warnings: list[str] = []
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        try:
            key, principal = parse(variable, environ[variable])
        except ValueError as error:
            warnings.append(f"{variable} is ignored: {error}.")
            continue
        refuse_well_known(variable, key, settings)
        redactor.add(key)
        principals[_digest(key)] = principal
    made = None
    if not principals and settings.shared_key:
        refuse_well_known("MCP_API_KEY", settings.shared_key, settings)
        redactor.add(settings.shared_key)
        principals[_digest(settings.shared_key)] = _admin("mcp")
    if not principals:
        key, path, fresh = own_key(settings.data_dir, "admin")
        redactor.add(key)
        principals[_digest(key)] = _admin("admin")
        made = (key, path) if fresh else None
    development_admin = _admin("development") if settings.development and settings.skip_auth else None
    return LoadedKeys(KeyRing(principals, development_admin), made, warnings)


def parse(variable: str, value: str) -> tuple[str, Principal]:
    """`<key>:<role>:<perm1,perm2>[:<tenant>]`. Raises ValueError without repeating the value."""
    parts = value.strip().split(":")
    if len(parts) not in (3, 4) or not all(part.strip() for part in parts):
        raise ValueError("its form is not <key>:<role>:<permissions>[:<tenant>]")
    key, role, permissions, *rest = (part.strip() for part in parts)
    granted = frozenset(p.strip() for p in permissions.split(",") if p.strip())
    if role not in ("admin", "agent"):
        raise ValueError("its role is neither admin nor agent")
    if not granted or not granted <= set(PERMISSIONS):
        raise ValueError(f"its permissions are not among {', '.join(PERMISSIONS)}")
    name = variable.removeprefix(PREFIX).lower()
    known_role: Role = "admin" if role == "admin" else "agent"
    return key, Principal(name, known_role, granted, rest[0] if rest else DEFAULT_TENANT)


def key_file(data_dir: Path) -> Path:
    return data_dir / "keys" / "admin.key"


def own_key(data_dir: Path, name: str) -> tuple[str, Path, bool]:
    """The key of this name in the data folder, its file, and whether it was made now; for its owner alone to read."""
    path = data_dir / "keys" / f"{name}.key"
    if path.exists():
        return path.read_text().strip(), path, False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = "st_" + secrets.token_urlsafe(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
    return key, path, True


def refuse_well_known(variable: str, key: str, settings: Settings) -> None:
    """Raises StartRefused for a publicly known key outside development."""
    if key.lower() in WELL_KNOWN and not settings.development:
        raise StartRefused(
            f"{variable} holds a publicly known key. Make a real one, for example with "
            "`python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`, or set NODE_ENV=development."
        )


def _admin(name: str) -> Principal:
    return Principal(name, "admin", frozenset(PERMISSIONS))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
