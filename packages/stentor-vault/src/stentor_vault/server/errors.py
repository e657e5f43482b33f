"""Error responses in the format of the vault plugin: `{message, errorCode}`.

A code is the HTTP status followed by two digits: 40005 is a 400.
"""

from __future__ import annotations

from starlette.responses import Response

from stentor_vault import jsontext
from stentor_vault.errors import StentorError
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.notes.model import NameTaken, NoSuchNote, NoteChanged, NoteTooLarge, ReadOnlyNote
from stentor_vault.notes.paths import InvalidPath
from stentor_vault.server.patching.instruction import (
    ContentExists,
    FieldExists,
    InvalidInstruction,
    NoSuchTarget,
    PatchFailed,
    VersionMismatch,
)
from stentor_vault.server.search.jsonlogic_operators import InvalidRule

BAD_FRONTMATTER, NOT_TEXT, NO_CONTENT_TYPE, BAD_CONTENT_TYPE, BAD_CONTENT = 40005, 40010, 40011, 40012, 40015
NO_DESTINATION, OUTSIDE_VAULT, BAD_DESTINATION, BAD_WITHIN, BAD_CONDITION = 40020, 40021, 40022, 40023, 40024
NO_TARGET_TYPE, BAD_TARGET_TYPE, NO_TARGET, NO_OPERATION, BAD_OPERATION = 40053, 40054, 40055, 40056, 40057
BAD_TARGET, BAD_SCOPE, BAD_RULE = 40058, 40059, 40070
PATCH_FAILED, BAD_INSTRUCTION, BAD_VERSION, LEGACY_TARGET = 40080, 40081, 40082, 40083
NO_VERSION, NO_QUERY = 40084, 40090
UNAUTHORIZED, NOT_FOUND, IS_FOLDER, METHOD_NOT_ALLOWED = 40101, 40400, 40510, 40500
CONTENT_EXISTS, FILE_EXISTS, READ_ONLY, PRECONDITION_FAILED, TOO_LARGE = 40900, 40920, 40930, 41200, 41300
ENCODED_BODY, AMBIGUOUS_TARGET, INTERNAL_ERROR = 41500, 42200, 50000
# Searched in order with isinstance: a subclass must come before its base class.
_CODES: dict[type[StentorError], int] = {
    InvalidPath: OUTSIDE_VAULT,
    InvalidFrontmatter: BAD_FRONTMATTER,
    NoSuchNote: NOT_FOUND,
    NoteChanged: PRECONDITION_FAILED,
    NameTaken: FILE_EXISTS,
    ReadOnlyNote: READ_ONLY,
    NoteTooLarge: TOO_LARGE,
    NoSuchTarget: NOT_FOUND,
    InvalidInstruction: BAD_INSTRUCTION,
    PatchFailed: PATCH_FAILED,
    ContentExists: CONTENT_EXISTS,
    FieldExists: CONTENT_EXISTS,
    VersionMismatch: PRECONDITION_FAILED,
    InvalidRule: BAD_RULE,
}


class VaultApiError(Exception):
    """An error response of the vault API; the HTTP status is `code // 100`."""

    def __init__(self, code: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = headers


def to_api_error(error: StentorError) -> VaultApiError:
    """Convert an error of the domains; one without a code of its own keeps its HTTP status."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), error.status * 100)
    return VaultApiError(code, error.message)


def render_error(error: VaultApiError) -> Response:
    """Return the JSON response for the error."""
    body = jsontext.encode({"message": error.message, "errorCode": error.code})
    return Response(body, error.code // 100, error.headers, "application/json")
