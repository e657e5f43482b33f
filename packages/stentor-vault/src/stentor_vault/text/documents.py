"""Notes as documents: parsing into content, frontmatter, title and tags, and editing with minimal changes. Pure.

Tags follow Obsidian's rules: in the text and in the frontmatter, nested with `/`.
The frontmatter's syntax is handled by `notes.frontmatter`.
"""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from stentor_vault.errors import InvalidRequest
from stentor_vault.jsontext import JsonObject
from stentor_vault.notes import frontmatter
from stentor_vault.notes.frontmatter import BOM, InvalidFrontmatter, NoteParts
from stentor_vault.text import markdown

_KEY = re.compile(r"(?:[ \t]*+(?:#[^\r\n]*+)?[\r\n]++)*+\w[\w-]*:(?:\s|\Z)")
"""The beginning of a frontmatter block that is a mapping, or else invalid YAML.

Possessive: else the time would be exponential in the number of empty lines.
"""
_TAG_SEPARATOR = re.compile(r"[,\s]+")
_ALIAS_SEPARATOR = re.compile(r"[,\n]")
MAX_TAG_CHARS = 200
MAX_TAGS = 1_000
"""Tags of one note, the first ones."""
MAX_LEVELS = 20
"""Levels of a tag that have tags of their own: `a/b/c` has three."""
# A fence may stand in a quote or an item of a list.
_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}+(?!.*`)|~{3,})")
_NO_PROSE = re.compile(
    r"(?<!`)`++[^`\n]+`++"  # code
    r"|\[\[[^\[\]\n]{1,2000}\]\]"  # a link, whose heading begins with `#`
    r"|\]\([^()\n]{1,2000}\)"
    r"|\w{2,10}://\S{1,2000}"
)
# Any character that does not end a tag, so that scripts with combining marks and emoji stay complete.
_TAG = re.compile(
    r"(?<![\w/#&])#([^\s\u2000-\u206f\u2e00-\u2e7f\u3000-\u303f\uff01-\uff0f\uff1a-\uff20"
    r"'!\"#$%&()*+,.:;<=>?@^`{|}~\[\]\\]+)"
)
_NUMBER = re.compile(r"[\d_/-]*\Z")


class NoteDocument(msgspec.Struct, frozen=True):
    """A parsed note. `problem` is why its frontmatter could not be read; `content` is set nevertheless."""

    path: str
    content: str
    frontmatter: JsonObject
    problem: str | None = None

    @property
    def content_hash(self) -> str:
        """SHA-256 of the content without frontmatter, in hex."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    @property
    def title(self) -> str:
        """The frontmatter's title, else the first level-1 heading, else the file's name."""
        title = self.frontmatter.get("title")
        if isinstance(title, str) and title.strip():
            return title.strip()
        return markdown.find_title(self.content) or self.path.rpartition("/")[2].removesuffix(".md")

    @property
    def tags(self) -> list[str]:
        """The tags without `#` and duplicates: those of the frontmatter, a list or a text, and those in a note's text.

        `#` in code or a link is not a tag, nor is it in a file that is not Markdown.
        """
        inline = find_tags(self.content) if self.path.lower().endswith(".md") else []
        return clean_tags([*self._list("tags", _TAG_SEPARATOR), *inline])

    @property
    def aliases(self) -> list[str]:
        """The other names in the frontmatter, a list or a text with commas."""
        return [name for alias in self._list("aliases", _ALIAS_SEPARATOR) if (name := alias.strip())]

    def _list(self, key: str, separator: re.Pattern[str]) -> list[str]:
        value = self.frontmatter.get(key, [])
        items = separator.split(value) if isinstance(value, str) else value if isinstance(value, list) else []
        return [item for item in items if isinstance(item, str)]

    @property
    def hebbian_weights(self) -> dict[str, float]:
        """Agent ids to Hebbian weights; values that are not finite numbers of a float's range are left out."""
        value = self.frontmatter.get("hebbian_weights")
        pairs = value.items() if isinstance(value, dict) else ()
        numbers = ((k, v) for k, v in pairs if isinstance(v, int | float) and not isinstance(v, bool))
        return {k: float(v) for k, v in numbers if abs(v) <= sys.float_info.max}


def parse_document(path: str, raw: bytes) -> NoteDocument | None:
    """Parse a file; return None if it is not text."""
    if b"\0" in raw:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    parts = frontmatter.split(text)
    try:
        return NoteDocument(path, parts.body, frontmatter.parse_values(parts))
    except InvalidFrontmatter as error:
        if error.is_not_mapping:
            # Text between two `---` lines at the beginning, not frontmatter: it belongs to the content.
            return NoteDocument(path, frontmatter.body_only(text).body, {})
        return NoteDocument(path, parts.body, {}, error.message)


def edit_document(
    raw: bytes | None, content: str | None, values: Mapping[str, Any] | None, *, replace_frontmatter: bool
) -> bytes:
    """Return the file `raw` (None: a new file) with new content or frontmatter. Other bytes are unchanged.

    None leaves the content or the frontmatter unchanged. The values are merged into the frontmatter, or replace it with
    `replace_frontmatter`. Without values, a frontmatter block at the beginning of the content supplies them; with
    values, such a block is plain text. A byte order mark belongs to the file. Raises InvalidFrontmatter if the
    frontmatter cannot be edited, InvalidRequest if the file or the result is not text.
    """
    text = _decode(raw or b"")
    bom = _bom(text, content or "")
    body = None if content is None else content.removeprefix(BOM)
    if content is not None and values is None and (content_values := _read_values(content)):
        if _split(text).block is None:
            return _encode(f"{bom}{body}")
        # The body after a block is taken literally, including a byte order mark.
        values, body = content_values, frontmatter.split(content).body
    if values is not None:
        text = _replace_values(text, values, replace_all=replace_frontmatter)
    return _encode(text if body is None else _replace_body(text, body, bom))


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The file is not UTF-8 text, so it cannot be edited as a document.") from None


def _encode(text: str) -> bytes:
    if "\0" in text:
        raise InvalidRequest("document.content: must not contain the character NUL.")
    return text.encode()


def _split(text: str) -> NoteParts:
    """Split a file; text between two `---` lines that is not a mapping belongs to the body."""
    parts = frontmatter.split(text)
    if _KEY.match(parts.block or ""):
        return parts  # the usual case, without the millisecond that YAML takes
    try:
        frontmatter.parse_values(parts)
    except InvalidFrontmatter as error:
        if error.is_not_mapping:
            return frontmatter.body_only(text)
    return parts


def _read_values(content: str) -> JsonObject:
    """Return the frontmatter at the beginning of a content; empty if there is none or it is invalid."""
    try:
        return frontmatter.read(content)
    except InvalidFrontmatter:
        return {}


def _replace_values(text: str, values: Mapping[str, Any], *, replace_all: bool) -> str:
    parts = _split(text)
    if parts.block is None:
        return frontmatter.edit(frontmatter.escape_body(text), values) if values else text
    removed = frozenset(frontmatter.parse_values(parts)) - frozenset(values) if replace_all else frozenset[str]()
    edited = frontmatter.edit(text, values, removed)
    return edited if values or not removed else _drop_empty_block(edited)


def _drop_empty_block(text: str) -> str:
    """Return a file without its frontmatter block if that has no line, or only blank ones; with comments it stays."""
    parts = frontmatter.split(text)
    if parts.block is None or parts.block.strip():
        return text
    return frontmatter.escape_body(f"{_bom(parts.opening)}{parts.body}")


def _replace_body(text: str, body: str, bom: str) -> str:
    """Replace the body; if its beginning would be read as frontmatter, an empty block before it prevents that."""
    parts = _split(text)
    closing = parts.closing
    if body and closing and not closing.endswith(("\n", "\r")):
        closing += parts.newline
    joined = f"{bom}{parts.opening.removeprefix(BOM)}{parts.block or ''}{closing}{body}"
    return joined if parts.block is not None or _split(joined).block is None else frontmatter.escape_body(joined)


def _bom(*texts: str) -> str:
    """Return the byte order mark if one of the texts begins with it."""
    return BOM if any(text.startswith(BOM) for text in texts) else ""


def find_tags(text: str) -> list[str]:
    """Return the tags in the text of a note, in order and without `#`; without numbers, code and links."""
    if "#" not in text:
        return []
    lines = markdown.iter_lines(text, keepends=True, fence_pattern=_FENCE)
    prose = "".join(line for line, is_code in lines if not is_code)
    found = _TAG.findall(_NO_PROSE.sub(" ", prose))
    return [tag for tag in found if not _NUMBER.match(tag)]


def clean_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags composed to NFC, without `#` before them, duplicates and those that are too long."""
    # The length first: composing takes quadratic time in the length of a run of accents.
    short = (tag for tag in tags if len(tag) <= MAX_TAG_CHARS)
    cleaned = (unicodedata.normalize("NFC", tag.strip().lstrip("#").strip("/")) for tag in short)
    return list(islice(dict.fromkeys(filter(None, cleaned)), MAX_TAGS))


def with_parents(tags: Iterable[str]) -> list[str]:
    """Return the tags, each after those that it is below: `a/b` is a tag of `a`."""
    return list(dict.fromkeys(name for tag in tags for name in _list_levels(tag)))


def _list_levels(tag: str) -> Iterator[str]:
    parts = tag.split("/", MAX_LEVELS)
    return ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
