"""`stentor policy ...`: check a policy file, and evaluate example requests against it. Needs no running service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli import output
from stentor.cli.command import AsJson
from stentor.cli.input_files import parse_json, reading
from stentor.cli.output import EXIT_FAILED, EXIT_USAGE, CommandFailed, console, print_json, report_errors
from stentor.core import settings
from stentor.core.jsontext import JsonObject
from stentor.core.security import policy as policy_files
from stentor.core.security.policy import ACTION_TYPES, EXAMPLE_AGENT, PolicyDecision, PolicyEntity, PolicySet

app = typer.Typer(help="Check a policy file, and test it with example requests.", no_args_is_help=True)
File = Annotated[Path | None, typer.Option("--policy", help="Policy file; default: SERVICE_POLICY_FILE.")]


@app.command()
def check(policy: File = None, as_json: AsJson = False) -> None:
    """Parse a policy file and validate it against the schema, as the service does at startup."""
    with report_errors(as_json=as_json):
        path, rules = _load(policy)
        covered = sorted(rules.actions["permit"] | rules.actions["forbid"])
        if as_json:
            print_json({"policy": str(path), "policies": len(rules), "actions": covered})
        else:
            output.print_line(f"{path}: {len(rules)} policies, actions: {', '.join(covered) or 'none'}.")


@app.command("test")
def ask(
    requests: Annotated[
        Path, typer.Argument(metavar="REQUESTS.json", help="JSON list of requests; see docs/policy.md.")
    ],
    policy: File = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate every request; the exit code is 1 if a decision differs from the expected one."""
    with report_errors(as_json=as_json):
        _, rules = _load(policy)
        results = [_evaluate(rules, number, request) for number, request in enumerate(_read_requests(requests))]
        if as_json:
            print_json({"results": results})
        else:
            columns = ("request", "action", "decision", "expected", "reasons")
            rows = [(r["name"], r["action"], r["decision"], r["expect"], ", ".join(r["reasons"])) for r in results]
            console.print(output.render_table(columns, rows))
        failed = [result["name"] for result in results if result["expect"] not in (None, result["decision"])]
    if failed:
        if not as_json:
            output.print_line(f"{len(failed)} of {len(results)} decisions are not as expected: {', '.join(failed)}.")
        raise typer.Exit(EXIT_FAILED)


def _load(given: Path | None) -> tuple[Path, PolicySet]:
    """Return the path of the policy file and its policies. Raises CommandFailed, PolicyInvalid."""
    path = given or settings.load(os.environ).governance.policy_file
    if path is None:
        raise CommandFailed("No policy file: pass --policy or set SERVICE_POLICY_FILE.", EXIT_USAGE)
    return path, policy_files.load_policies(path)


def _read_requests(file: Path) -> list[JsonObject]:
    with reading(str(file)):
        requests = parse_json(file.read_bytes(), file)
    if not isinstance(requests, list) or not all(isinstance(request, dict) for request in requests):
        raise CommandFailed(f"{file} must contain a list of requests, each an object.", EXIT_USAGE)
    return requests


def _evaluate(rules: PolicySet, number: int, request: JsonObject) -> JsonObject:
    name, expect = str(request.get("name", f"request {number + 1}")), request.get("expect")
    if expect not in (None, "allow", "deny"):
        raise CommandFailed(f"{name}: expect must be allow or deny.", EXIT_USAGE)
    outcome = _decide(rules, name, request)
    decision = "allow" if outcome.allowed else "deny"
    return {
        "name": name,
        "action": request["action"],
        "decision": decision,
        "expect": expect,
        "reasons": list(outcome.reasons),
    }


def _decide(rules: PolicySet, name: str, request: JsonObject) -> PolicyDecision:
    action, context = request.get("action"), request.get("context", {})
    if not isinstance(action, str) or action not in ACTION_TYPES:
        raise CommandFailed(f"{name}: action must be one of {', '.join(ACTION_TYPES)}.", EXIT_USAGE)
    entities = []
    for field, kind in zip(("principal", "resource"), ACTION_TYPES[action], strict=True):
        entity = request.get(field, {})
        if not isinstance(entity, dict):
            raise CommandFailed(f"{name}: {field} must be an object.", EXIT_USAGE)
        attributes = {k: v for k, v in entity.items() if k != "id"}
        # The schema requires all attributes of an agent, and an example should need only the relevant ones.
        defaults = EXAMPLE_AGENT if kind == "Agent" else {}
        entities.append(PolicyEntity(kind, str(entity.get("id", field)), {**defaults, **attributes}))
    if not isinstance(context, dict):
        raise CommandFailed(f"{name}: context must be an object.", EXIT_USAGE)
    return rules.authorize(action, entities[0], entities[1], context, validate_schema=True)
