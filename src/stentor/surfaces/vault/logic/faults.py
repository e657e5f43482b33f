"""Why a rule cannot be evaluated."""

from __future__ import annotations

from stentor.core.errors import InvalidRequest


class BadLogic(InvalidRequest):
    """The rule has an operator or a pattern that is none, or takes more work than it may."""
