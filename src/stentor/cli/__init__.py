"""The command line: `stentor serve`, `stentor task submit`, ..."""

import sys

try:
    from stentor.cli.main import app, main
except KeyboardInterrupt:
    # A start is mostly imports. The exit code is that of a command that is interrupted later.
    sys.exit(130)

__all__ = ["app", "main"]
