"""The plugin's dialect of errors: `{message, errorCode}`, the code being the status and two digits."""

from __future__ import annotations

from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.domains.notes.frontmatter import BadFrontmatter
from stentor.domains.notes.model import NameTaken, NoSuchNote, NoteChanged, NoteTooLarge
from stentor.domains.notes.paths import InvalidPath
from stentor.surfaces.vault.logic.faults import BadLogic
from stentor.surfaces.vault.patching.faults import (
    ContentPresent,
    FieldTaken,
    InvalidInstruction,
    NoSuchTarget,
    OtherVersion,
)
from stentor.surfaces.vault.patching.faults import PatchFailed as CannotPatch

BAD_FRONTMATTER, NOT_TEXT, NO_CONTENT_TYPE, BAD_CONTENT_TYPE, BAD_CONTENT = 40005, 40010, 40011, 40012, 40015
NO_DESTINATION, BEYOND_ROOT, BAD_DESTINATION, BAD_WITHIN, BAD_CONDITION = 40020, 40021, 40022, 40023, 40024
NO_TARGET_TYPE, BAD_TARGET_TYPE, NO_TARGET, NO_OPERATION, BAD_OPERATION = 40053, 40054, 40055, 40056, 40057
BAD_TARGET, BAD_SCOPE, BAD_LOGIC = 40058, 40059, 40070
PATCH_FAILED, BAD_INSTRUCTION, BAD_VERSION, OLD_TARGET, NO_VERSION, NO_QUERY = 40080, 40081, 40082, 40083, 40084, 40090
UNAUTHORIZED, NOT_FOUND, IS_FOLDER, NO_SUCH_METHOD = 40101, 40400, 40510, 40500
PRESENT, EXISTS, STALE, TOO_LARGE, TWO_TARGETS, FAILED = 40900, 40920, 41200, 41300, 42200, 50000
_CODES: dict[type[StentorError], int] = {
    InvalidPath: BEYOND_ROOT,
    BadFrontmatter: BAD_FRONTMATTER,
    NoSuchNote: NOT_FOUND,
    NoteChanged: STALE,
    NameTaken: EXISTS,
    NoteTooLarge: TOO_LARGE,
    NoSuchTarget: NOT_FOUND,
    InvalidInstruction: BAD_INSTRUCTION,
    CannotPatch: PATCH_FAILED,
    ContentPresent: PRESENT,
    FieldTaken: PRESENT,
    OtherVersion: STALE,
    BadLogic: BAD_LOGIC,
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
