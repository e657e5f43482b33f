"""`stentor config`: every setting, its value and where it came from.

`stentor doctor`: what is configured, what is reachable, what is unsafe, and what to do about it.

`stentor keys make`: the keys that instances of one service share, before the first of them starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import typer

from stentor.cli import output
from stentor.cli.command import AsJson, DataDir
from stentor.cli.inspection import ConfigInspection, inspect_config
from stentor.cli.output import EXIT_FAILED, console, print_json, print_notice, report_errors
from stentor.core import settings


def config(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every setting, its value and where it came from; secrets are never shown."""
    with report_errors(as_json=as_json):
        found = inspect_config(os.environ, data_dir)
        if as_json:
            print_json(settings_document(found))
        else:
            _show_settings(found)


def settings_document(found: ConfigInspection) -> dict[str, Any]:
    """`{settings: [...], keys: [...], problem}` as plain values."""
    settings, keys = msgspec.to_builtins(found.settings), msgspec.to_builtins(found.keys)
    return {"settings": settings, "keys": keys, "problem": found.problem}


def _show_settings(found: ConfigInspection) -> None:
    rows = [(s.env, s.problem or s.value, s.source, s.doc) for s in found.settings]
    console.print(output.render_table(("setting", "value", "source", "meaning"), rows))
    if found.keys:
        keys = [(k.variable, k.role, k.problem or ", ".join(k.permissions), k.tenant) for k in found.keys]
        console.print(output.render_table(("key", "role", "permissions", "tenant"), keys))
    if found.problem:
        print_notice(f"A start would be refused: {found.problem}", "red")


def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check the installation; the exit code is 1 when there is a problem."""
    with report_errors(as_json=as_json):
        # The checks bring an HTTP client and the databases: not for `stentor --help`.
        from stentor.cli import checks

        found = checks.run_checks(os.environ, data_dir)
        bad = any(finding.level == "problem" for finding in found)
        if as_json:
            print_json({"ok": not bad, "checks": msgspec.to_builtins(found)})
        else:
            _show_findings([(f.level, f.check, f.message) for f in found])
        if bad:
            raise typer.Exit(EXIT_FAILED)


def _show_findings(rows: list[tuple[Any, ...]]) -> None:
    console.print(output.render_table(("", "check", "what was found"), rows))


keys_app = typer.Typer(help="The keys that instances of one service share.", no_args_is_help=True)


@keys_app.callback()
def group() -> None:
    """The keys that instances of one service share."""


@keys_app.command()
def make(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make the keys that are missing, and leave those alone that are there.

    A single instance makes each at its first use. Several on one database need the same ones: make them once, and
    put the folder `keys` into the data folder of each.
    """
    with report_errors(as_json=as_json):
        chosen = settings.load(os.environ, {"SERVICE_DATA_DIR": data_dir})
        before = _list_key_files(chosen.storage.data_dir)
        _ensure_keys(chosen)
        made = sorted(_list_key_files(chosen.storage.data_dir) - before)
        if as_json:
            print_json({"folder": str(chosen.storage.data_dir / "keys"), "made": made, "kept": sorted(before)})
            return
        for name in sorted(before | set(made)):
            console.print(
                f"{chosen.storage.data_dir / 'keys' / name}{'' if name in before else '  made'}", soft_wrap=True
            )


def _list_key_files(data_dir: Path) -> set[str]:
    return {path.name for path in (data_dir / "keys").glob("*") if not path.name.startswith(".")}


def _ensure_keys(chosen: settings.Settings) -> None:
    # The cryptography: not for `stentor --help`.
    from stentor.auth.authority import keys
    from stentor.core.errors import StartRefused
    from stentor.core.security.sealing import Sealer
    from stentor.domains.provenance import keyfile

    keyfile.ensure_signer(keyfile.key_path(chosen), chosen.provenance.origin)
    keys.ensure_signing_key(chosen.storage.data_dir)
    try:
        Sealer(chosen.storage.data_dir, chosen.llm.master_key).ensure_master_key()
    except OSError as error:
        raise StartRefused(f"{error.filename} cannot be made: {error.strerror}.") from None
