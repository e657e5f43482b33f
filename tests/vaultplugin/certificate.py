"""A self-signed certificate such as the plugin creates."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.system import need


def self_signed(folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """Return the paths of (certificate, key). Skip the test if openssl is not installed."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = [need("openssl"), "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}"]
    kind = "IP" if name.replace(".", "").isdigit() else "DNS"
    files += ["-addext", f"subjectAltName={kind}:{name}"]
    subprocess.run([*command, *files], check=True, capture_output=True, timeout=200)
    return certificate, key
