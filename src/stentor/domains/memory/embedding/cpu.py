"""What this CPU does with products of 8 bits."""

from __future__ import annotations

import platform
from pathlib import Path


def saturates(machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the fast kernels add such products in 16 bits, where they overflow: x86 without VNNI.

    The safe kernels give the same numbers on every CPU, but take almost twice the time.
    """
    if (machine or platform.machine()).lower() not in {"x86_64", "amd64"}:
        return False
    try:
        return "vnni" not in cpuinfo.read_text()
    except OSError:
        return True
