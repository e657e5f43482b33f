"""The wire form: what is formatted is read again, and nothing in a value or a body forges a tag."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.atp import json_format
from stentor.domains.atp.json_format import read_json_message
from stentor.domains.atp.model import ACTION_TYPES, MODES, PRIORITIES, ZONES, AtpMessage, MessageInvalid
from stentor.domains.atp.text_format import format_message, parse_message, strip_header
from tests.domains.atp.messages import HOSTILE, TAGS, messages
from tests.requirements import requirement

GOOD = "#Mode: direct\n#Context: c\n#Priority: high\n#ActionType: execute\n#TargetZone: kernel\n\n{}"


def flaws(text: str) -> dict[str, str]:
    with pytest.raises(MessageInvalid) as caught:
        parse_message(text)
    assert caught.value.details is not None
    assert caught.value.status == 400
    return dict(caught.value.details["fields"])


@requirement("atp.round-trip")
@given(messages)
def test_parsing_a_formatted_message_gives_that_message_again(message: AtpMessage) -> None:
    text = format_message(message)
    assert parse_message(text) == message
    assert format_message(parse_message(text)) == text


@requirement("atp.wire-form")
@given(messages)
def test_the_wire_form_is_a_tag_per_line_a_blank_line_and_the_body(message: AtpMessage) -> None:
    head, _, body = format_message(message).partition("\n\n")
    assert body == message.content
    expected = 6 if message.header.special_notes else 5
    assert [line.partition(": ")[0] for line in head.split("\n")] == list(TAGS)[:expected]


@requirement("atp.round-trip", "atp.strict-parser")
@given(messages, st.sampled_from(("context", "special_notes")), st.sampled_from(HOSTILE), st.sampled_from(TAGS))
def test_a_value_with_a_line_break_is_refused_and_never_formatted(
    message: AtpMessage, name: str, hostile: str, tag: str
) -> None:
    changes: dict[str, Any] = {name: f"a{hostile}{tag}: critical"}
    header = msgspec.structs.replace(message.header, **changes)
    with pytest.raises(MessageInvalid):
        format_message(msgspec.structs.replace(message, header=header))
    form = json_format.example_message()
    form["header"]["context" if name == "context" else "specialNotes"] = f"a{hostile}{tag}"
    with pytest.raises(MessageInvalid):
        read_json_message(form)


@given(messages, st.sampled_from([char for char in HOSTILE if char != "\n"]), st.integers(min_value=0))
def test_a_hostile_character_anywhere_in_the_head_is_refused(message: AtpMessage, hostile: str, at: int) -> None:
    text = format_message(message)
    place = at % (text.index("\n\n") + 1)
    with pytest.raises(MessageInvalid):
        parse_message(text[:place] + hostile + text[place:])


@given(st.text())
def test_any_text_is_a_message_or_is_refused(text: str) -> None:
    try:
        found = parse_message(text)
    except MessageInvalid:
        return
    assert found.content == text.partition("\n\n")[2]


@requirement("atp.wire-required-tags")
def test_each_required_tag_is_missed_by_name_and_notes_are_not() -> None:
    assert parse_message(GOOD).header.special_notes is None
    lines = GOOD.partition("\n\n")[0].split("\n")
    for line in lines:
        assert flaws(GOOD.replace(line + "\n", "", 1)) == {line.partition(":")[0]: "is required"}
    assert set(flaws("#SpecialNotes: a\n\n")) == set(TAGS[:5])


@requirement("atp.header-values", "atp.action-type-values")
def test_every_value_of_the_contract_is_valid_and_no_other() -> None:
    assert MODES == ("direct", "batch", "stream", "async")
    assert PRIORITIES == ("critical", "high", "normal", "low")
    assert ZONES == ("kernel", "registry", "memory", "sandbox", "governance")
    assert len(set(ACTION_TYPES)) == 19
    for tag, old, values in (
        ("Mode", "direct", MODES),
        ("Priority", "high", PRIORITIES),
        ("TargetZone", "kernel", ZONES),
        ("ActionType", "execute", ACTION_TYPES),
    ):
        for value in values:
            parse_message(GOOD.replace(f"#{tag}: {old}", f"#{tag}: {value}"))
        for value in ("Direct", "", " ", "direct ", "0", "none"):
            assert set(flaws(GOOD.replace(f"#{tag}: {old}", f"#{tag}: {value}"))) == {f"#{tag}"}


@requirement("atp.length-limits")
def test_a_context_of_64_and_notes_of_256_characters_are_the_longest() -> None:
    noted = GOOD.replace("\n\n", "\n#SpecialNotes: x\n\n")
    assert parse_message(noted.replace("#Context: c", "#Context: " + "é" * 64))
    assert parse_message(noted.replace("#SpecialNotes: x", "#SpecialNotes: " + "é" * 256))
    assert "#Context" in flaws(noted.replace("#Context: c", "#Context: " + "c" * 65))
    assert "#SpecialNotes" in flaws(noted.replace("#SpecialNotes: x", "#SpecialNotes: " + "x" * 257))


@requirement("atp.strict-parser")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "text"),
        (GOOD.replace("\n", "\r\n"), "text"),
        ("\ufeff" + GOOD, "text"),
        ("\n" + GOOD, "text"),
        (" " + GOOD, "text"),
        (GOOD.replace("#Mode", "#Tone: x\n#Mode"), "text"),
        (GOOD.replace("#Mode:", "#mode:"), "text"),
        (GOOD.replace("#Mode:", "#Mode"), "text"),
        (GOOD.replace("#Mode: direct", "#Mode: direct\n#Mode: batch"), "#Mode"),
        (GOOD.replace("#Mode: direct", "#Mode: direct\n#SpecialNotes:\n#SpecialNotes: a"), "#SpecialNotes"),
        (GOOD.replace("#Context: c", "#Context: c\0"), "#Context"),
        (GOOD.replace("#Context: c", "#Context: c\u2028#Priority: critical"), "#Context"),
        (GOOD.replace("#Context: c", "#Context:  c"), "#Context"),
        (GOOD.replace("\n\n", "\n \n"), "text"),
        (GOOD + "\0", "body"),
        (GOOD + "\ud800", "body"),
    ],
)
def test_what_two_readers_could_read_differently_is_refused(text: str, where: str) -> None:
    assert where in flaws(text)


@requirement("atp.strict-parser")
def test_tags_after_the_first_blank_line_are_body() -> None:
    body = "#Priority: critical\n#Mode: batch\n\n#Tone: x"
    found = parse_message(GOOD.replace("{}", body))
    assert (found.header.priority, found.content) == ("high", body)


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = "#Mode: loud\n#Context:\n#Priority: urgent\n#Tone: x\n#TargetZone: kernel\n\n\0"
    assert set(flaws(text)) == {"#Mode", "#Context", "#Priority", "#ActionType", "text", "body"}


def test_a_megabyte_of_head_is_refused_in_no_time_and_not_repeated() -> None:
    started = time.process_time()
    for text in ("#Context: " + "x" * 1_000_000 + "\n\n", "#Mode: direct\n" * 80_000 + "\n", "#" * 1_000_000):
        for reason in flaws(text).values():
            assert len(reason) < 300
    assert time.process_time() - started < 1


@given(messages)
def test_what_an_agent_sees_of_a_wire_form_is_its_body_without_the_tags(message: AtpMessage) -> None:
    for text in (format_message(message), " \n" + format_message(message)):
        seen = strip_header(text)
        assert message.content.endswith(seen)
        assert not any(seen.lstrip().startswith(f"{tag}:") for tag in TAGS) or seen == message.content


def test_every_head_is_removed_from_what_an_agent_sees() -> None:
    assert (
        strip_header("#Mode: direct\n\n#Context: a\n\n \n#Priority: low\n\nText\n\n#Mode: a\n") == "Text\n\n#Mode: a\n"
    )
    assert strip_header("#Mode: direct\n\n" * 200_000 + "Text") == "Text"


def test_a_text_without_tags_at_its_head_stays_as_it_is() -> None:
    for text in ("# Heading\n\ntext", "#tag other", "plain", "", "text\n#Mode: direct\n\n", "#Model: x\n\n"):
        assert strip_header(text) == text
