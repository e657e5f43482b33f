"""`stentor keys make`: the keys that instances of one service share, before the first of them starts."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from stentor.cli.options import AsJson, DataDir
from stentor.cli.output import out, print_json, reporting
from stentor.core import settings

app = typer.Typer(help="The keys that instances of one service share.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The keys that instances of one service share."""


@app.command()
def make(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make the keys that are missing, and leave those alone that are there.

    A single instance makes each at its first use. Several on one database need the same ones: make them once, and
    put the folder `keys` into the data folder of each.
    """
    with reporting(as_json=as_json):
        chosen = settings.load(os.environ, {"data_dir": data_dir})
        before = _there(chosen.data_dir)
        _make(chosen)
        made = sorted(_there(chosen.data_dir) - before)
        if as_json:
            print_json({"folder": str(chosen.data_dir / "keys"), "made": made, "kept": sorted(before)})
            return
        for name in sorted(before | set(made)):
            out.print(f"{chosen.data_dir / 'keys' / name}{'' if name in before else '  made'}", soft_wrap=True)


def _there(data_dir: Path) -> set[str]:
    return {path.name for path in (data_dir / "keys").glob("*") if not path.name.startswith(".")}


def _make(chosen: settings.Settings) -> None:
    # The cryptography: not for `stentor --help`.
    from stentor.auth.authority import keys
    from stentor.core.errors import StartRefused
    from stentor.core.security.sealing import Sealer
    from stentor.domains.provenance import keyfile

    keyfile.ensure_signer(keyfile.key_path(chosen), chosen.provenance_origin)
    keys.ensure_signing_key(chosen.data_dir)
    try:
        Sealer(chosen.data_dir, chosen.master_key).ensure_master_key()
    except OSError as error:
        raise StartRefused(f"{error.filename} cannot be made: {error.strerror}.") from None
