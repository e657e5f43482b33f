"""PATCH of one frontmatter key, in the formats that each version of the plugin knows."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import unquote

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tests.vaultplugin.reply import Asked, Refused

INVALID, AMBIGUOUS, NO_TARGET_TYPE, NO_CONTENT, BAD_FRONTMATTER = 40081, 40084, 40053, 40080, 40005


def instruction(asked: Asked, version: int) -> tuple[str, Any]:
    """(key, value), as this version of the plugin reads the request."""
    if version == 3:
        return _headers(asked)  # it does not know Markdown-Patch-Version
    chosen = asked.headers.get("markdown-patch-version", "1" if version == 4 else "")
    if "target-type" in asked.headers and not chosen:
        raise Refused(AMBIGUOUS)
    if chosen == "1" and version < 6:
        return _headers(asked)
    if chosen not in ("", "2") or version == 4:
        raise Refused(INVALID)
    return _headers_2(asked, version) if "target-type" in asked.headers else _body(asked)


def _headers(asked: Asked) -> tuple[str, Any]:
    if asked.headers.get("target-type") != "frontmatter":
        raise Refused(NO_TARGET_TYPE)
    if asked.headers.get("operation") != "replace" or asked.headers.get("content-type") != "application/json":
        raise Refused(NO_CONTENT)
    return unquote(asked.headers["target"]), _json(asked.body)


def _headers_2(asked: Asked, version: int) -> tuple[str, Any]:
    """The empty text is no content. Of null little is known, so one version takes it and the other does not."""
    assert not {"target-delimiter", "trim-target-whitespace"} & asked.headers.keys()
    key, value = _headers(asked)
    if value == "" or (value is None and version >= 6):
        raise Refused(INVALID)
    return key, value


def _body(asked: Asked) -> tuple[str, Any]:
    given = _json(asked.body)
    fixed = {"targetType": "frontmatter", "operation": "replace", "createTargetIfMissing": True}
    if not isinstance(given, dict) or given.keys() != fixed.keys() | {"target", "value"}:
        raise Refused(INVALID)
    if any(given[name] != value for name, value in fixed.items()):
        raise Refused(INVALID)
    return given["target"], given["value"]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise Refused(40000) from None


def with_key(text: str, key: str, value: Any) -> str:
    """The note with the key set; the plugin writes the whole block anew."""
    block, body = split(text)
    block[key] = value
    written = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.dump(block, written)
    return f"---\n{written.getvalue()}---\n{body}"


def split(text: str) -> tuple[dict[str, Any], str]:
    if not text.startswith("---\n") or "\n---\n" not in text[3:]:
        return {}, text
    block, _, body = text[4:].partition("---\n") if text[4:].startswith("---\n") else text[4:].partition("\n---\n")
    try:
        return YAML(typ="safe").load(block) or {}, body
    except YAMLError:
        raise Refused(BAD_FRONTMATTER) from None


def known(text: str) -> dict[str, Any]:
    """The frontmatter as the plugin describes a note; empty when it cannot be read."""
    try:
        return split(text)[0]
    except Refused:
        return {}
