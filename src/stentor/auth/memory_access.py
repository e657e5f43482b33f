"""What keys may reach in the governed memory: SERVICE_MEMORY_ACCESS_<NAME>, beside SERVICE_API_KEY_<NAME>."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from stentor.auth.authority.context import NAMED, is_pattern
from stentor.core.errors import StartRefused

PREFIX = "SERVICE_MEMORY_ACCESS_"
FORM = "<namespace>:r or <namespace>:rw, comma separated"


class MemoryAccess(msgspec.Struct, frozen=True):
    """Patterns of the namespaces that a key reaches, and those of them that it may write in."""

    namespaces: tuple[str, ...]
    writable: tuple[str, ...]


def load(environ: Mapping[str, str], keys: Collection[str], vaults: Collection[str]) -> dict[str, MemoryAccess]:
    """Name of a key to what it was given. `vaults` are the names of the named ones. Raises StartRefused for what cannot
    be read, and for a key or a vault that is none."""
    found: dict[str, MemoryAccess] = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        if name not in keys:
            raise StartRefused(f"{variable}: there is no key {name!r}. Known keys: {', '.join(sorted(keys))}.")
        try:
            found[name] = _known(parse(environ[variable]), vaults)
        except ValueError as error:
            raise StartRefused(f"{variable}: {error}. Its form is {FORM}.") from None
    return found


def _known(access: MemoryAccess, vaults: Collection[str]) -> MemoryAccess:
    """Raises ValueError for a vault that there is not: a mistyped one would be denied without a word."""
    if (vault := unknown_vault(access.namespaces, vaults)) is not None:
        raise ValueError(f"{vault!r} is no vault of SERVICE_VAULTS")
    return access


def unknown_vault(namespaces: Iterable[str], vaults: Collection[str]) -> str | None:
    """The first of the namespaces' vaults that is none of these names, such as `vault:archiv`."""
    for vault in (namespace.partition("/")[0] for namespace in namespaces):
        if vault.startswith(NAMED) and vault.removeprefix(NAMED) not in vaults:
            return vault
    return None


def parse(value: str) -> MemoryAccess:
    """Blank text gives nothing. Raises ValueError, which names the part that is wrong."""
    reached: list[str] = []
    writable: list[str] = []
    for part in (part.strip() for part in value.split(",")):
        if not part:
            continue
        namespace, _, mode = part.rpartition(":")
        if not is_pattern(namespace):
            raise ValueError(f"{part[:80]!r} names no namespace")
        if mode not in ("r", "rw"):
            raise ValueError(f"{part[:80]!r} ends with neither :r nor :rw")
        reached.append(namespace)
        if mode == "rw":
            writable.append(namespace)
    return MemoryAccess(tuple(reached), tuple(writable))
