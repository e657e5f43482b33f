"""The plugin's dialect of errors: `{message, errorCode}`, the code being the status and two digits."""

from __future__ import annotations

from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.domains.notes.frontmatter import BadFrontmatter
from stentor.domains.notes.model import NameTaken, NoSuchNote, NoteChanged, NoteTooLarge
from stentor.domains.notes.paths import InvalidPath

BEYOND_ROOT, BAD_INSTRUCTION, NO_QUERY, BAD_FRONTMATTER, NOT_TEXT = 40021, 40081, 40090, 40005, 40010
NO_VERSION = 40084
UNAUTHORIZED, NOT_FOUND, IS_FOLDER, EXISTS, NO_SUCH_METHOD = 40101, 40400, 40510, 40920, 40500
STALE, TOO_LARGE, FAILED, NOT_HERE = 41200, 41300, 50000, 50100
_CODES: dict[type[StentorError], int] = {
    InvalidPath: BEYOND_ROOT,
    BadFrontmatter: BAD_FRONTMATTER,
    NoSuchNote: NOT_FOUND,
    NoteChanged: STALE,
    NameTaken: EXISTS,
    NoteTooLarge: TOO_LARGE,
}


class Refused(Exception):
    """An answer that is an error; the status is in the code."""

    def __init__(self, code: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = headers


def refusal_of(error: StentorError) -> Refused:
    """The same fact in this dialect."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), error.status * 100)
    return Refused(code, error.message)


def render(refused: Refused) -> Response:
    body = jsontext.encode({"message": refused.message, "errorCode": refused.code})
    return Response(body, refused.code // 100, refused.headers, "application/json")
