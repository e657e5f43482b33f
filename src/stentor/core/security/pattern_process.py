"""Runs the operator's own redaction patterns in a process of its own, with a time limit.

Python holds its global lock while a regular expression is matched, so a pattern with catastrophic backtracking would
stop the whole service even from a thread. The process starts at the first use and is killed when it takes too long.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stentor.core.errors import StartRefused
from stentor.core.security.content_redaction import mark

TIMEOUT_SECONDS = 2.0
"""For the texts of one call."""
START_SECONDS = 60.0
"""For the start of the process, which takes long on a busy machine and must not count as the time of a pattern."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_WORKER = Path(__file__).with_name("pattern_worker.py")


class PatternsTooSlow(Exception):
    """The patterns did not end in time, or their process failed: the texts are not redacted."""


class PatternProcess:
    """Masks texts with the patterns of SERVICE_LLM_REDACT_PATTERNS. Raises StartRefused for an invalid one."""

    def __init__(self, entries: Sequence[str], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._patterns = [_parse(entry) for entry in entries]
        self.timeout_seconds = timeout_seconds
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def redact(self, texts: list[str]) -> list[str]:
        """Return the texts with the marks of the patterns. Raises PatternsTooSlow; then no text must be stored."""
        async with self._lock:
            try:
                if self._process is None:
                    async with asyncio.timeout(START_SECONDS):
                        await self._start()
                async with asyncio.timeout(self.timeout_seconds):
                    return await self._exchange(texts)
            except (TimeoutError, OSError, ValueError) as error:
                raise PatternsTooSlow(type(error).__name__) from None
            finally:
                # Also after a cancellation: the next texts must not get the answer to these.
                if sys.exc_info()[0] is not None:
                    await self._kill()

    async def close(self) -> None:
        await self._kill()

    async def _start(self) -> None:
        # Starts without the environment, which contains secrets.
        self._process = process = await asyncio.create_subprocess_exec(
            # -I and -S: without site packages, so that it starts fast and runs only this file.
            *(sys.executable, "-I", "-S", str(_WORKER)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_ANSWER_BYTES,
            env={},
        )
        await self._ask(process, self._patterns)

    async def _exchange(self, texts: list[str]) -> list[str]:
        assert self._process is not None
        answer = await self._ask(self._process, texts)
        if not isinstance(answer, list) or len(answer) != len(texts):
            raise ValueError("wrong answer")
        return answer

    async def _ask(self, process: asyncio.subprocess.Process, value: object) -> Any:
        """Send a line of JSON and return the one that answers it. Raises ValueError, OSError."""
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(value).encode() + b"\n")
        await process.stdin.drain()
        return json.loads(await process.stdout.readline())

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _parse(entry: str) -> tuple[str, str]:
    """Return the mark and the pattern of an entry such as `customer number=KD-\\d{6}`. Raises StartRefused."""
    name, equals, pattern = entry.partition("=")
    problem = ""
    if not equals or not name.strip() or not pattern:
        problem = "expected NAME=PATTERN, such as `customer number=KD-\\d{6}`"
    else:
        try:
            if re.compile(pattern).match(""):
                problem = "the pattern matches an empty text, and so would mask everywhere"
        except (re.error, RecursionError, OverflowError) as error:
            problem = f"the pattern is invalid: {error}"
    if problem:
        raise StartRefused(f"SERVICE_LLM_REDACT_PATTERNS: {entry!r}: {problem}.")
    return mark(name.strip()), pattern
