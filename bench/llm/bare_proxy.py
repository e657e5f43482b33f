"""A proxy that only passes chats on, a process of its own: `python -m bench.llm.bare_proxy PROVIDER_PORT`.

The lower bound of a gateway's cost on the same server (uvicorn) and with the same HTTP client: it authenticates nobody,
parses nothing and records nothing. Prints one line of JSON when it listens: `port`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys

import uvicorn
from starlette.types import Message, Receive, Scope, Send

from stentor.core.http_client.client import ClientRequest, HttpClient

LIMIT_SECONDS = 60
MAX_BYTES = 10_000_000


async def resolve(host: str, port: int) -> list[str]:
    return [host]


class Proxy:
    """Sends the body of each request to the provider's address, and returns its answer whole."""

    def __init__(self, provider_port: int) -> None:
        self._url = f"http://127.0.0.1:{provider_port}/v1/chat/completions"
        self._client = HttpClient(resolve)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message: Message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        request = ClientRequest("POST", self._url, {"Content-Type": "application/json"}, body)
        async with await self._client.send(request, LIMIT_SECONDS, LIMIT_SECONDS) as response:
            answer = await response.read_body(MAX_BYTES)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def serve(provider_port: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(Proxy(provider_port), lifespan="off", log_config=None, access_log=False)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1])))
