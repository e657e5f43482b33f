"""`stentor keys make`: what several instances need to have in common."""

from __future__ import annotations

import stat

import pytest

from tests.cli.program import Program
from tests.requirements import requirement

NAMES = ["provenance.key", "provenance.pub", "providers.key", "receipts.key"]


@requirement("scale.shared-keys")
def test_keys_are_made_once_and_then_left_alone(program: Program) -> None:
    made = program("keys", "make", "--json").json
    assert (made["made"], made["kept"]) == (NAMES, [])
    folder = program.data_dir / "keys"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {name: 0o644 if name.endswith(".pub") else 0o600 for name in NAMES}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = program("keys", "make", "--json").json
    assert (again["made"], again["kept"]) == ([], NAMES)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert program("keys", "make").out.splitlines() == [str(folder / name) for name in NAMES]


@requirement("scale.shared-keys")
@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_cannot_be_used_is_named_and_not_replaced(program: Program, name: str) -> None:
    assert program("keys", "make").code == 0
    path = program.data_dir / "keys" / name
    path.write_text("nonsense")
    done = program("keys", "make")
    if name.endswith(".pub"):
        assert done.code == 0, "the public half says nothing that the private one does not"
    else:
        assert (done.code, name in done.err) == (3, True)
    assert path.read_text() == "nonsense"


@requirement("scale.shared-keys")
def test_a_folder_that_cannot_be_written_is_named(program: Program) -> None:
    program.data_dir.write_text("no folder")
    done = program("keys", "make")
    assert (done.code, str(program.data_dir) in done.err) == (3, True)
