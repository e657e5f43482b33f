"""API keys from the environment, the key that the first start generates, and the memory access of each key.

Keys made at runtime are in the domain `keys`, which the ring asks for a key that it does not have.

SERVICE_API_KEY_<NAME> defines a key, SERVICE_MEMORY_ACCESS_<NAME> the namespaces that it may access. Only SHA-256
digests of keys stay in memory. Source: core contract, "Authentication".
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from stentor.auth.authority.context import NAMED_VAULT_PREFIX, is_pattern
from stentor.auth.principal import DEFAULT_TENANT, PERMISSIONS, RESERVED_NAMES, Principal, Role
from stentor.core import filesystem
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings

KEY_VARIABLE_PREFIX = "SERVICE_API_KEY_"
ACCESS_VARIABLE_PREFIX = "SERVICE_MEMORY_ACCESS_"
ACCESS_FORM = "<namespace>:r or <namespace>:rw, comma separated"
WELL_KNOWN_KEYS = frozenset(
    "test changeme change-me secret password admin default example demo key apikey api-key token sk-1234 "
    "sk-test sk-123456 your-api-key your_api_key my-api-key dev development letmein 123456 12345678 "
    "test-key test-api-key".split()
)
SHORTEST_KEY = 16
"""Characters of the shortest key that is not reported as one that can be guessed."""
NO_ADMIN_KEY = (
    "No key of SERVICE_API_KEY_* has the permission admin, and the service accepts {} only without such keys. Unless "
    "an admin key was made with `stentor keys create`, add SERVICE_API_KEY_ADMIN=<key>:admin:admin."
)
"""A warning; its field is the path of `admin_key_file`."""
log = logging.getLogger(__name__)


FindStored = Callable[[bytes], Principal | None]
"""Returns the holder of a key or session that was made at runtime, by its SHA-256 digest; None for an unknown one."""


class KeyRing:
    """The known keys, as digests, with their principals. `finders` find the keys and sessions made at runtime."""

    def __init__(self, principals: Mapping[bytes, Principal], development_admin: Principal | None = None) -> None:
        self._principals = dict(principals)
        self.development_admin = development_admin
        self.finders: list[FindStored] = []
        self.find_expiry: Callable[[bytes], int | None] = lambda digest: None
        """Returns the end of a key that was made at runtime, by its digest, in microseconds; None without one."""
        self.catch_up: Callable[[], Awaitable[bool]] | None = None
        """Has the finders read what other processes have just changed; returns whether they did."""

    def find(self, key: str) -> Principal | None:
        """Return the key's principal, or None for an unknown key."""
        digest = digest_key(key)
        match = None
        # No early exit and no dict lookup: the time must not depend on which key matches.
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                match = principal
        # Looked up by digest, which a caller cannot choose, so the time reveals nothing about the keys.
        return match or next(filter(None, (find(digest) for find in self.finders)), None)

    async def find_recent(self, key: str) -> Principal | None:
        """Return the holder of a key, also of a key or session that another process has just created."""
        principal = self.find(key)
        if principal is None and self.catch_up is not None and await self.catch_up():
            return self.find(key)
        return principal

    @property
    def principals(self) -> list[Principal]:
        return list(self._principals.values())

    @property
    def tenants(self) -> list[str]:
        return sorted({p.tenant for p in self._principals.values()} | {DEFAULT_TENANT})


class LoadedKeys(msgspec.Struct):
    """The result of `load_keys`; `warnings` are sentences about ignored variables, for the log."""

    key_ring: KeyRing
    generated: tuple[str, Path] | None = None
    """The key that this start generated, and its file."""
    key_file: Path | None = None
    """The file of the only key; None with keys from the environment."""
    warnings: list[str] = []


def load_keys(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> LoadedKeys:
    """Load the API keys: SERVICE_API_KEY_*, else MCP_API_KEY, else the key file in the data folder.

    A malformed SERVICE_API_KEY_* is ignored with a warning. Raises StartRefused for a publicly known key outside
    development, and if two variables have the same key or name.
    """
    principals: dict[bytes, Principal] = {}
    variables: dict[bytes | str, str] = {}
    warnings: list[str] = []
    for variable in sorted(name for name in environ if name.startswith(KEY_VARIABLE_PREFIX)):
        try:
            key, principal = parse_key_variable(variable, environ[variable])
        except ValueError as error:
            warnings.append(f"{variable} is ignored: {error}.")
            continue
        reject_well_known_key(variable, key, settings)
        redactor.add_secret(key)
        # Otherwise the order of the entries would decide who the caller is and which permissions it has.
        for identity, noun in ((digest_key(key), "key"), (principal.name, "name")):
            if (other := variables.setdefault(identity, variable)) != variable:
                raise StartRefused(f"{other} and {variable} have the same {noun}. Give each a {noun} of its own.")
        if principal.name in RESERVED_NAMES:
            warnings.append(f"{variable}: in the run log {principal.name!r} is the service itself. Use another name.")
        principals[digest_key(key)] = principal
    if principals and not any(principal.may("admin") for principal in principals.values()):
        warnings.append(NO_ADMIN_KEY.format(admin_key_file(settings.storage.data_dir)))
    generated = key_file = None
    if not principals and settings.auth.shared_key:
        reject_well_known_key("MCP_API_KEY", settings.auth.shared_key, settings)
        redactor.add_secret(settings.auth.shared_key)
        principals[digest_key(settings.auth.shared_key)] = _admin("mcp")
    if not principals:
        key, key_file, is_new = ensure_key_file(settings.storage.data_dir, "admin")
        redactor.add_secret(key)
        principals[digest_key(key)] = _admin("admin")
        generated = (key, key_file) if is_new else None
    development_admin = _admin("development") if settings.development and settings.auth.skip_auth else None
    return LoadedKeys(KeyRing(principals, development_admin), generated, key_file, warnings)


def parse_key_variable(variable: str, value: str) -> tuple[str, Principal]:
    """Parse `<key>:<role>:<perm1,perm2>[:<tenant>]`. Raises ValueError, whose text never repeats the value."""
    parts = value.strip().split(":")
    if len(parts) not in (3, 4) or not all(part.strip() for part in parts):
        raise ValueError("expected <key>:<role>:<permissions>[:<tenant>]")
    key, role, permissions, *rest = (part.strip() for part in parts)
    granted = frozenset(p.strip() for p in permissions.split(",") if p.strip())
    if role not in ("admin", "agent"):
        raise ValueError("the role must be admin or agent")
    if not granted or not granted <= set(PERMISSIONS):
        raise ValueError(f"the permissions must be one or more of {', '.join(PERMISSIONS)}")
    name = variable.removeprefix(KEY_VARIABLE_PREFIX).lower()
    known_role: Role = "admin" if role == "admin" else "agent"
    return key, Principal(name, known_role, granted, rest[0] if rest else DEFAULT_TENANT)


def admin_key_file(data_dir: Path) -> Path:
    return data_dir / "keys" / "admin.key"


def ensure_key_file(data_dir: Path, name: str) -> tuple[str, Path, bool]:
    """Return the key of this name from the data folder, its file, and whether it was just generated.

    The file has mode 0600. Raises StartRefused for a file without a key: every request would be rejected.
    """
    path = data_dir / "keys" / f"{name}.key"
    generated = None
    if not path.exists():
        generated = generate_key()
        filesystem.create_once(path, generated)
    try:
        key = path.read_text("utf-8").strip()
    except UnicodeDecodeError:
        key = ""
    if not key:
        raise StartRefused(f"The key file {path} is empty or damaged. Delete it, and the next start makes a new key.")
    return key, path, key == generated


def generate_key() -> str:
    """Return a new random key."""
    return "st_" + secrets.token_urlsafe(32)


def reject_well_known_key(variable: str, key: str, settings: Settings) -> None:
    """Raise StartRefused for a publicly known key, except in development."""
    if key.lower() in WELL_KNOWN_KEYS and not settings.development:
        raise StartRefused(
            f"{variable} holds a publicly known key. Generate a random one, for example with "
            "`python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`, or set NODE_ENV=development."
        )


def _admin(name: str) -> Principal:
    return Principal(name, "admin", frozenset(PERMISSIONS))


def digest_key(key: str) -> bytes:
    """Return the SHA-256 digest of a key; any text has one."""
    # surrogatepass: a key with an unpaired surrogate must be unknown, not an encoding error.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class MemoryAccess(msgspec.Struct, frozen=True):
    """Patterns of the namespaces that a key may access, and the subset that it may write to."""

    namespaces: tuple[str, ...]
    writable: tuple[str, ...]


def load_memory_access(
    environ: Mapping[str, str], keys: Collection[str], vaults: Collection[str], *, skip_unknown: bool = False
) -> dict[str, MemoryAccess]:
    """Return the memory access of each key name that has a SERVICE_MEMORY_ACCESS_* variable.

    `vaults` are the names of SERVICE_VAULTS. Raises StartRefused for a malformed value, an unknown vault, and an
    unknown key unless these are skipped.
    """
    access_by_key: dict[str, MemoryAccess] = {}
    for variable in sorted(name for name in environ if name.startswith(ACCESS_VARIABLE_PREFIX)):
        name = variable.removeprefix(ACCESS_VARIABLE_PREFIX).lower()
        if name not in keys:
            if skip_unknown:
                continue
            raise StartRefused(f"{variable}: no key is named {name!r}. Known keys: {', '.join(sorted(keys))}.")
        try:
            access_by_key[name] = _require_known_vaults(parse_memory_access(environ[variable]), vaults)
        except ValueError as error:
            raise StartRefused(f"{variable}: {error}. Expected {ACCESS_FORM}.") from None
    return access_by_key


def _require_known_vaults(access: MemoryAccess, vaults: Collection[str]) -> MemoryAccess:
    """Raise ValueError for an unknown vault: a mistyped name would otherwise only show as denied requests."""
    if (vault := find_unknown_vault(access.namespaces, vaults)) is not None:
        raise ValueError(f"{vault!r} is not a vault of SERVICE_VAULTS")
    return access


def find_unknown_vault(namespaces: Iterable[str], vaults: Collection[str]) -> str | None:
    """Return the first named vault of the namespaces that is not in `vaults`, such as `vault:archiv`, or None."""
    for vault in (namespace.partition("/")[0] for namespace in namespaces):
        if vault.startswith(NAMED_VAULT_PREFIX) and vault.removeprefix(NAMED_VAULT_PREFIX) not in vaults:
            return vault
    return None


def parse_memory_access(value: str) -> MemoryAccess:
    """Parse ACCESS_FORM; blank text grants nothing. Raises ValueError, which quotes the wrong part."""
    namespaces: list[str] = []
    writable: list[str] = []
    for part in (part.strip() for part in value.split(",")):
        if not part:
            continue
        namespace, _, mode = part.rpartition(":")
        if not is_pattern(namespace):
            raise ValueError(f"{part[:80]!r} does not name a valid namespace")
        if mode not in ("r", "rw"):
            raise ValueError(f"{part[:80]!r} must end with :r or :rw")
        namespaces.append(namespace)
        if mode == "rw":
            writable.append(namespace)
    return MemoryAccess(tuple(namespaces), tuple(writable))
