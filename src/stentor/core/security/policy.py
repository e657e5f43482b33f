"""The operator's policy file: Cedar policies that restrict what the built-in rules allow, and never extend it.

It is consulted only after the built-in rules allowed a request. A `forbid` denies. If the file has a `permit` for an
action, it denies whatever no permit allows for that action; otherwise everything not forbidden stays allowed. Fails
closed: an invalid file stops the start, and a request that cannot be evaluated is denied.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from stentor.core.errors import StartRefused
from stentor.core.jsontext import JsonObject

LARGEST_DECIMAL = 1e9
DEFAULT_ID = "built-in rules"
log = logging.getLogger(__name__)


class PolicyInvalid(StartRefused):
    """The policy file is not valid."""

    code = "POLICY_INVALID"


class PolicyEntity(msgspec.Struct, frozen=True):
    """A principal or resource of a request; CEDAR_SCHEMA has the types and attributes."""

    type: str
    id: str
    attributes: JsonObject = {}


class PolicyDecision(msgspec.Struct, frozen=True):
    """A decision. `reasons` name the policies that decided, or why the request could not be evaluated: `failed`."""

    allowed: bool
    reasons: tuple[str, ...]
    failed: bool = False


class PolicySource(msgspec.Struct, frozen=True):
    """One policy of the file, and the line (from 1) on which it begins."""

    line: int
    text: str


class PolicySet:
    """A parsed policy file."""

    def __init__(self, text: str, where: str = "the policy") -> None:
        """Raises PolicyInvalid with line and reason; `where` names the file in it."""
        self._cedar = _import_cedar()
        self._names, self.actions = _validate(self._cedar, text, where)
        # Cedar denies by default: an action without a permit of its own gets one for everything.
        unpermitted = [action for action in ACTION_TYPES if action not in self.actions["permit"]]
        permits = "\n".join(f'permit(principal, action == Action::"{action}", resource);' for action in unpermitted)
        self._policies = self._cedar.PolicySet.from_str(f"{text}\n{permits}")

    def __len__(self) -> int:
        return len(self._names)

    def covers_action(self, action: str) -> bool:
        """Return whether any policy of the file is about the action."""
        return action in self.actions["permit"] or action in self.actions["forbid"]

    def authorize(
        self,
        action: str,
        principal: PolicyEntity,
        resource: PolicyEntity,
        context: Mapping[str, Any],
        *,
        validate_schema: bool = False,
    ) -> PolicyDecision:
        """Return whether `principal` may do `action` with `resource`. None values in the context are omitted.

        `validate_schema` also checks the request against the schema, which takes 50 % longer.
        """
        if not self.covers_action(action):
            return PolicyDecision(True, ())
        request = {
            "principal": _uid(principal),
            "action": {"type": "Action", "id": action},
            "resource": _uid(resource),
            "context": _values(context),
        }
        entities = [_entity(entity) for entity in (principal, resource) if entity.attributes]
        try:
            schema = CEDAR_SCHEMA if validate_schema else None
            result = self._cedar.is_authorized(request, self._policies, json.dumps(entities), schema)
        except Exception:
            log.exception("policy: evaluation failed action=%s", action)
            return PolicyDecision(False, ("it could not be evaluated",), failed=True)
        errors = tuple(str(error) for error in result.diagnostics.errors)
        if errors:
            log.error("policy: evaluation failed action=%s error=%s", action, "; ".join(errors))
            return PolicyDecision(False, errors, failed=True)
        return PolicyDecision(result.allowed, tuple(self._name(reason) for reason in result.diagnostics.reasons))

    def _name(self, policy_id: str) -> str:
        # Cedar numbers the policies in the order of the text; the permits that were added come last.
        number = int(policy_id.removeprefix("policy"))
        return self._names[number] if number < len(self._names) else DEFAULT_ID


def load_policies(path: Path) -> PolicySet:
    """Read and validate a policy file. Raises PolicyInvalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PolicyInvalid(f"The policy file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise PolicyInvalid(f"The policy file {path} is not valid UTF-8.") from None
    return PolicySet(text, str(path))


def _import_cedar() -> ModuleType:
    # Imported only if a policy file is configured: the compiled engine takes 16 MB.
    return importlib.import_module("cedarpy")


def _validate(cedar: ModuleType, text: str, where: str) -> tuple[list[str], dict[str, set[str]]]:
    """Return the name of each policy, and the actions of all permits and of all forbids. Raises PolicyInvalid."""
    statements = list(split_policies(text))
    try:
        parsed = json.loads(cedar.policies_to_json_str(text))
    except ValueError as error:
        raise _parse_error(cedar, statements, where, error) from None
    if parsed["templates"]:
        raise PolicyInvalid(f"{where}: templates (?principal, ?resource) are not supported; write policies.")
    if errors := cedar.validate_policies(text, CEDAR_SCHEMA).errors:
        reasons = [f"line {_line(statements, error.policy_id)}: {error.error}" for error in errors]
        raise PolicyInvalid(f"{where}, {'; '.join(reasons)}.")
    actions: dict[str, set[str]] = {"permit": set(), "forbid": set()}
    names = []
    for number in range(len(parsed["staticPolicies"])):
        policy, line = parsed["staticPolicies"][f"policy{number}"], _line(statements, f"policy{number}")
        covered = _actions(policy["action"])
        # Cedar accepts unknown names in conditions that never hold: a misspelled name would disable a `forbid`.
        for variable, name in _tested_attributes(policy["conditions"]):
            if not any(name in _attributes(variable, action) for action in covered):
                actions_text = ", ".join(sorted(covered))
                raise PolicyInvalid(f"{where}, line {line}: the schema has no {variable}.{name} for {actions_text}.")
        actions[policy["effect"]] |= covered
        names.append(policy.get("annotations", {}).get("id") or f"line {line}")
    return names, actions


def _tested_attributes(expression: Any) -> Iterator[tuple[str, str]]:
    """Yield the variables and names in what the parsed conditions test with `has`, as in `context has trust`."""
    match expression:
        case {"has": {"left": {"Var": str(variable)}, "attr": str(name)}}:
            yield variable, name
        case dict():
            for part in expression.values():
                yield from _tested_attributes(part)
        case list():
            for part in expression:
                yield from _tested_attributes(part)


def _attributes(variable: str, action: str) -> list[str]:
    """Return the names that the schema gives a variable in the requests of an action."""
    if variable == "action":
        return []
    types = dict(zip(("principal", "resource"), ACTION_TYPES[action], strict=True))
    head = f"entity {types[variable]} = {{" if variable in types else f'action "{action}"'
    declared = CEDAR_SCHEMA.partition(head)[2]
    if variable not in types:
        declared = declared.partition("context: {")[2]
    return re.findall(r"(\w+)\??:", declared.partition("}")[0])


def _actions(scope: JsonObject) -> set[str]:
    """Return the actions of a policy's scope; all actions for a scope without a list."""
    entities = scope.get("entities") or ([scope["entity"]] if "entity" in scope else [])
    return {entity["id"] for entity in entities} & set(ACTION_TYPES) if entities else set(ACTION_TYPES)


def _parse_error(cedar: ModuleType, statements: list[PolicySource], where: str, error: ValueError) -> PolicyInvalid:
    # The engine reports no line, so each policy is parsed by itself to find the first invalid one.
    for statement in statements:
        try:
            cedar.PolicySet.from_str(statement.text)
        except ValueError as reason:
            return PolicyInvalid(f"{where}, in the policy that begins on line {statement.line}: {reason}.")
    return PolicyInvalid(f"{where}, line 1: {error}.")


def _line(statements: list[PolicySource], policy_id: str) -> int:
    number = policy_id.removeprefix("policy")
    return statements[int(number)].line if number.isdigit() and int(number) < len(statements) else 1


def split_policies(text: str) -> Iterator[PolicySource]:
    """Split a text at the semicolons that are outside strings and comments."""
    start: int | None = None
    position = 0
    while position < len(text):
        if text.startswith("//", position):
            line_end = text.find("\n", position)
            position = len(text) if line_end < 0 else line_end
            continue
        if start is None and not text[position].isspace():
            start = position
        if text[position] == '"':
            position = _end_of_string(text, position)
        if text[position : position + 1] == ";" and start is not None:
            yield PolicySource(text.count("\n", 0, start) + 1, text[start : position + 1])
            start = None
        position += 1
    if start is not None:
        yield PolicySource(text.count("\n", 0, start) + 1, text[start:])


def _end_of_string(text: str, start: int) -> int:
    """Return the index of the closing quotation mark of the string that begins at `start`, or the end of the text."""
    position = start + 1
    while position < len(text) and text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    return position


def _uid(entity: PolicyEntity) -> dict[str, str]:
    return {"type": entity.type, "id": entity.id}


def _entity(entity: PolicyEntity) -> JsonObject:
    return {"uid": _uid(entity), "attrs": _values(entity.attributes), "parents": []}


def _values(values: Mapping[str, Any]) -> JsonObject:
    return {name: _decimal(name, v) if name in DECIMAL_FIELDS else v for name, v in values.items() if v is not None}


def _decimal(name: str, value: Any) -> Any:
    """Round to Cedar's four digits on the strict side: scores down, the share of changed lines up."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    # Rounded first, because 0.57 * 10,000 is 5699.999...: floor would drop a digit of the value.
    exact = round(min(LARGEST_DECIMAL, max(-LARGEST_DECIMAL, value)) * 10_000, 6)
    digits = math.ceil(exact) if name == "ratio" else math.floor(exact)
    return {"__extn": {"fn": "decimal", "arg": f"{digits / 10_000:.4f}"}}


CEDAR_SCHEMA = """
entity Agent = {
  name: String, tenant: String, capabilities: Set<String>, trust_tier: String, status: String,
  runtime: String, composite: decimal,
};
entity Principal;
entity TaskType;
entity Tool;
action "route" appliesTo {
  principal: Agent, resource: TaskType,
  context: { required_capabilities: Set<String>, preferred: Bool, trust?: decimal },
};
action "propose_update" appliesTo {
  principal: Principal, resource: Agent,
  context: {
    update_type: String, tier: Long, lines_changed: Long, files_modified: Set<String>, patched_fields: Set<String>,
    trust?: decimal, ratio?: decimal, breaking?: Bool, new_dependencies?: Bool, touches_policy?: Bool,
  },
};
action "use_tool" appliesTo {
  principal: Agent, resource: Tool,
  context: { operation: String, path?: String, host?: String, port?: Long },
};
"""

ACTION_TYPES = {
    "route": ("Agent", "TaskType"),
    "propose_update": ("Principal", "Agent"),
    "use_tool": ("Agent", "Tool"),
}
"""The types of principal and resource by action."""
DECIMAL_FIELDS = frozenset(("trust", "ratio", "composite"))
"""Passed as decimals with four digits, because Cedar has no floats."""
EXAMPLE_AGENT = {
    "name": "agent",
    "tenant": "default",
    "capabilities": [],
    "trust_tier": "monitored",
    "status": "active",
    "runtime": "worker",
    "composite": 0.5,
}
"""Attributes of an agent that an example request may omit."""
