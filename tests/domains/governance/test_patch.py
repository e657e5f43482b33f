"""Merge patches, detection of widened access, and diffs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.jsontext import JsonObject
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
def test_merge_patch_matches_the_rfc_7386_examples(target: Any, change: Any, expected: Any) -> None:
    assert impact.merge_patch(target, change) == expected


def changed_config(**fields: Any) -> AgentConfig:
    return msgspec.structs.replace(CONFIG, **fields)


def config_with_tool(**fields: Any) -> AgentConfig:
    tool = msgspec.structs.replace(TOOL, **fields)
    return changed_config(sandbox_whitelist=SandboxWhitelist((tool,), CONFIG.sandbox_whitelist.network))


def config_with_network(*network: Any) -> AgentConfig:
    return changed_config(sandbox_whitelist=SandboxWhitelist((TOOL,), AllowedNetwork(*network)))


@requirement("governance.widening-is-human")
@pytest.mark.parametrize(
    "wider",
    [
        changed_config(capabilities=("echo", "sum", "delete")),
        changed_config(capabilities=("other",)),
        changed_config(sandbox_whitelist=SandboxWhitelist((TOOL, AllowedTool("shell", (), ("run",))))),
        config_with_tool(operations=("read", "write", "delete")),
        config_with_tool(paths=("notes/**", "etc/**")),
        config_with_tool(paths=()),
        config_with_tool(rate_limit=0),
        config_with_tool(rate_limit=61),
        config_with_tool(name="other"),
        config_with_network(("a.example", "b.example"), (443,)),
        config_with_network(("*.example",), (443,)),
        config_with_network(("a.example",), (443, 22)),
    ],
)
def test_added_access_counts_as_widening(wider: AgentConfig) -> None:
    assert impact.is_widening(CONFIG, wider)


@pytest.mark.parametrize(
    "narrower",
    [
        CONFIG,
        changed_config(capabilities=("sum",)),
        changed_config(capabilities=()),
        changed_config(sandbox_whitelist=SandboxWhitelist()),
        config_with_tool(operations=("read",)),
        config_with_tool(rate_limit=1),
        config_with_network((), (443,)),
        changed_config(runtime=Runtime(options={"a": 1})),
    ],
)
def test_equal_or_reduced_access_is_not_widening(narrower: AgentConfig) -> None:
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
def test_patch_that_does_not_widen_allows_no_denied_access(
    old_whitelist: SandboxWhitelist, new_whitelist: SandboxWhitelist, access: Access
) -> None:
    old_config, new_config = (AgentConfig((), Runtime(), whitelist) for whitelist in (old_whitelist, new_whitelist))
    if not impact.is_widening(old_config, new_config) and isinstance(check_access(new_whitelist, access), AllowedTool):
        assert isinstance(check_access(old_whitelist, access), AllowedTool)


def test_diff_lists_changed_paths_with_old_and_new_values() -> None:
    changes = impact.diff_documents(CONFIG.document, config_with_tool(rate_limit=1).document)
    assert [change["path"] for change in changes] == ["sandbox_whitelist.tools"]
    assert changes[0]["before"][0]["rate_limit"] == 60
    assert changes[0]["after"][0]["rate_limit"] == 1
    assert impact.diff_documents(CONFIG.document, CONFIG.document) == []


@pytest.mark.parametrize(("before", "after"), [({"a": {"x": None}}, {"a": {}}), ({"a": {}}, {"a": {"x": None}})])
def test_a_null_that_is_added_or_removed_is_a_difference(before: JsonObject, after: JsonObject) -> None:
    assert impact.diff_documents(before, after) == [{"path": "a.x", "before": None, "after": None}]
    assert impact.diff_documents(before, before) == []


def test_a_deep_document_is_compared_once_and_not_once_for_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    monkeypatch.setattr(impact.json_diff, "is_same", lambda *values: compared.append(values) or values[0] == values[1])
    before: Any = {"big": [0], "mode": 1}
    after: Any = {"big": [0], "mode": 2}
    for _ in range(80):
        before, after = {"a": before}, {"a": after}
    (change,) = impact.diff_documents(before, after)
    assert (change["path"], change["before"], change["after"]) == ("a." * 80 + "mode", 1, 2)
    assert compared == [([0], [0]), (1, 2)]
