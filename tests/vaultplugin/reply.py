"""Requests, replies and errors of the plugin stub."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests import stub


class PluginRequest(stub.Asked):
    """A request with the parts that the plugin reads."""

    @property
    def raw_path(self) -> str:
        return urlsplit(self.path).path

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}

    @property
    def segments(self) -> list[str]:
        """The path, split at the slashes and then decoded once."""
        return [unquote(part) for part in self.raw_path.removeprefix("/vault/").split("/")]

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip()


@dataclass
class Reply:
    status: int = 204
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def json_reply(value: Any, status: int = 200, kind: str = "application/json", **headers: str) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"Content-Type": kind, **headers})


class PluginError(Exception):
    """Ends a request with the plugin's error body; the code is the status times 100 plus a number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def reply(self) -> Reply:
        return json_reply({"message": "DETAILS-OF-THE-PLUGIN", "errorCode": self.code}, self.code // 100)
