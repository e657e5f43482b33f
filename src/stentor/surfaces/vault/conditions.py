"""`If-Match` and `If-None-Match`: whether a write may go on for what is there now. Pure. Source: RFC 9110, 13.1."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stentor.domains.notes.model import content_hash
from stentor.surfaces.vault.errors import BAD_CONDITION, STALE, Refused
from stentor.web.entity_tags import InvalidEntityTags, parse_entity_tags


class Conditions(msgspec.Struct, frozen=True):
    """The versions that each header names, `*` among them for any; None without the header."""

    match: frozenset[str] | None = None
    none_match: frozenset[str] | None = None

    def check(self, path: str, present: bytes | None) -> None:
        """Raises Refused when the file is not as the caller wants it."""
        version = None if present is None else content_hash(present)
        if self.match is not None and not _holds(self.match, version):
            raise _stale(path, version)
        if self.none_match is not None and _holds(self.none_match, version):
            raise _stale(path, version)


def conditions_of(headers: Mapping[str, str]) -> Conditions:
    """Weak tags never match, and a tag may stand without quotes. Raises Refused for what is no list of tags."""
    return Conditions(_tags(headers, "if-match"), _tags(headers, "if-none-match"))


def tag(version: str) -> str:
    return f'"{version}"'


def _holds(named: frozenset[str], version: str | None) -> bool:
    return version is not None and ("*" in named or version in named)


def _stale(path: str, version: str | None) -> Refused:
    now = "is not there" if version is None else f"is at version {version} now"
    return Refused(STALE, f"{path!r} {now}; read it again.")


def _tags(headers: Mapping[str, str], name: str) -> frozenset[str] | None:
    given = headers.get(name)
    try:
        return None if given is None else parse_entity_tags(given, weak=name != "if-match")
    except InvalidEntityTags as error:
        raise Refused(BAD_CONDITION, f"The header {name} {error}.") from None
