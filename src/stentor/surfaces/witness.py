"""HTTP API of a witness (C2SP tlog-witness): add-checkpoint, and the newest checkpoint that it cosigned for a log.

It needs no API key: a submission is authenticated by the signature of its log.
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
    # Origins may have slashes, so the path has their hash.
    origin_by_path = {checkpoint_path(origin): origin for origin in witness.origins}

    async def add(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return PlainTextResponse(f"The request is larger than {MAX_BODY_BYTES} bytes.\n", 413)
        try:
            # In a thread: the state is saved with an fsync before the signature leaves.
            line = await asyncio.to_thread(witness.add_checkpoint, body.decode())
        except UnicodeDecodeError:
            return PlainTextResponse("The request is not UTF-8 text.\n", 400)
        except SizeConflict as conflict:
            return Response(conflict.text, conflict.status, headers={"Content-Type": SIZE_MEDIA_TYPE})
        except SubmissionRejected as rejection:
            return PlainTextResponse(rejection.text, rejection.status)
        except OSError:
            # Nothing is signed without a saved state: after a restart the witness could otherwise sign a fork.
            log.exception("witness: saving the state failed")
            return PlainTextResponse("The witness cannot save its state.\n", 503)
        return PlainTextResponse(line)

    async def newest(request: Request) -> Response:
        origin = origin_by_path.get(f"{request.path_params['log']}/checkpoint")
        note = None if origin is None else witness.newest_note(origin)
        if note is None:
            return PlainTextResponse("This witness has not signed a checkpoint of that log.\n", 404)
        return PlainTextResponse(note)

    return Starlette(
        routes=[
            Route("/add-checkpoint", add, methods=["POST"]),
            Route("/{log}/checkpoint", newest, methods=["GET"]),
        ]
    )


async def _body(request: Request) -> bytes | None:
    """Return the body, or None as soon as it is too large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return body
