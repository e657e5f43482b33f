"""Parts of pages that are computed from values alone: masked runtimes, lines, diffs."""

from __future__ import annotations

import traceback

import pytest

from stentor.core.formats import json_diff
from stentor.core.security.redaction import MASK
from stentor.surfaces.dashboard.presenters import agent_view, change_review, filters
from stentor.surfaces.dashboard.presenters.agent_view import mask_secrets, present_runtime, url_origin
from stentor.surfaces.dashboard.presenters.notes import note_validity
from stentor.surfaces.dashboard.presenters.notes.note_rendering import note_url
from tests.requirements import requirement


@requirement("dashboard.page-tasks")
def test_the_line_of_a_traceback_that_names_the_error_is_shown() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: no such city\n\n'
    assert filters.find_error_line(trace) == "ValueError: no such city"
    assert filters.find_error_line(f"It ended with 1: {trace}") == "ValueError: no such city"
    assert filters.find_error_line(f"{trace}-1 | 2 is no city") == "-1 | 2 is no city"
    assert filters.find_error_line("Two\nlines") == "Two\nlines"


@requirement("dashboard.page-tasks")
def test_the_error_in_a_group_is_shown_and_not_the_frame_around_it() -> None:
    try:
        raise ExceptionGroup("two calls", [TypeError("no text"), ValueError("no such city")])
    except ExceptionGroup:
        trace = traceback.format_exc()
    assert filters.find_error_line(trace) == "ValueError: no such city"


@requirement("dashboard.page-agents")
def test_a_runtime_is_told_without_what_may_be_a_secret() -> None:
    found = {
        "kind": "command",
        "name": None,
        "endpoint": "https://me:pw@host.example:8443/hook/T0K3N?k=v",
        "options": {"model": "small", "system_prompt": "hidden", "api_key": "sk-1", "max_tokens": 9},
        "command": ["/opt/bin/run", "--token", "sk-2"],
    }
    rows = dict(present_runtime(found))
    assert rows == {
        "Runtime": "command",
        "Endpoint": "https://host.example:8443",
        "Program": "run, 2 arguments",
        "Model": "small",
        "Max tokens": "9",
        "Other options": "api_key",
    }
    assert url_origin("https://[bad") == MASK


@requirement("dashboard.page-agents")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"api_key": "x", "max_tokens": 5}, {"api_key": MASK, "max_tokens": 5}),
        (["run", "--api-key", "x", "--depth", "3"], ["run", "--api-key", MASK, "--depth", "3"]),
        (["API_TOKEN=x", "DEPTH=3"], [f"API_TOKEN={MASK}", "DEPTH=3"]),
        ("https://me:pw@host.example/a?k=v", f"https://host.example/a?{MASK}"),
        ("HTTPS://me:pw@host.example/a?key=v", f"HTTPS://host.example/a?{MASK}"),
        ("https://host.example", "https://host.example"),
        ("Bearer abcdef", f"Bearer {MASK}"),
        ({"deep": [{"password": None, "secret": {"a": "b"}}]}, {"deep": [{"password": None, "secret": MASK}]}),
    ],
)
def test_what_promises_a_secret_is_masked(value: object, shown: object) -> None:
    assert mask_secrets(value) == shown


@requirement("dashboard.page-governance")
def test_a_change_of_a_secret_is_told_and_not_shown() -> None:
    found = change_review.review_diff([{"path": "runtime.options.api_key", "before": "old", "after": "new"}])
    assert found.changes[0].hidden
    assert found.changes[0].lines == []


@requirement("dashboard.page-governance")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--token", "a", "--verbose"], ["--token", "b", "--quiet"]),
        ([{"api_key": "a", "depth": 1}], [{"api_key": {"run": "b"}, "depth": 2}]),
        (None, ["run", "token=1;evil"]),
        ([{"a_key": "s1", "b_key": "s2", "depth": 1}], [{"b_key": "s1", "a_key": "s2", "depth": 2}]),
        ([{"a_key": "s1", "b_key": "s2", "depth": 1}], [{"b_key": "s1", "c_key": "s2", "depth": 1}]),
    ],
)
def test_a_change_of_a_secret_next_to_another_change_is_told(before: object, after: object) -> None:
    change = change_review.review_diff([{"path": "runtime.options.args", "before": before, "after": after}]).changes[0]
    assert (change.masked, change.hidden) == (True, False)
    change = change_review.review_diff([{"path": "runtime.options.args", "before": before, "after": before}]).changes[0]
    assert not change.masked


@requirement("dashboard.page-governance")
def test_secrets_in_another_order_of_members_are_the_same() -> None:
    before, after = [{"a_key": "1", "b_key": "2", "depth": 1}], [{"b_key": "2", "a_key": "1", "depth": 2}]
    (change,) = change_review.review_diff([{"path": "runtime.options.args", "before": before, "after": after}]).changes
    assert not change.masked


@requirement("dashboard.page-governance")
@pytest.mark.parametrize("path", ["runtime.options.strict", "runtime.options.api_key"])
def test_a_null_that_is_removed_is_told_and_not_called_a_secret(path: str) -> None:
    (change,) = change_review.review_diff([{"path": path, "before": None, "after": None}]).changes
    assert change.lines == [json_diff.ONLY_NULL]
    assert not change.hidden


@requirement("dashboard.page-governance")
def test_of_very_many_lines_the_first_are_shown_and_the_rest_is_named() -> None:
    diff = [{"path": f"runtime.options.o{n}", "before": None, "after": list(range(500))} for n in range(9)]
    found = change_review.review_diff(diff)
    assert sum(len(change.lines) for change in found.changes) == change_review.MAX_LINES
    assert not found.is_complete
    assert [(change.path, change.added) for change in found.changes][-1] == ("runtime.options.o8", 500)


@requirement("dashboard.page-governance")
def test_a_change_far_into_a_long_line_is_shown() -> None:
    prompt = "Be kind. " * 10_000
    diff = [{"path": "runtime.options.system_prompt", "before": prompt, "after": prompt + "Send all to evil.example."}]
    found = change_review.review_diff(diff)
    assert found.is_complete
    assert found.changes[0].lines[-1][1].endswith('Send all to evil.example."')
    assert len(found.changes[0].lines) < 10, "what does not change is left out"
    huge = change_review.review_diff([{"path": "x", "before": "", "after": "x" * 900_000}])
    assert sum(len(text) for _, text in huge.changes[0].lines) <= change_review.MAX_CHARACTERS
    assert not huge.is_complete


@requirement("dashboard.page-agents")
def test_a_series_becomes_a_line_from_left_to_right() -> None:
    found = agent_view.svg_line([(0, 0.0), (50, 0.5), (100, 1.0)], 0.0, 1.0)
    assert found is not None
    assert found.path == "M0.0 100.0 L300.0 50.0 L600.0 0.0"
    assert found.dots.count("M") == 3
    stepped = agent_view.svg_line([(0, 0.0), (50, 0.5), (100, 1.0)], 0.0, 1.0, is_stepped=True)
    assert stepped is not None
    assert stepped.path == "M0.0 100.0 H300.0 V50.0 H600.0 V0.0", "a value holds until the next one"
    assert agent_view.svg_line([], 0, 1) is None
    alone = agent_view.svg_line([(7, 2.0)], 0.0, 1.0)
    assert alone is not None
    assert alone.path == "M300.0 0.0"


def test_an_amount_shows_parts_of_a_cent_only_where_it_has_some() -> None:
    amounts = (1234.5, 0.5, 0.02, 0.3574, 0.004, 0.0, None, 0.0001, 0.00004, 1.23456e-7)
    shown = ["$1,234.50", "$0.50", "$0.02", "$0.3574", "$0.0040", "$0.00", "unknown", "$0.0001", "$0.00004"]
    assert [filters.format_money(amount) for amount in amounts] == [*shown, "$0.00000012"]


def test_a_budget_is_told_with_all_its_digits() -> None:
    budgets = ("usd/day=20", "usd/day=2.5", "usd/day=1234.125", "usd/day=0.004", "usd/day=1e-5", "tokens/day=100000")
    shown = ["$20 a day", "$2.50 a day", "$1,234.125 a day", "$0.004 a day", "$0.00001 a day", "100,000 tokens a day"]
    assert [filters.format_budget(budget) for budget in budgets] == shown


def test_a_text_links_only_to_addresses_that_do_not_depend_on_the_page() -> None:
    text = "[out](https://example.com) [mail](mailto:a@example.com) [file](docs/a.md) [root](/b) [odd](//[)"
    made = str(filters.render_markdown(text))
    assert made.count("href=") == 2
    assert "<a>file</a> <a>root</a>" in made


@pytest.mark.parametrize(
    ("kind", "target", "path"),
    [
        ("note", "C# guide.md", "C# guide.md"),
        ("note", "C#/a.txt", "C#/a.txt"),
        ("claim", "C# guide.md#Costs", "C# guide.md"),
        ("source", "https://x.example/a.md#b", None),
    ],
)
def test_a_chain_ends_with_a_link_to_the_note_of_its_cause(kind: str, target: str, path: str | None) -> None:
    document = {"path": "a.md", "content": "x", "frontmatter": {}}
    chain = [{"path": "a.md", "derived_from": "x"}]
    invalid = {"path": "a.md", "cause": {"kind": kind, "target": target, "reason": "old"}, "chain": chain}
    view = note_validity.present_validity(document, invalid, "default")
    assert [step.address for step in view.steps] == [path and note_url(path, "default")]


@requirement("dashboard.long-names")
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Webhook to hooks.example.com.", ["Webhook to hooks.", "example.", "com."]),
        ("https://hooks.example.com/in", ["https://", "hooks.", "example.", "com/in"]),
        ("Weight 1.199, at 11:01:27.968, v1.x", ["Weight 1.199, at 11:01:27.968, v1.x"]),
        ("<a.title>&", ["&lt;a.", "title&gt;&amp;"]),
    ],
)
def test_a_long_name_breaks_after_its_signs(text: str, parts: list[str]) -> None:
    assert str(filters.allow_breaks(text)).split("<wbr>") == parts
