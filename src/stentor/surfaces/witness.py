"""The HTTP of a witness (C2SP tlog-witness): add-checkpoint, and the newest checkpoint that it signed of a log.

It needs no key: a submission is judged by the signature of its log.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from stentor.domains.provenance.witness.wire import MAX_BODY_BYTES, SIZE_MEDIA_TYPE, checkpoint_path
from stentor.domains.provenance.witness.witness import SizeConflict, SubmissionRejected, Witness

log = logging.getLogger(__name__)


def app(witness: Witness) -> Starlette:
    shown = {checkpoint_path(origin): origin for origin in witness.origins}

    async def add(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return PlainTextResponse(f"A request has at most {MAX_BODY_BYTES} bytes.\n", 413)
        try:
            line = await asyncio.to_thread(witness.add_checkpoint, body.decode())
        except UnicodeDecodeError:
            return PlainTextResponse("The request is no text.\n", 400)
        except SizeConflict as conflict:
            return Response(conflict.text, conflict.status, headers={"Content-Type": SIZE_MEDIA_TYPE})
        except SubmissionRejected as refused:
            return PlainTextResponse(refused.text, refused.status)
        except OSError:
            log.exception("the witness cannot keep its state, and signs nothing")
            return PlainTextResponse("The witness cannot keep its state.\n", 503)
        return PlainTextResponse(line)

    async def newest(request: Request) -> Response:
        origin = shown.get(f"{request.path_params['log']}/checkpoint")
        note = None if origin is None else witness.newest_note(origin)
        if note is None:
            return PlainTextResponse("This witness signed no checkpoint of that log.\n", 404)
        return PlainTextResponse(note)

    return Starlette(
        routes=[
            Route("/add-checkpoint", add, methods=["POST"]),
            Route("/{log}/checkpoint", newest, methods=["GET"]),
        ]
    )


async def _body(request: Request) -> bytes | None:
    """None when it is too large; no more than that is read."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return body
