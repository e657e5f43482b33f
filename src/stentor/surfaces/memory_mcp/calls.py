"""One call of a tool, from its arguments to its result or its error with a stable code."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import mcp_types as mcp
import msgspec

from stentor.auth.authority.context import AuthorityContext
from stentor.auth.authority.credential_detection import reject_credential_fields
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, StentorError
from stentor.domains.memory.governed.service import GovernedMemory
from stentor.surfaces.memory_mcp.tools import TOOLS

log = logging.getLogger(__name__)


class Calls(Protocol):
    """Carries out a call of a known tool; an error of the tool is a result too."""

    async def call(
        self, who: AuthorityContext | None, name: str, arguments: Mapping[str, Any]
    ) -> mcp.CallToolResult: ...


class LocalCalls:
    """In this process."""

    def __init__(self, memory: GovernedMemory) -> None:
        self._memory = memory

    async def call(self, who: AuthorityContext | None, name: str, arguments: Mapping[str, Any]) -> mcp.CallToolResult:
        tool = TOOLS[name]
        try:
            if who is None:  # before its arguments are looked at
                await self._memory.deny(name)
            answer = await tool.use(self._memory, who, _asked(tool.asked, arguments))
        except StentorError as error:
            return failed(error.code, error.message, error.details)
        except Exception:
            log.exception("%s failed", name)
            return failed(StentorError.code, "The memory failed on this call; the operator's log says why.")
        return succeeded(msgspec.to_builtins(answer))


def succeeded(answer: Any) -> mcp.CallToolResult:
    text = jsontext.encode(answer).decode()
    return mcp.CallToolResult(content=[mcp.TextContent(text=text)], structured_content=answer)


def failed(code: str, message: str, details: dict[str, Any] | None = None) -> mcp.CallToolResult:
    """`structured_content` is `{error: {code, message, details?}}`; the text says the same."""
    error = {"code": code, "message": message} | ({"details": details} if details else {})
    text = mcp.TextContent(text=f"{code}: {message}")
    return mcp.CallToolResult(content=[text], structured_content={"error": error}, is_error=True)


def _asked(kind: type[msgspec.Struct], arguments: Mapping[str, Any]) -> msgspec.Struct:
    """Raises InvalidRequest, which names the field; also for one that is named like a credential, at any depth."""
    reject_credential_fields(arguments)
    try:
        return msgspec.convert(dict(arguments), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{error}.") from None
