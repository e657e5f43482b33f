#!/usr/bin/env python3
"""stentor-tool: calls the tools of a caged agent, from any language.

    stentor-tool NAME [KEY=TEXT ...] [KEY:=JSON ...] [--operation NAME]    one call; prints its result as JSON
    stentor-tool tools                                                     what this agent may use
    stentor-tool mcp                                                       an MCP server on standard input and output

Exit code 0, 1 when the call failed or was denied (the error is on standard error), 2 for wrong arguments.
It stands alone: Python 3.8 and its standard library, copied into every cage.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
ANNOTATIONS = {"read_file", "list_files", "memory_search"}
NO_METHOD, BAD_REQUEST, BAD_PARAMETERS = -32601, -32600, -32602


class BrokerClient:
    """One connection to the run's socket, made when it is first needed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stream: Any = None
        self._count = 0

    def call(self, name: str, arguments: dict[str, Any], operation: str | None = None) -> dict[str, Any]:
        """The answer: `{ok, result}` or `{ok, error}`. No answer is a denial."""
        self._count += 1
        request: dict[str, Any] = {"id": self._count, "tool": name, "arguments": arguments}
        if operation is not None:
            request["operation"] = operation
        try:
            if self._stream is None:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.connect(self._path)
                self._stream = connection.makefile("rwb")
            self._stream.write(json.dumps(request).encode() + b"\n")
            self._stream.flush()
            line = self._stream.readline()
            answer: dict[str, Any] = json.loads(line) if line else _failed("NO_ANSWER", "The broker gave no answer.")
        except (OSError, ValueError) as error:
            self._stream = None
            return _failed("NO_ANSWER", f"The broker cannot be reached: {error}.")
        return answer


def _failed(code: str, message: str) -> dict[str, Any]:
    return {"ok": False, "error": {"code": code, "message": message}}


def main(arguments: list[str]) -> int:
    broker = BrokerClient(os.environ.get("STENTOR_TOOLS", "/stentor/tools.sock"))
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(__doc__ or "")
        return 0 if arguments else 2
    if arguments == ["mcp"]:
        return serve(broker)
    try:
        name, values, operation = _read(arguments)
    except ValueError as error:
        sys.stderr.write(f"stentor-tool: {error}\n")
        return 2
    answer = broker.call(name, values, operation)
    if answer.get("ok"):
        sys.stdout.write(json.dumps(answer["result"]) + "\n")
        return 0
    sys.stderr.write(json.dumps(answer["error"]) + "\n")
    return 1


def _read(arguments: list[str]) -> tuple[str, dict[str, Any], str | None]:
    name, rest = arguments[0], arguments[1:]
    values: dict[str, Any] = {}
    operation = None
    while rest:
        part = rest.pop(0)
        if part == "--operation":
            if not rest:
                raise ValueError("--operation needs a name")
            operation = rest.pop(0)
            continue
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not KEY=TEXT or KEY:=JSON")
        values[key.rstrip(":")] = json.loads(value) if key.endswith(":") else value
    return name, values, operation


def serve(broker: BrokerClient) -> int:
    """JSON-RPC, a message a line, until standard input ends."""
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except ValueError:
            _send({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "That is not JSON."}})
            continue
        answer = _answer(broker, message)
        if answer is not None:
            _send(answer)
    return 0


def _send(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def _answer(broker: BrokerClient, message: Any) -> dict[str, Any] | None:
    """None for a notification."""
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return {"jsonrpc": "2.0", "id": None, "error": {"code": BAD_REQUEST, "message": "That is no request."}}
    if "id" not in message:
        return None
    method, parameters = message["method"], message.get("params") or {}
    known = {"initialize": _initialize, "ping": _ping, "tools/list": _tools, "tools/call": _call}
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if method not in known:
        return {**head, "error": {"code": NO_METHOD, "message": f"There is no method {method}."}}
    if not isinstance(parameters, dict):
        return {**head, "error": {"code": BAD_PARAMETERS, "message": "The parameters are no object."}}
    return {**head, **known[method](broker, parameters)}


def _initialize(broker: BrokerClient, parameters: dict[str, Any]) -> dict[str, Any]:
    asked = parameters.get("protocolVersion")
    return {
        "result": {
            "protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "stentor-tool", "version": "1"},
            "instructions": "The tools of this agent. What it may not do is denied and counts as a violation.",
        }
    }


def _ping(broker: BrokerClient, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"result": {}}


def _tools(broker: BrokerClient, parameters: dict[str, Any]) -> dict[str, Any]:
    answer = broker.call("tools", {})
    if not answer.get("ok"):
        return {"error": {"code": -32000, "message": answer["error"]["message"]}}
    return {"result": {"tools": [_described(tool) for tool in answer["result"]["tools"]]}}


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    about = tool["description"]
    if tool["paths"]:
        about += " Allowed paths: " + ", ".join(tool["paths"]) + "."
    shown = {"name": tool["name"], "description": about, "inputSchema": tool["parameters"]}
    return {**shown, "annotations": {"readOnlyHint": tool["name"] in ANNOTATIONS}}


def _call(broker: BrokerClient, parameters: dict[str, Any]) -> dict[str, Any]:
    name, arguments = parameters.get("name"), parameters.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return {"error": {"code": BAD_PARAMETERS, "message": "A call needs a name, and arguments as an object."}}
    answer = broker.call(name, arguments)
    if not answer.get("ok"):
        error = answer["error"]
        text = f"{error['code']}: {error['message']}"
        return {"result": {"content": [{"type": "text", "text": text}], "isError": True}}
    text = json.dumps(answer["result"])
    return {"result": {"content": [{"type": "text", "text": text}], "structuredContent": answer["result"]}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
