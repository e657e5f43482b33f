"""What a verifier finds wrong. Callers read AuthorityRefused; only the debug log has the reason."""

from __future__ import annotations


class Flaw(Exception):
    """A fixed sentence that names a part of the receipt, and never holds a value of it."""
