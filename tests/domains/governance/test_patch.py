"""Merge patches, and whether they widen what an agent may do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.governance import impact
from stentor.domains.governance.impact import AgentConfig
from stentor.domains.registry.model import AllowedNetwork, AllowedTool, Runtime, SandboxWhitelist
from stentor.domains.sandbox.model import Access, check_access
from tests.requirements import requirement

RFC_7386: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]
TOOL = AllowedTool("files", ("notes/**",), ("read", "write"), 60)
CONFIG = AgentConfig(("echo", "sum"), Runtime(), SandboxWhitelist((TOOL,), AllowedNetwork(("a.example",), (443,))))


@requirement("governance.agent-patch")
@pytest.mark.parametrize(("target", "change", "expected"), RFC_7386)
def test_the_examples_of_rfc_7386_hold(target: Any, change: Any, expected: Any) -> None:
    assert impact.merge_patch(target, change) == expected


def after(**fields: Any) -> AgentConfig:
    return msgspec.structs.replace(CONFIG, **fields)


def with_tool(**fields: Any) -> AgentConfig:
    tool = msgspec.structs.replace(TOOL, **fields)
    return after(sandbox_whitelist=SandboxWhitelist((tool,), CONFIG.sandbox_whitelist.network))


def with_network(*network: Any) -> AgentConfig:
    return after(sandbox_whitelist=SandboxWhitelist((TOOL,), AllowedNetwork(*network)))


@requirement("governance.widening-is-human")
@pytest.mark.parametrize(
    "wider",
    [
        after(capabilities=("echo", "sum", "delete")),
        after(capabilities=("other",)),
        after(sandbox_whitelist=SandboxWhitelist((TOOL, AllowedTool("shell", (), ("run",))))),
        with_tool(operations=("read", "write", "delete")),
        with_tool(paths=("notes/**", "etc/**")),
        with_tool(paths=()),
        with_tool(rate_limit=0),
        with_tool(rate_limit=61),
        with_tool(name="other"),
        with_network(("a.example", "b.example"), (443,)),
        with_network(("*.example",), (443,)),
        with_network(("a.example",), (443, 22)),
    ],
)
def test_more_of_anything_widens(wider: AgentConfig) -> None:
    assert impact.is_widening(CONFIG, wider)


@pytest.mark.parametrize(
    "narrower",
    [
        CONFIG,
        after(capabilities=("sum",)),
        after(capabilities=()),
        after(sandbox_whitelist=SandboxWhitelist()),
        with_tool(operations=("read",)),
        with_tool(rate_limit=1),
        with_network((), (443,)),
        after(runtime=Runtime(options={"a": 1})),
    ],
)
def test_less_of_anything_does_not(narrower: AgentConfig) -> None:
    assert not impact.is_widening(CONFIG, narrower)


PATHS = st.lists(st.sampled_from(["a/*", "b/*", "/c/*"]), max_size=2).map(tuple)
TOOLS = st.builds(
    AllowedTool,
    st.sampled_from(["files", "shell"]),
    PATHS,
    st.lists(st.sampled_from(["read", "write"]), max_size=2).map(tuple),
    st.sampled_from([0, 1, 60]),
)
WHITELISTS = st.builds(
    SandboxWhitelist,
    st.lists(TOOLS, max_size=3).map(tuple),
    st.builds(
        AllowedNetwork,
        st.lists(st.sampled_from(["x.example", "*.example"]), max_size=2).map(tuple),
        st.lists(st.sampled_from([80, 443]), max_size=2).map(tuple),
    ),
)
ACCESSES = st.builds(
    Access,
    st.sampled_from(["files", "shell"]),
    st.sampled_from(["read", "write"]),
    st.sampled_from([None, "a/x", "b/x", "/c/x"]),
    st.sampled_from([None, "x.example", "y.example"]),
    st.sampled_from([None, 80, 443]),
)


@given(WHITELISTS, WHITELISTS, ACCESSES)
def test_a_patch_that_does_not_widen_allows_nothing_that_was_refused(
    now: SandboxWhitelist, then: SandboxWhitelist, access: Access
) -> None:
    before, afterwards = (AgentConfig((), Runtime(), each) for each in (now, then))
    if not impact.is_widening(before, afterwards) and isinstance(check_access(then, access), AllowedTool):
        assert isinstance(check_access(now, access), AllowedTool)


def test_the_diff_names_each_place_with_what_was_and_what_will_be() -> None:
    found = impact.diff_documents(CONFIG.document, with_tool(rate_limit=1).document)
    assert [change["path"] for change in found] == ["sandbox_whitelist.tools"]
    assert found[0]["before"][0]["rate_limit"] == 60
    assert found[0]["after"][0]["rate_limit"] == 1
    assert impact.diff_documents(CONFIG.document, CONFIG.document) == []
