"""PATCH of one frontmatter key, in the formats that each version of the plugin supports."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import unquote

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tests.vaultplugin.reply import PluginError, PluginRequest

INVALID, AMBIGUOUS, NO_TARGET_TYPE, NO_CONTENT, BAD_FRONTMATTER = 40081, 40084, 40053, 40080, 40005


def parse_patch(request: PluginRequest, version: int) -> tuple[str, Any]:
    """Return (key, value), as this version of the plugin reads the request."""
    if version == 3:
        return _parse_header_format_1(request)  # version 3 ignores Markdown-Patch-Version
    format_version = request.headers.get("markdown-patch-version", "1" if version == 4 else "")
    if "target-type" in request.headers and not format_version:
        raise PluginError(AMBIGUOUS)
    if format_version == "1" and version < 6:
        return _parse_header_format_1(request)
    if format_version not in ("", "2") or version == 4:
        raise PluginError(INVALID)
    return _parse_header_format_2(request, version) if "target-type" in request.headers else _parse_body_format(request)


def _parse_header_format_1(request: PluginRequest) -> tuple[str, Any]:
    if request.headers.get("target-type") != "frontmatter":
        raise PluginError(NO_TARGET_TYPE)
    if request.headers.get("operation") != "replace" or request.headers.get("content-type") != "application/json":
        raise PluginError(NO_CONTENT)
    return unquote(request.headers["target"]), _json(request.body)


def _parse_header_format_2(request: PluginRequest, version: int) -> tuple[str, Any]:
    """An empty text is no content. The plugin does not document null: the stub accepts it in version 5, not in 6."""
    assert not {"target-delimiter", "trim-target-whitespace"} & request.headers.keys()
    key, value = _parse_header_format_1(request)
    if value == "" or (value is None and version >= 6):
        raise PluginError(INVALID)
    return key, value


def _parse_body_format(request: PluginRequest) -> tuple[str, Any]:
    fields = _json(request.body)
    fixed_fields = {"targetType": "frontmatter", "operation": "replace", "createTargetIfMissing": True}
    if not isinstance(fields, dict) or fields.keys() != fixed_fields.keys() | {"target", "value"}:
        raise PluginError(INVALID)
    if any(fields[name] != value for name, value in fixed_fields.items()):
        raise PluginError(INVALID)
    return fields["target"], fields["value"]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise PluginError(40000) from None


def set_key(text: str, key: str, value: Any) -> str:
    """Return the note with the key set; the plugin rewrites the whole frontmatter block."""
    block, body = split_frontmatter(text)
    block[key] = value
    stream = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.dump(block, stream)
    return f"---\n{stream.getvalue()}---\n{body}"


def split_frontmatter(text: str) -> tuple[dict[str, Any], str]:
    if not text.startswith("---\n") or "\n---\n" not in text[3:]:
        return {}, text
    block, _, body = text[4:].partition("---\n") if text[4:].startswith("---\n") else text[4:].partition("\n---\n")
    try:
        return YAML(typ="safe").load(block) or {}, body
    except YAMLError:
        raise PluginError(BAD_FRONTMATTER) from None


def read_frontmatter(text: str) -> dict[str, Any]:
    """Return the frontmatter in the JSON of a note; empty if it is invalid."""
    try:
        return split_frontmatter(text)[0]
    except PluginError:
        return {}
