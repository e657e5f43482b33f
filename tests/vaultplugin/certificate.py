"""A certificate that signs itself, as the plugin makes one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.system import need


def self_signed(folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """(certificate, key). Skips the test without the program openssl."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = [need("openssl"), "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*command, *files], check=True, capture_output=True, timeout=60)
    return certificate, key
