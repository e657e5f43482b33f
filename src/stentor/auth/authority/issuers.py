"""Whose receipts are believed, and for which tenants.

The service's own issuer may name every tenant: its key lies in the data folder beside the database, so who can use
it can read every tenant's rows already. Everybody else is limited to the tenants that the operator lists.
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
"""The name of the service's own issuer."""
MAX_FILE_BYTES = 1_000_000
_WRITABLE_BY_ALL = 0o002


@dataclass(frozen=True)
class Issuer:
    """`tenants` is None for the service itself, which may name any."""

    name: str
    key: OKPKey
    tenants: frozenset[str] | None

    def may_issue_for(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


class Issuers:
    """Key id to issuer."""

    def __init__(self, by_kid: Mapping[str, Issuer]) -> None:
        self._by_kid = dict(by_kid)

    def find(self, kid: Any) -> Issuer:
        """Raises Flaw for a key id that nobody has."""
        issuer = self._by_kid.get(kid) if isinstance(kid, str) else None
        if issuer is None:
            raise ReceiptError("the key id belongs to no trusted issuer")
        return issuer

    @property
    def names(self) -> list[str]:
        """Every issuer once, in the order of the alphabet."""
        return sorted({issuer.name for issuer in self._by_kid.values()})

    def __len__(self) -> int:
        return len(self._by_kid)


def own_issuer(key: OKPKey) -> Mapping[str, Issuer]:
    """The service's own entry. The private half of the key is not kept."""
    return {thumbprint(key): Issuer(OWN_ISSUER, OKPKey.import_key(key.as_dict(private=False)), None)}


def load_trusted_issuers(settings: Settings) -> Issuers:
    """Those of the settings, and the service itself if it ever had a key; none is made. Raises StartRefused."""
    return load_issuers(settings.authority_issuers, keys.find_signing_key(settings.data_dir))


def load_issuers(path: Path | None, own_key: OKPKey | None) -> Issuers:
    """The table of the file and the service's own entry. Raises StartRefused, which names the file and the entry."""
    others = read_issuers_file(path) if path is not None else {}
    ours = own_issuer(own_key) if own_key is not None else {}
    if taken := set(ours) & set(others):
        raise StartRefused(f"{path}: the entry {min(taken)!r} has the key id of the service itself; rename it.")
    return Issuers({**others, **ours})


def read_issuers_file(path: Path) -> dict[str, Issuer]:
    """`{kid: {issuer, key: {kty, crv, x}, tenants: [...]}}`. Raises StartRefused."""
    if path.exists() and not path.is_file():
        raise StartRefused(f"SERVICE_AUTHORITY_ISSUERS: {path} is no file.")
    try:
        if path.stat().st_mode & _WRITABLE_BY_ALL:
            raise StartRefused(f"{path} names whom to trust, and everybody may write it: chmod o-w {path}")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise StartRefused(f"SERVICE_AUTHORITY_ISSUERS: {path} cannot be read: {error.strerror}.") from None
    try:
        return _table(data)
    except ReceiptError as flaw:
        raise StartRefused(f"SERVICE_AUTHORITY_ISSUERS: {path}: {flaw}.") from None


def _table(data: bytes) -> dict[str, Issuer]:
    if len(data) > MAX_FILE_BYTES:
        raise ReceiptError("the file is too large for a table of issuers")
    entries = parse_strict_object(data, "it is not a JSON object in which every name stands once")
    table: dict[str, Issuer] = {}
    users: dict[str, str] = {}
    for kid, entry in entries.items():
        table[kid] = issuer = _entry(kid, entry)
        if (other := users.setdefault(thumbprint(issuer.key), kid)) != kid:
            raise ReceiptError(f"the entries {other!r} and {kid!r} have the same key")
    return table


def _entry(kid: str, entry: Any) -> Issuer:
    try:
        if not isinstance(entry, dict) or set(entry) != {"issuer", "key", "tenants"}:
            raise ReceiptError("it is not an object with exactly issuer, key and tenants")
        if isinstance(entry["key"], dict) and "d" in entry["key"]:
            raise ReceiptError("it holds a private key; make a new one, and write only the public half here")
        name = _name(entry["issuer"], "issuer")
        if name == OWN_ISSUER or not _is_name(kid):
            raise ReceiptError(f"its issuer is {OWN_ISSUER!r}, which is the service itself, or its key id is blank")
        return Issuer(name, parse_public_jwk(entry["key"]), _tenants(entry["tenants"]))
    except ReceiptError as flaw:
        raise ReceiptError(f"the entry {kid[:100]!r}: {flaw}") from None


def _tenants(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not value:
        raise ReceiptError("tenants is not a list of one or more tenants; there is no name for all")
    return frozenset(_name(tenant, "tenants") for tenant in value)


def _name(value: Any, field: str) -> str:
    if not isinstance(value, str) or not _is_name(value) or value == "*":
        raise ReceiptError(f"{field} is blank, too long, or not plain text")
    return value


def _is_name(text: str) -> bool:
    return not is_blank(text) and text == text.strip() and text.isprintable() and len(text) <= 255
