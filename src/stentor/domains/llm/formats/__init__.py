"""Translate chat and embedding calls to and from the API formats of providers.

Each module of this package but `base` implements `ProviderFormat` and only translates: it sends nothing. HTTP is in
`providers/transport.py`, the neutral request and reply types are in `model.py`.
"""

from __future__ import annotations

from stentor.domains.llm.formats import anthropic, gemini, openai
from stentor.domains.llm.formats.base import FormatName, ProviderFormat

FORMATS: dict[FormatName, ProviderFormat] = {"openai": openai, "anthropic": anthropic, "gemini": gemini}
