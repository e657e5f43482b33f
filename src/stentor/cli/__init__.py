"""The command line: `stentor serve`, `stentor task submit`, ..."""

from stentor.cli.main import app, main

__all__ = ["app", "main"]
