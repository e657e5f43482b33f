"""Generates the code of the protos: `python -m tests.surfaces.grpc.protos`. A test fails when it drifts."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROTOS = ROOT / "proto"
GENERATED = ROOT / "src" / "stentor" / "surfaces" / "grpc" / "generated"
PACKAGE = "stentor/v1"
DOCUMENT = '"""Generated from proto/ by `make protos`; change the protos, not this."""\n'
_ABSOLUTE = re.compile(r"^from stentor\.v1 import", re.MULTILINE)


def generate() -> dict[str, str]:
    """Each file by its name. Imports of each other are made relative: they lie elsewhere than protoc thinks."""
    with tempfile.TemporaryDirectory(prefix="stentor-protos-") as folder:
        names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *outputs, *names]
        subprocess.run(command, check=True, timeout=200)
        made = sorted((Path(folder) / PACKAGE).iterdir())
        found = {path.name: _ABSOLUTE.sub("from . import", path.read_text("utf-8")) for path in made}
    return {"__init__.py": DOCUMENT, **found}


def main() -> None:
    GENERATED.mkdir(exist_ok=True)
    for old in GENERATED.glob("*.py*"):
        old.unlink()
    for name, text in generate().items():
        (GENERATED / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
