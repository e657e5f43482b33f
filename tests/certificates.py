"""httpx reads the machine's certificates for each client that is made, which takes 30 ms; here it reads them once."""

from __future__ import annotations

from functools import cache

import httpx
from httpx._transports import default


def read_once() -> None:
    default.create_ssl_context = cache(httpx.create_ssl_context)
    with httpx.Client():
        pass
