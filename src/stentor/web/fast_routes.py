"""The shortest way from a request with a JSON body to its function, for routes that are called all the time.

FastAPI describes such a route like any other, and its checks and errors are the same; only the general
resolution of parameters is left out, which costs more than routing a task. Source: design, "HTTP".

Direct routes are found by their whole address, before the router tries all routes one after the other.

They answer as they would behind the router: the same checks, the same errors. Source: docs/decisions, 0014.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, get_args, get_type_hints

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.params import Header
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.web import errors
from stentor.web.routes import GatewayRoute, StrictRequest, get_principal

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class FastRoute(GatewayRoute):
    """Its function takes `request`, the model `body`, and any optional headers; it answers a Response.

    One without `body` reads the request itself.
    """

    def get_route_handler(self) -> Handler:
        function, permission = self.endpoint, self.permission
        hints = get_type_hints(function, include_extras=True)
        if "body" not in hints:
            return self._unread()
        body_of = TypeAdapter(hints["body"])
        headers = [
            OptionalHeader(name, hints[name]) for name in inspect.signature(function).parameters if name not in _OTHERS
        ]

        async def handle(request: Request) -> Response:
            get_principal(request).require(permission)
            request = StrictRequest(request.scope, request.receive)
            body = validate_value(body_of, await _content(request))
            return await function(request, body, **{header.name: header.read(request) for header in headers})  # type: ignore[no-any-return]

        return handle

    def _unread(self) -> Handler:
        function, permission = self.endpoint, self.permission

        async def handle(request: Request) -> Response:
            get_principal(request).require(permission)
            return await function(StrictRequest(request.scope, request.receive))  # type: ignore[no-any-return]

        return handle


_OTHERS = ("request", "body")


class OptionalHeader:
    """An optional header as a parameter: `Annotated[str | None, Header(alias=...)] = None`."""

    def __init__(self, name: str, hint: Any) -> None:
        kind, declared = get_args(hint)
        assert isinstance(declared, Header)
        assert declared.alias is not None
        self.name, self._alias = name, declared.alias
        constrained: Any = Annotated[kind, *declared.metadata]
        self._values: TypeAdapter[Any] = TypeAdapter(constrained)

    def read(self, request: Request) -> Any:
        return self.check(request.headers.get(self._alias))

    def check(self, value: str | None) -> Any:
        """The value, when it may be one. Raises RequestValidationError."""
        return None if value is None else validate_value(self._values, value, ("header", self._alias))


async def _content(request: StrictRequest) -> Any:
    """The parsed body; without one None."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "The body ended before its end.") from None
    return await request.json() if raw else None


def validate_value(adapter: TypeAdapter[Any], value: Any, where: tuple[str, ...] = ("body",)) -> Any:
    """What the adapter makes of a value that lies there. Raises RequestValidationError."""
    if value is None:
        raise RequestValidationError([{"type": "missing", "loc": where, "msg": "Field required", "input": None}])
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        found = [{**one, "loc": (*where, *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(found) from None


FastHandlers = dict[tuple[str, str], Handler]


def collect_fast_handlers(routes: Iterable[BaseRoute]) -> FastHandlers:
    """Method and path of each direct route that has no parameters in its path."""
    return {
        (method, route.path): route.get_route_handler()
        for route in routes
        if isinstance(route, FastRoute) and "{" not in route.path
        for method in route.methods or ()
    }


class FastRouteMiddleware:
    """Before the application: answers the direct routes, hands everything else on. Unexpected errors go up."""

    def __init__(self, app: ASGIApp, known: FastHandlers) -> None:
        self._app = app
        self._known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._known.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await handler(request)
        except Exception as error:
            if (known := errors.find_error_handler(error)) is None:
                raise
            response = await known(request, error)
        await response(scope, receive, send)
