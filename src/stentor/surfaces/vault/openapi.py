"""The description of what is served, for `/openapi.yaml`."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def document() -> bytes:
    return resources.files("stentor.surfaces.vault").joinpath("openapi.yaml").read_bytes()
