"""The command line: `stentor serve`, `stentor task submit`, ..."""

import sys

try:
    from stentor.cli.main import app, main
except KeyboardInterrupt:
    # Most of a start is imports. The exit code is the same as for a command that is interrupted later.
    sys.exit(130)

__all__ = ["app", "main"]
