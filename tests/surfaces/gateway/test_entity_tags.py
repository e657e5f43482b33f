"""The headers If-Match and If-None-Match: lists of entity tags, and the wildcard."""

from __future__ import annotations

import pytest

from stentor_vault.server.entity_tags import ANY_TAG, InvalidEntityTags, parse_entity_tags


@pytest.mark.parametrize(
    ("text", "weak", "tags"),
    [
        (" * ", False, {ANY_TAG}),
        ('"a"', False, {"a"}),
        ("a", False, {"a"}),
        ('"a", , b,', False, {"a", "b"}),
        ('W/"a", "b"', False, {"b"}),
        ('W/"a", "b"', True, {"a", "b"}),
        ('""', False, {""}),
    ],
)
def test_a_list_gives_its_tags_without_quotes(text: str, weak: bool, tags: set[str]) -> None:
    assert parse_entity_tags(text, weak=weak) == tags


@pytest.mark.parametrize("text", ['"*"', 'W/"*"', '"*", "a"'])
def test_a_quoted_asterisk_is_an_ordinary_tag_and_not_the_wildcard(text: str) -> None:
    tags = parse_entity_tags(text, weak=True)
    assert tags
    assert ANY_TAG not in tags


@pytest.mark.parametrize("text", ["", " , ", '"a', "a b", '*, "a"', '"a" "b"'])
def test_anything_else_is_invalid(text: str) -> None:
    with pytest.raises(InvalidEntityTags):
        parse_entity_tags(text, weak=True)
