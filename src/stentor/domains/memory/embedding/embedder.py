"""The interface of embedding models; implemented in `local` and `remote`."""

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


INTERRUPTED = "The preparation of the embedding model was interrupted."
"""By a signal: Ctrl-C goes to all processes of a terminal, also to the one that prepares the model."""


class EmbeddingUnavailable(ServiceUnavailable):
    """No text can be embedded now; the message says what is missing, and how to get it."""


class Embedder(Protocol):
    """An embedding model.

    `identity` names the model, its weights and its precision; embeddings of different identities are never compared.
    """

    @property
    def identity(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """The length at which texts are truncated."""
        ...

    async def is_prepared(self) -> bool:
        """Return whether `load` takes seconds; otherwise it prepares the model first, which may take a minute.

        Raises EmbeddingUnavailable.
        """
        ...

    async def load(self) -> None:
        """Load the model; the properties are valid from then on. Raises EmbeddingUnavailable."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, before truncation."""
        ...

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Vectors:
        """Return one row of length 1 per text, in order. Raises EmbeddingUnavailable.

        `urgent` texts, which a request waits for, do not queue behind the others.
        """
        ...

    async def close(self) -> None: ...
