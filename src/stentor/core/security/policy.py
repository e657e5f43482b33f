"""Policy as data: a Cedar file that narrows what the built-in rules allow, and never widens it.

The built-in rules are asked first; only what they allow is asked here, and a no is final. A `forbid` refuses. A file
that has a `permit` for an action refuses, for that action, what none of its permits allows; without one, all that
is not forbidden stays allowed. Fails closed: a file that cannot be read, parsed or checked against the schema stops the
start, and what cannot be evaluated is refused.

What a policy file can speak of: the entities, the actions and the context of each, as a Cedar schema.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from stentor.core.errors import StartRefused

LARGEST_DECIMAL = 1e9
DEFAULT_ID = "built-in rules"
log = logging.getLogger(__name__)


class PolicyInvalid(StartRefused):
    """The policy file is no policy that this service can go by."""

    code = "POLICY_INVALID"


class PolicyEntity(msgspec.Struct, frozen=True):
    type: str
    id: str
    attributes: dict[str, Any] = {}


class PolicyDecision(msgspec.Struct, frozen=True):
    """`reasons` name the policies that decided, or say why it could not be evaluated."""

    allowed: bool
    reasons: tuple[str, ...]


class PolicySource(msgspec.Struct, frozen=True):
    """One policy of the file with the line (from 1) in which it begins."""

    line: int
    text: str


class PolicySet:
    """A parsed policy file."""

    def __init__(self, text: str, where: str = "the policy") -> None:
        """Raises PolicyInvalid, naming the line and the reason."""
        self._cedar = _cedar()
        self._names, self.actions = _examined(self._cedar, text, where)
        bare = [action for action in ACTION_TYPES if action not in self.actions["permit"]]
        added = "\n".join(f'permit(principal, action == Action::"{action}", resource);' for action in bare)
        self._policies = self._cedar.PolicySet.from_str(f"{text}\n{added}")

    def __len__(self) -> int:
        return len(self._names)

    def covers_action(self, action: str) -> bool:
        """Whether any policy of the file speaks of an action."""
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
        """May `principal` do `action` with `resource`? None in the context is left out.

        With `checked` the request is held against the schema too, which costs half as much again.
        """
        if not self.covers_action(action):
            return PolicyDecision(True, ())
        request = {
            "principal": _uid(principal),
            "action": {"type": "Action", "id": action},
            "resource": _uid(resource),
            "context": _values(context),
        }
        entities = [_entity(one) for one in (principal, resource) if one.attributes]
        try:
            schema = CEDAR_SCHEMA if validate_schema else None
            answer = self._cedar.is_authorized(request, self._policies, json.dumps(entities), schema)
        except Exception:
            log.exception("the policy could not be asked about %s", action)
            return PolicyDecision(False, ("it could not be evaluated",))
        errors = tuple(str(error) for error in answer.diagnostics.errors)
        if errors:
            log.error("the policy could not be evaluated for %s: %s", action, "; ".join(errors))
            return PolicyDecision(False, errors)
        return PolicyDecision(answer.allowed, tuple(self._name(reason) for reason in answer.diagnostics.reasons))

    def _name(self, policy_id: str) -> str:
        number = int(policy_id.removeprefix("policy"))
        return self._names[number] if number < len(self._names) else DEFAULT_ID


def load_policies(path: Path) -> PolicySet:
    """Raises PolicyInvalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PolicyInvalid(f"The policy file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise PolicyInvalid(f"The policy file {path} is not valid UTF-8.") from None
    return PolicySet(text, str(path))


def _cedar() -> ModuleType:
    """A compiled engine of 16 MB: only where a policy is set."""
    return importlib.import_module("cedarpy")


def _examined(cedar: ModuleType, text: str, where: str) -> tuple[list[str], dict[str, set[str]]]:
    """The name of each policy, and the actions that permits and forbids speak of."""
    statements = list(split_policies(text))
    try:
        parsed = json.loads(cedar.policies_to_json_str(text))
    except ValueError as error:
        raise _unparsed(cedar, statements, where, error) from None
    if parsed["templates"]:
        raise PolicyInvalid(f"{where}: templates (?principal, ?resource) have no effect here; write policies.")
    if flaws := cedar.validate_policies(text, CEDAR_SCHEMA).errors:
        told = [f"line {_line(statements, flaw.policy_id)}: {flaw.error}" for flaw in flaws]
        raise PolicyInvalid(f"{where}, {'; '.join(told)}.")
    found: dict[str, set[str]] = {"permit": set(), "forbid": set()}
    names = []
    for number in range(len(parsed["staticPolicies"])):
        one = parsed["staticPolicies"][f"policy{number}"]
        found[one["effect"]] |= _actions(one["action"])
        names.append(one.get("annotations", {}).get("id") or f"line {_line(statements, f'policy{number}')}")
    return names, found


def _actions(scope: dict[str, Any]) -> set[str]:
    """The actions of a policy's scope; what is not understood is all of them."""
    named = scope.get("entities") or ([scope["entity"]] if "entity" in scope else [])
    return {one["id"] for one in named} & set(ACTION_TYPES) if named else set(ACTION_TYPES)


def _unparsed(cedar: ModuleType, statements: list[PolicySource], where: str, error: ValueError) -> PolicyInvalid:
    """The engine names no line: the first policy that does not parse alone has the flaw."""
    for statement in statements:
        try:
            cedar.PolicySet.from_str(statement.text)
        except ValueError as flaw:
            return PolicyInvalid(f"{where}, in the policy that begins in line {statement.line}: {flaw}.")
    return PolicyInvalid(f"{where}, line 1: {error}.")


def _line(statements: list[PolicySource], policy_id: str) -> int:
    number = policy_id.removeprefix("policy")
    return statements[int(number)].line if number.isdigit() and int(number) < len(statements) else 1


def split_policies(text: str) -> Iterator[PolicySource]:
    """The policies of a text: what stands between semicolons that are in no string and no comment."""
    begin: int | None = None
    at = 0
    while at < len(text):
        if text.startswith("//", at):
            at = _end_of(text, "\n", at)
            continue
        if begin is None and not text[at].isspace():
            begin = at
        if text[at] == '"':
            at = _end_of_string(text, at)
        if text[at : at + 1] == ";" and begin is not None:
            yield PolicySource(text.count("\n", 0, begin) + 1, text[begin : at + 1])
            begin = None
        at += 1
    if begin is not None:
        yield PolicySource(text.count("\n", 0, begin) + 1, text[begin:])


def _end_of(text: str, what: str, at: int) -> int:
    found = text.find(what, at)
    return len(text) if found < 0 else found


def _end_of_string(text: str, at: int) -> int:
    """The index of the quotation mark that ends the string which begins at `at`, or the end."""
    at += 1
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at


def _uid(entity: PolicyEntity) -> dict[str, str]:
    return {"type": entity.type, "id": entity.id}


def _entity(entity: PolicyEntity) -> dict[str, Any]:
    return {"uid": _uid(entity), "attrs": _values(entity.attributes), "parents": []}


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _decimal(name, v) if name in DECIMAL_FIELDS else v for name, v in given.items() if v is not None}


def _decimal(name: str, value: Any) -> Any:
    """Four digits, to the strict side: a score is cut, the share that changes is rounded up."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
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
"""Action to the types of its principal and its resource."""
DECIMAL_FIELDS = frozenset(("trust", "ratio", "composite"))
"""Cedar has no floats: these are decimals with four digits."""
EXAMPLE_AGENT = {
    "name": "agent",
    "tenant": "default",
    "capabilities": [],
    "trust_tier": "monitored",
    "status": "active",
    "runtime": "worker",
    "composite": 0.5,
}
"""What an example request need not say of an agent."""
