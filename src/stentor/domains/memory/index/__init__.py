"""The search index: documents, keywords and vectors derived from the vault. It can be rebuilt at any time."""

import os

# Before NumPy is imported. A search multiplies blocks of vectors that a processor has in its cache; with threads for
# each of them it waits for the threads: 0.15 s of processor time in place of 7 ms on a busy machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
