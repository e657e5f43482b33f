"""A request for embeddings in OpenAI's dialect."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from pydantic import Field

from stentor.domains.llm.model import EmbeddingInput
from stentor.domains.llm.openai.reading import In
from stentor.web.wire import Name

Several = Field(min_length=1, max_length=2048, fail_fast=True)
"""Without `fail_fast` each of a million tokens would be a flaw of a list of texts."""
Texts = Annotated[list[Annotated[str, Field(min_length=1)]], Several]
TokensIn = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1, fail_fast=True)]


class EmbeddingIn(In):
    model: Name
    input: str | Texts | TokensIn | Annotated[list[TokensIn], Several]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=65_536)] | None = None

    @property
    def inputs(self) -> list[EmbeddingInput]:
        """A list of numbers is the tokens of one text."""
        given = self.input
        if isinstance(given, str):
            return [given]
        if isinstance(given[0], int):
            return [tuple(given)]
        return [one if isinstance(one, str) else tuple(one) for one in cast(list[str | list[int]], given)]
