#!/usr/bin/env python3
"""stentor-tool: calls the tools of a sandboxed agent, from any language.

    stentor-tool NAME [KEY=TEXT ...] [KEY:=JSON ...] [--operation NAME]    one call; prints its result as JSON
    stentor-tool tools                                                     lists the tools that this agent may use
    stentor-tool mcp                                                       an MCP server on standard input and output

Exit code 0, 1 when the call failed or was denied (the error is on standard error), 2 for wrong arguments.
This file is copied into every sandbox: it needs only Python 3.8 and its standard library.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
READ_ONLY_TOOLS = {"read_file", "list_files", "memory_search"}
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, SERVER_ERROR = -32700, -32600, -32601, -32602, -32000

if TYPE_CHECKING:
    # For the type checker only: Python 3.8 cannot evaluate it.
    Object = dict[str, Any]


class BrokerClient:
    """A connection to the run's socket, opened at the first call."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stream: Any = None
        self._count = 0

    def call(self, name: str, arguments: Object, operation: str | None = None) -> Object:
        """Return the response, `{ok, result}` or `{ok, error}`. A missing response is an error."""
        self._count += 1
        request: Object = {"id": self._count, "tool": name, "arguments": arguments}
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
            response: Object = json.loads(line) if line else _no_answer("The broker did not respond.")
        except (OSError, ValueError) as error:
            self._stream = None  # the next call connects again
            return _no_answer(f"The broker cannot be reached: {error}.")
        return response


def _no_answer(message: str) -> Object:
    return {"ok": False, "error": {"code": "NO_ANSWER", "message": message}}


def main(arguments: list[str]) -> int:
    broker = BrokerClient(os.environ.get("STENTOR_TOOLS", "/stentor/tools.sock"))
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(__doc__ or "")
        return 0 if arguments else 2
    if arguments == ["mcp"]:
        return serve(broker)
    try:
        name, values, operation = _parse_arguments(arguments)
    except ValueError as error:
        sys.stderr.write(f"stentor-tool: {error}\n")
        return 2
    response = broker.call(name, values, operation)
    if response.get("ok"):
        sys.stdout.write(json.dumps(response["result"]) + "\n")
        return 0
    sys.stderr.write(json.dumps(response["error"]) + "\n")
    return 1


def _parse_arguments(arguments: list[str]) -> tuple[str, Object, str | None]:
    """Return the tool's name, its arguments and the operation. Raises ValueError."""
    name, rest = arguments[0], arguments[1:]
    values: Object = {}
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
    """Serve MCP (JSON-RPC, one message per line) until standard input ends."""
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except ValueError:
            _send({"jsonrpc": "2.0", "id": None, **_error(PARSE_ERROR, "The message is not valid JSON.")})
            continue
        response = _respond(broker, message)
        if response is not None:
            _send(response)
    return 0


def _send(message: Object) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def _error(code: int, message: str) -> Object:
    return {"error": {"code": code, "message": message}}


def _respond(broker: BrokerClient, message: Any) -> Object | None:
    """Return the response to a message; None for a notification."""
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return {"jsonrpc": "2.0", "id": None, **_error(INVALID_REQUEST, "The message is not a request.")}
    if "id" not in message:
        return None
    method, parameters = message["method"], message.get("params") or {}
    handlers = {"initialize": _initialize, "ping": _ping, "tools/list": _list_tools, "tools/call": _call_tool}
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if method not in handlers:
        return {**head, **_error(METHOD_NOT_FOUND, f"There is no method {method}.")}
    if not isinstance(parameters, dict):
        return {**head, **_error(INVALID_PARAMS, "The parameters are not an object.")}
    return {**head, **handlers[method](broker, parameters)}


def _initialize(broker: BrokerClient, parameters: Object) -> Object:
    version = parameters.get("protocolVersion")
    return {
        "result": {
            "protocolVersion": version if version in PROTOCOLS else PROTOCOLS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "stentor-tool", "version": "1"},
            "instructions": "The tools of this agent. A call that it may not make is denied and counts as a violation.",
        }
    }


def _ping(broker: BrokerClient, parameters: Object) -> Object:
    return {"result": {}}


def _list_tools(broker: BrokerClient, parameters: Object) -> Object:
    response = broker.call("tools", {})
    if not response.get("ok"):
        return _error(SERVER_ERROR, response["error"]["message"])
    return {"result": {"tools": [_describe_tool(tool) for tool in response["result"]["tools"]]}}


def _describe_tool(tool: Object) -> Object:
    description = tool["description"]
    if tool["paths"]:
        description += " Allowed paths: " + ", ".join(tool["paths"]) + "."
    return {
        "name": tool["name"],
        "description": description,
        "inputSchema": tool["parameters"],
        "annotations": {"readOnlyHint": tool["name"] in READ_ONLY_TOOLS},
    }


def _call_tool(broker: BrokerClient, parameters: Object) -> Object:
    name, arguments = parameters.get("name"), parameters.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return _error(INVALID_PARAMS, "A call needs a name, and arguments as an object.")
    response = broker.call(name, arguments)
    if not response.get("ok"):
        # In MCP a failed call is a result, so that the model can read it. Only protocol errors are JSON-RPC errors.
        error = response["error"]
        text = f"{error['code']}: {error['message']}"
        return {"result": {"content": [{"type": "text", "text": text}], "isError": True}}
    text = json.dumps(response["result"])
    return {"result": {"content": [{"type": "text", "text": text}], "structuredContent": response["result"]}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
