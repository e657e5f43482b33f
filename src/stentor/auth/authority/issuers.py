"""The trusted issuers of receipts, and the tenants for which each may issue.

The built-in issuer may name every tenant: its key is in the data folder with the database, so whoever can use it
can already read every tenant's rows. Other issuers are limited to the tenants that the operator lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joserfc.jwk import OKPKey

from stentor.auth.authority import keys
from stentor.auth.authority.claims import ReceiptError
from stentor.auth.authority.context import is_blank
from stentor.auth.authority.jws import parse_strict_object
from stentor.auth.authority.keys import parse_public_jwk, thumbprint
from stentor.core.errors import StartRefused
from stentor.core.settings import Settings

OWN_ISSUER = "stentor"
"""The name of the built-in issuer."""
MAX_FILE_BYTES = 1_000_000
_WRITABLE_BY_ALL = 0o002


@dataclass(frozen=True)
class Issuer:
    """A trusted issuer. `tenants` is None for the built-in issuer, which may name any tenant."""

    name: str
    key: OKPKey
    tenants: frozenset[str] | None

    def may_issue_for(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


class Issuers:
    """The trusted issuers by key id."""

    def __init__(self, by_kid: Mapping[str, Issuer]) -> None:
        self._by_kid = dict(by_kid)

    def find(self, kid: Any) -> Issuer:
        """Return the issuer of a key id. Raises ReceiptError for an unknown one."""
        issuer = self._by_kid.get(kid) if isinstance(kid, str) else None
        if issuer is None:
            raise ReceiptError("the key id belongs to no trusted issuer")
        return issuer

    @property
    def names(self) -> list[str]:
        """The names of the issuers, each once, sorted."""
        return sorted({issuer.name for issuer in self._by_kid.values()})

    def __len__(self) -> int:
        return len(self._by_kid)


def own_issuer(key: OKPKey) -> Mapping[str, Issuer]:
    """Return the entry of the built-in issuer, without the private part of its key."""
    return {thumbprint(key): Issuer(OWN_ISSUER, OKPKey.import_key(key.as_dict(private=False)), None)}


def load_trusted_issuers(settings: Settings) -> Issuers:
    """Load the configured issuers, and the built-in one if its key exists (none is generated). Raises StartRefused."""
    return load_issuers(settings.auth.authority_issuers, keys.find_signing_key(settings.storage.data_dir))


def load_issuers(path: Path | None, own_key: OKPKey | None) -> Issuers:
    """Merge the issuers of the file with the built-in one. Raises StartRefused, which names the file and the entry."""
    others = read_issuers_file(path) if path is not None else {}
    built_in = own_issuer(own_key) if own_key is not None else {}
    # Otherwise the file could replace the built-in issuer's key, or be silently replaced by it.
    if shared_kids := set(built_in) & set(others):
        raise StartRefused(f"{path}: the entry {min(shared_kids)!r} has the key id of the built-in issuer; rename it.")
    return Issuers({**others, **built_in})


def read_issuers_file(path: Path) -> dict[str, Issuer]:
    """Read a JSON file of the form `{kid: {issuer, key: {kty, crv, x}, tenants: [...]}}`. Raises StartRefused."""
    if path.exists() and not path.is_file():
        raise StartRefused(f"SERVICE_AUTHORITY_ISSUERS: {path} is not a file.")
    try:
        if path.stat().st_mode & _WRITABLE_BY_ALL:
            raise StartRefused(f"{path} lists trusted issuers and is writable by everyone: chmod o-w {path}")
        with path.open("rb") as file:
            # One byte more than allowed, so that a file that is too large is noticed without reading all of it.
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise StartRefused(f"SERVICE_AUTHORITY_ISSUERS: {path} cannot be read: {error.strerror}.") from None
    try:
        return _parse_table(data)
    except ReceiptError as error:
        raise StartRefused(f"SERVICE_AUTHORITY_ISSUERS: {path}: {error}.") from None


def _parse_table(data: bytes) -> dict[str, Issuer]:
    if len(data) > MAX_FILE_BYTES:
        raise ReceiptError(f"the file has more than {MAX_FILE_BYTES} bytes")
    entries = parse_strict_object(data, "it is not a JSON object with unique names")
    table: dict[str, Issuer] = {}
    kid_by_thumbprint: dict[str, str] = {}
    for kid, entry in entries.items():
        table[kid] = issuer = _parse_entry(kid, entry)
        # One key under two names would let a receipt of one issuer pass as one of the other's.
        if (other := kid_by_thumbprint.setdefault(thumbprint(issuer.key), kid)) != kid:
            raise ReceiptError(f"the entries {other!r} and {kid!r} have the same key")
    return table


def _parse_entry(kid: str, entry: Any) -> Issuer:
    try:
        if not isinstance(entry, dict) or set(entry) != {"issuer", "key", "tenants"}:
            raise ReceiptError("it is not an object with exactly issuer, key and tenants")
        if isinstance(entry["key"], dict) and "d" in entry["key"]:
            raise ReceiptError("it holds a private key; generate a new key pair and put only the public key here")
        name = _name(entry["issuer"], "issuer")
        if name == OWN_ISSUER or not _is_name(kid):
            raise ReceiptError(f"its issuer is {OWN_ISSUER!r}, the name of the built-in issuer, or its key id is blank")
        return Issuer(name, parse_public_jwk(entry["key"]), _tenants(entry["tenants"]))
    except ReceiptError as error:
        raise ReceiptError(f"the entry {kid[:100]!r}: {error}") from None


def _tenants(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not value:
        raise ReceiptError("tenants is not a list of one or more tenants (there is no wildcard)")
    return frozenset(_name(tenant, "tenants") for tenant in value)


def _name(value: Any, field: str) -> str:
    if not isinstance(value, str) or not _is_name(value) or value == "*":
        raise ReceiptError(f"{field} is blank, too long, or has unprintable characters")
    return value


def _is_name(text: str) -> bool:
    return not is_blank(text) and text == text.strip() and text.isprintable() and len(text) <= 255
