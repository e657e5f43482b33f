"""The health check of the image: `python3 -m stentor.container_health` exits with 0 if the gateway is healthy.

It imports little, because it runs every ten seconds.
"""

from __future__ import annotations

import os
import ssl
import sys
from http import HTTPStatus
from urllib.error import URLError
from urllib.request import urlopen

from stentor.core import settings as settings_module
from stentor.core.security import pinning

TIMEOUT_SECONDS = 4


def main() -> int:
    settings = settings_module.load(os.environ)
    address, trust = f"http://127.0.0.1:{settings.server.port}", None
    if settings.tls.is_on:
        address = address.replace("http:", "https:")
        trust = pinning.find_trust(settings.storage.data_dir, address) or ssl.create_default_context()
    try:
        with urlopen(f"{address}/health", timeout=TIMEOUT_SECONDS, context=trust) as answer:  # noqa: S310 - http alone
            return 0 if answer.status == HTTPStatus.OK else 1
    except (URLError, OSError) as error:
        sys.stderr.write(f"{address}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
