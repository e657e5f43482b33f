"""Several statements in one message to a PostgreSQL server, and all their results in one back.

Each message and the wait for its answer cost both sides more than most statements do. Not psycopg's pipeline: its last
message is one after which PostgreSQL no longer applies the idle in transaction timeout, and it takes more processor
time than it saves.
"""

from __future__ import annotations

import select
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn, PGresult

from stentor.core.db.postgres.server_waits import LimitedConnection
from stentor.core.db.sql import Row, Statement

MAX_PREPARED = 100
"""Statements that stay prepared, and those of one message: the server keeps the plan of each in memory."""
FLUSH_EVERY = 10
"""Statements after which the server sends their results, in place of all at the end: each lot has a limit of silence of
its own (`server_waits`)."""
_FAILED = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED)
_OUTDATED = ("0A000", "26000")
"""A plan that does not fit its tables any more, and a name that the server does not know."""
_ENDED = ("57P01", "25P03")
"""The server stops, or the transaction was idle for too long. Poolers have other codes for a server that they lost."""


class PipelineError(Exception):
    """A statement failed, by its place among those of the message. Those after it were not executed."""

    def __init__(self, place: int, error: Exception) -> None:
        super().__init__(str(error))
        self.place, self.error = place, error

    @property
    def is_outdated(self) -> bool:
        """Whether what was prepared does not fit the database any more. The next time it is prepared again."""
        return isinstance(self.error, psycopg.Error) and self.error.sqlstate in _OUTDATED


class _Expected(NamedTuple):
    """A result to come: of the statement at `place`, or of what prepares it."""

    place: int
    prepares: str | None = None


class Pipeline:
    """Sends statements over one connection, which no pooler may share with others."""

    def __init__(self, raw: LimitedConnection) -> None:
        self._raw, self._transformer, self._encoding = raw, Transformer(raw), raw.info.encoding
        self._names: OrderedDict[str, bytes] = OrderedDict()
        """Names of the prepared statements by their text, the one that was used last at the end."""
        self._given_names = 0

    def run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements one after the other and return the rows of each.

        Raises PipelineError, also if the server ended the connection in place of a statement, and psycopg.Error if the
        connection was lost in another way. It is closed after both.
        """
        # Encodes all of them before sending the first: a value that cannot be encoded must not leave a message half
        # sent.
        encoded = [(text, *_encode(values, place, self._encoding)) for place, (text, values) in enumerate(statements)]
        results, expected = list[PGresult](), list[_Expected]()
        try:
            expected = self._send(encoded)
            self._exchange(results)
            self._raw.pgconn.exit_pipeline_mode()
        except BaseException as error:
            self._raw.close()
            # The server sends the reason before it closes a connection.
            for result, (place, _) in zip(results, expected, strict=False):
                if result.status == pq.ExecStatus.FATAL_ERROR and isinstance(error, psycopg.OperationalError):
                    reason = error_from_result(result)
                    raise (PipelineError(place, reason) if reason.sqlstate in _ENDED else reason) from None
            raise
        for result, (place, _) in zip(results, expected, strict=True):
            if result.status in _FAILED:
                failed = PipelineError(place, error_from_result(result))
                self._forget(results, expected, everything=failed.is_outdated)
                raise failed
        return [self._rows(result) for result, want in zip(results, expected, strict=True) if want.prepares is None]

    def _send(self, statements: list[tuple[str, list[bytes | None], list[int]]]) -> list[_Expected]:
        connection, expected = self._raw.pgconn, list[_Expected]()
        connection.enter_pipeline_mode()
        # Not in a failed transaction, which executes nothing but its rollback.
        while len(self._names) > MAX_PREPARED and connection.transaction_status != pq.TransactionStatus.INERROR:
            _, oldest = self._names.popitem(last=False)
            connection.send_query_params(b"deallocate " + oldest, None)
            expected.append(_Expected(0, ""))
        for place, (text, values, formats) in enumerate(statements):
            name = self._names.get(text)
            if name is None:
                self._given_names += 1
                name = self._names[text] = f"stentor_{self._given_names}".encode()
                connection.send_prepare(name, text.encode(self._encoding))
                expected.append(_Expected(place, text))
            else:
                self._names.move_to_end(text)
            connection.send_query_prepared(name, values, formats)
            expected.append(_Expected(place))
            if place % FLUSH_EVERY == FLUSH_EVERY - 1:
                connection.send_flush_request()
        connection.pipeline_sync()
        return expected

    def _exchange(self, results: list[PGresult]) -> None:
        """Send what is buffered and receive the results up to the end of the pipeline. Raises psycopg.Error."""
        connection = self._raw.pgconn
        is_sent = connection.flush() == 0
        while True:
            # Both at once: a server that waits until its results are read reads no more statements.
            ready = self._raw.wait_ready(select.POLLIN if is_sent else select.POLLIN | select.POLLOUT)
            if not is_sent and ready & select.POLLOUT:
                is_sent = connection.flush() == 0
            if ready & ~select.POLLOUT:  # also if the connection is lost
                connection.consume_input()
            if take_results(connection, results):
                return

    def _forget(self, results: list[PGresult], expected: list[_Expected], *, everything: bool) -> None:
        """Forget the names of statements that are not prepared, after one failed."""
        for result, (_, text) in zip(results, expected, strict=True):
            if text is not None and result.status in _FAILED:
                self._names.pop(text, None)
        if everything:
            self._names.clear()

    def _rows(self, result: PGresult) -> list[Row]:
        if not result.ntuples:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)


def take_results(connection: PGconn, results: list[PGresult]) -> bool:
    """Add the results that have arrived; return whether all of the pipeline have. Raises psycopg.OperationalError."""
    is_between = False
    while not connection.is_busy():
        result = connection.get_result()
        if result is not None:
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return True
            results.append(result)
        elif is_between:
            break
        is_between = result is None
    if connection.status == pq.ConnStatus.BAD:
        raise psycopg.OperationalError("the connection to the server was lost")
    return False


def _encode(values: Sequence[Any], place: int, encoding: str) -> tuple[list[bytes | None], list[int]]:
    """Return parameters without their types, which PostgreSQL knows from the statement, and their formats.

    0 is text, 1 is binary. Raises PipelineError for what no column can have.
    """
    encoded, formats = list[bytes | None](), [0] * len(values)
    for number, value in enumerate(values):
        if isinstance(value, str):
            # The server would take the text to end there.
            if "\0" in value:
                raise PipelineError(place, ValueError("A text cannot contain a null character."))
            try:
                encoded.append(value.encode(encoding))
            except UnicodeEncodeError as error:
                raise PipelineError(place, error) from None
        elif value is None:
            encoded.append(None)
        elif isinstance(value, int):
            encoded.append(int.__repr__(value).encode())
        elif isinstance(value, float):
            encoded.append(repr(value).encode())
        elif isinstance(value, bytes | bytearray | memoryview):
            encoded.append(bytes(value))
            formats[number] = 1
        else:
            raise PipelineError(place, TypeError(f"A parameter cannot be a {type(value).__name__}."))
    return encoded, formats
