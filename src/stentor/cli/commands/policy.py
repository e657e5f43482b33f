"""`stentor policy ...`: check a policy file, and ask it example requests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli import output
from stentor.cli.command import AsJson
from stentor.cli.output import EXIT_FAILED, EXIT_USAGE, CommandFailed, console, print_json, report_errors

if TYPE_CHECKING:
    from stentor.core.security.policy import PolicyDecision, PolicySet

app = typer.Typer(help="Check a policy file, and ask it example requests.", no_args_is_help=True)
File = Annotated[Path | None, typer.Option("--policy", help="The policy file; else SERVICE_POLICY_FILE.")]


@app.command()
def check(policy: File = None, as_json: AsJson = False) -> None:
    """Parse the file and hold it against the schema, as the service does when it starts."""
    with report_errors(as_json=as_json):
        where, rules = _load(policy)
        covered = sorted(rules.actions["permit"] | rules.actions["forbid"])
        if as_json:
            print_json({"policy": str(where), "policies": len(rules), "actions": covered})
        else:
            output.print_line(f"{where}: {len(rules)} policies, on {', '.join(covered) or 'nothing'}.")


@app.command("test")
def ask(
    requests: Annotated[Path, typer.Argument(metavar="REQUESTS.json", help="A list of requests; see docs/policy.md.")],
    policy: File = None,
    as_json: AsJson = False,
) -> None:
    """Ask the file every request; one that is answered otherwise than it expects fails the command."""
    with report_errors(as_json=as_json):
        _, rules = _load(policy)
        results = [_result(rules, number, one) for number, one in enumerate(_requests(requests))]
        if as_json:
            print_json({"results": results})
        else:
            columns = ("request", "action", "decision", "expected", "because")
            rows = [(r["name"], r["action"], r["decision"], r["expect"], ", ".join(r["reasons"])) for r in results]
            console.print(output.render_table(columns, rows))
        wrong = [result["name"] for result in results if result["expect"] not in (None, result["decision"])]
    if wrong:
        if not as_json:
            output.print_line(
                f"{len(wrong)} of {len(results)} are decided otherwise than expected: {', '.join(wrong)}."
            )
        raise typer.Exit(EXIT_FAILED)


def _load(given: Path | None) -> tuple[Path, PolicySet]:
    """Raises CommandFailed, PolicyInvalid."""
    # The compiled engine: not for `stentor --help`.
    from stentor.core import settings
    from stentor.core.security import policy as policy_files

    where = given or settings.load(os.environ).governance.policy_file
    if where is None:
        raise CommandFailed("Name a policy file with --policy or SERVICE_POLICY_FILE.", EXIT_USAGE)
    return where, policy_files.load_policies(where)


def _requests(file: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}.", EXIT_USAGE) from None
    except ValueError as error:
        raise CommandFailed(f"{file} is not JSON: {error}.", EXIT_USAGE) from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise CommandFailed(f"{file} must be a list of requests, each an object.", EXIT_USAGE)
    return found


def _result(rules: PolicySet, number: int, one: dict[str, Any]) -> dict[str, Any]:
    name, expect = str(one.get("name", f"request {number + 1}")), one.get("expect")
    if expect not in (None, "allow", "deny"):
        raise CommandFailed(f"{name}: expect must be allow or deny.", EXIT_USAGE)
    ruling = _asked(rules, name, one)
    decision = "allow" if ruling.allowed else "deny"
    return {
        "name": name,
        "action": one["action"],
        "decision": decision,
        "expect": expect,
        "reasons": list(ruling.reasons),
    }


def _asked(rules: PolicySet, name: str, one: dict[str, Any]) -> PolicyDecision:
    from stentor.core.security.policy import ACTION_TYPES, EXAMPLE_AGENT, PolicyEntity

    action, context = one.get("action"), one.get("context", {})
    if action not in ACTION_TYPES:
        raise CommandFailed(f"{name}: action must be one of {', '.join(ACTION_TYPES)}.", EXIT_USAGE)
    parts = []
    for field, kind in zip(("principal", "resource"), ACTION_TYPES[action], strict=True):
        given = one.get(field, {})
        if not isinstance(given, dict):
            raise CommandFailed(f"{name}: {field} must be an object.", EXIT_USAGE)
        attributes = {k: v for k, v in given.items() if k != "id"}
        known = EXAMPLE_AGENT if kind == "Agent" else {}
        parts.append(PolicyEntity(kind, str(given.get("id", field)), {**known, **attributes}))
    if not isinstance(context, dict):
        raise CommandFailed(f"{name}: context must be an object.", EXIT_USAGE)
    return rules.authorize(action, parts[0], parts[1], context, validate_schema=True)
