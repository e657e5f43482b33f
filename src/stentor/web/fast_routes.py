"""The shortest way from a request with a JSON body to its function, for routes that are called all the time.

FastAPI describes such a route like any other, and its checks and errors are the same; only the general
resolution of parameters is left out, which costs more than routing a task. Source: design, "HTTP".

Direct routes are found by their whole address, before the router tries all routes one after the other.

They answer as they would behind the router: the same checks, the same errors. Source: docs/decisions, 0014.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, get_args

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
    """A route whose function takes, by name, any of `request`, `caller`, the model `body` and optional headers, and
    returns a Response. Without `body` it reads the request itself.
    """

    def get_route_handler(self) -> Handler:
        function, permission = self.endpoint, self.permission
        parameters = inspect.signature(function, eval_str=True).parameters
        body_of = _adapter(parameters["body"].annotation) if "body" in parameters else None
        headers = [OptionalHeader(name, parameters[name].annotation) for name in parameters.keys() - _NO_HEADERS]
        takes_request, takes_caller = "request" in parameters, "caller" in parameters

        async def handle(request: Request) -> Response:
            principal = get_principal(request)
            principal.require(permission)
            request = StrictRequest(request.scope, request.receive)
            arguments: dict[str, Any] = {}
            if takes_request:
                arguments["request"] = request
            if takes_caller:
                arguments["caller"] = principal
            if body_of is not None:
                arguments["body"] = validate_value(body_of, await _content(request))
            for header in headers:
                arguments[header.name] = header.read(request)
            return await function(**arguments)  # type: ignore[no-any-return]

        return handle


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


_NO_HEADERS = {"request", "caller", "body"}


class OptionalHeader:
    """An optional header as a parameter: `Annotated[str | None, Header(alias=...)] = None`."""

    def __init__(self, name: str, hint: Any) -> None:
        kind, declared = get_args(hint)
        assert isinstance(declared, Header)
        assert declared.alias is not None
        self.name, self.alias = name, declared.alias
        constrained: Any = Annotated[kind, *declared.metadata]
        self._values: TypeAdapter[Any] = TypeAdapter(constrained)

    @classmethod
    def of(cls, name: str, hint: Any) -> OptionalHeader | None:
        """The header that a parameter's annotation declares, if it declares one."""
        return cls(name, hint) if any(isinstance(part, Header) for part in get_args(hint)) else None

    def read(self, request: Request) -> Any:
        return self.check(request.headers.get(self.alias))

    def check(self, value: str | None) -> Any:
        """The value, when it may be one. Raises RequestValidationError."""
        return None if value is None else validate_value(self._values, value, ("header", self.alias))


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
