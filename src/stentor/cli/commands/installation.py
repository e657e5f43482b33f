"""`stentor init`, `stentor config` and `stentor doctor`: prepare and inspect an installation.

They work without a running service. The settings are read in `inspection`, the checks are in `checks`.
"""

from __future__ import annotations

import os

import msgspec
import typer
from rich.padding import Padding
from rich.text import Text

from stentor.cli import checks, output
from stentor.cli.command import AsJson, DataDir
from stentor.cli.inspection import ConfigInspection, SettingStatus, inspect_config
from stentor.cli.output import (
    EXIT_FAILED,
    CommandFailed,
    console,
    print_json,
    print_notice,
    print_result,
    report_errors,
)
from stentor.core.jsontext import JsonObject
from stentor.core.settings.config_file import DEFAULT_PATH, render_template


def init() -> None:
    """Write stentor.toml, a commented file of the usual settings, into this folder.

    `stentor` reads the file in the folder in which it is started; SERVICE_CONFIG_FILE names another one.
    """
    with report_errors():
        path = DEFAULT_PATH.absolute()
        try:
            # "x": a file with the settings of an installation is never overwritten.
            with open(path, "x", opener=_open_private) as file:
                file.write(render_template())
        except FileExistsError:
            raise CommandFailed(f"{path} exists already; it was not changed.") from None
        except OSError as error:
            raise CommandFailed(f"{path} cannot be written: {error.strerror}.") from None
        console.print(f"Wrote {path}. Edit it, then run `stentor serve` in this folder.", soft_wrap=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # the file may contain passwords and keys later


def config(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List all settings with their value and source; secrets are never shown."""
    with report_errors(as_json=as_json):
        print_result(inspect_config(os.environ, data_dir), settings_document, _show_settings, as_json=as_json)


def settings_document(inspection: ConfigInspection) -> JsonObject:
    """Return `{settings: [...], keys: [...], problem}` as plain values."""
    settings, keys = msgspec.to_builtins(inspection.settings), msgspec.to_builtins(inspection.keys)
    return {"settings": settings, "keys": keys, "problem": inspection.problem}


def _show_settings(inspection: ConfigInspection) -> None:
    # Not a table: the meanings are sentences, for which a terminal of 80 characters has no room next to the names.
    for setting in inspection.settings:
        _show_setting(setting)
    if inspection.keys:
        keys = [(k.variable, k.role, k.problem or ", ".join(k.permissions), k.tenant) for k in inspection.keys]
        console.print(output.render_table(("key", "role", "permissions", "tenant"), keys))
    if inspection.problem:
        print_notice(f"The service would not start: {inspection.problem}", "red")


def _show_setting(setting: SettingStatus) -> None:
    """Print a setting's variable and value, where that is from, its name by area and its meaning."""
    is_changed = setting.source != "default"
    head = Text.assemble((setting.env, "bold"), " = ", output.render_cell(setting.problem or setting.value))
    head.append(f"  ({'from the ' if is_changed else ''}{setting.source})", "yellow" if is_changed else "dim")
    console.print(head)
    console.print(Padding(Text.assemble((f"{setting.name}: ", "dim"), setting.doc), (0, 0, 0, 4)))


def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check the installation; the exit code is 1 if there is a problem."""
    with report_errors(as_json=as_json):
        findings = checks.run_checks(os.environ, data_dir)
        has_problem = any(finding.level == "problem" for finding in findings)
        if as_json:
            print_json({"ok": not has_problem, "checks": msgspec.to_builtins(findings)})
        else:
            rows = [(finding.level, finding.check, finding.message) for finding in findings]
            console.print(output.render_table(("", "check", "finding"), rows))
        if has_problem:
            raise typer.Exit(EXIT_FAILED)
