"""What makes vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stentor.core.errors import ServiceUnavailable

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vectors = NDArray[numpy.float32]
else:
    Vectors = Any


class EmbeddingUnavailable(ServiceUnavailable):
    """No vector can be made now; the message says what is missing, and how to get it."""


class Embedder(Protocol):
    """`identity` names the model, its weights and its precision; vectors of two identities are never compared."""

    @property
    def identity(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """Texts are cut there."""
        ...

    async def load(self) -> None:
        """Make it ready; the properties hold from then on. Raises EmbeddingUnavailable."""
        ...

    def count(self, text: str) -> int:
        """Tokens of a text, without cutting."""
        ...

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Vectors:
        """A row of length 1 for each text, in order. Somebody waits for urgent ones. Raises EmbeddingUnavailable."""
        ...

    async def close(self) -> None: ...
