"""Fast routes: hot routes that skip FastAPI's parameter resolution and the linear search of the router.

They are looked up by method and path before the router runs. Checks, errors and OpenAPI are the same as for other
routes; parameter resolution alone costs more than routing a task. Source: docs/decisions, 0014.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property
from typing import Annotated, Any, NamedTuple, get_args

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.params import Header
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.core.validation.unknown_fields import explain_unknown_fields
from stentor.core.validation.validation_errors import list_errors
from stentor.web import errors
from stentor.web.request_context import find_header
from stentor.web.routes import GatewayRoute, StrictRequest, get_principal

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
FastHandlers = dict[tuple[str, str], Handler]


class FastTemplate(NamedTuple):
    """A fast route with one path parameter, and the parameter's name."""

    route: BaseRoute
    parameter: str
    handler: Handler


FastTemplates = dict[tuple[str, str, str], FastTemplate]
_NOT_HEADERS = {"request", "caller", "body"}


class FastRoute(GatewayRoute):
    """A route whose function takes, by name, any of `request`, `caller`, the model `body`, path parameters and optional
    headers.

    It returns a Response. A function without `body` reads the request itself.
    """

    def get_route_handler(self) -> Handler:
        return self._handler

    @cached_property
    def _handler(self) -> Handler:
        function, permission = self.endpoint, self.permission
        parameters = inspect.signature(function, eval_str=True).parameters
        body_adapter: TypeAdapter[Any] | None = None
        body_type: Any = parameters["body"].annotation if "body" in parameters else None
        if body_type is not None:
            body_adapter = TypeAdapter(body_type)
        in_path = {name: TypeAdapter(parameters[name].annotation) for name in self.param_convertors}
        named = parameters.keys() - _NOT_HEADERS - in_path.keys()
        headers = [OptionalHeader(name, parameters[name].annotation) for name in named]
        takes_request, takes_caller = "request" in parameters, "caller" in parameters

        async def handle(request: Request) -> Response:
            principal = get_principal(request)
            principal.require(permission)
            if not isinstance(request, StrictRequest):  # from the router
                request = StrictRequest(request.scope, request.receive)
            arguments: dict[str, Any] = {}
            if takes_request:
                arguments["request"] = request
            if takes_caller:
                arguments["caller"] = principal
            for name, adapter in in_path.items():
                arguments[name] = validate_value(adapter, request.path_params[name], ("path", name))
            if body_adapter is not None:
                arguments["body"] = validate_value(body_adapter, await _read_json(request), body_type=body_type)
            for header in headers:
                arguments[header.name] = header.read(request)
            return await function(**arguments)  # pyrefly: ignore[no-any-return-explicit] - the function of a fast route returns a Response

        return handle


class OptionalHeader:
    """An optional header as a parameter: `Annotated[str | None, Header(alias=...)] = None`."""

    def __init__(self, name: str, hint: Any) -> None:
        kind, declared = get_args(hint)
        assert isinstance(declared, Header)
        assert declared.alias is not None
        self.name, self.alias = name, declared.alias
        self._raw_name = declared.alias.lower().encode()
        constrained: Any = Annotated[kind, *declared.metadata]
        self._values: TypeAdapter[Any] = TypeAdapter(constrained)

    @classmethod
    def of(cls, name: str, hint: Any) -> OptionalHeader | None:
        """Return the header that a parameter's annotation declares, or None."""
        return cls(name, hint) if any(isinstance(part, Header) for part in get_args(hint)) else None

    def read(self, request: Request) -> Any:
        return self.check(find_header(request.scope, self._raw_name))

    def check(self, value: str | None) -> Any:
        """Return the validated value. Raises RequestValidationError."""
        return None if value is None else validate_value(self._values, value, ("header", self.alias))


async def _read_json(request: StrictRequest) -> Any:
    """Return the parsed body, or None if it is empty."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "The client disconnected before the body was complete.") from None
    return await request.json() if raw else None


def validate_value(
    adapter: TypeAdapter[Any], value: Any, where: tuple[str, ...] = ("body",), body_type: Any = None
) -> Any:
    """Validate a value; `where` is its location for the error. Raises RequestValidationError.

    With `body_type` the error says where unknown fields of the body belong.
    """
    if value is None:
        raise RequestValidationError([{"type": "missing", "loc": where, "msg": "Field required", "input": None}])
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise RequestValidationError(explain_unknown_fields(list_errors(error, *where), body_type)) from None


def collect_fast_handlers(routes: Iterable[BaseRoute]) -> FastHandlers:
    """Return the handlers of all fast routes without path parameters, by method and path."""
    return {
        (method, route.path): route.get_route_handler()
        for route in routes
        if isinstance(route, FastRoute) and "{" not in route.path
        for method in route.methods or ()
    }


def collect_fast_templates(routes: Iterable[BaseRoute]) -> FastTemplates:
    """Return the fast routes whose last segment but one is their only path parameter, such as `/tasks/{task_id}/fail`.

    By method, the path before the parameter, and the segment after it.
    """
    templates: FastTemplates = {}
    for route in routes:
        if isinstance(route, FastRoute) and len(route.param_convertors) == 1:
            head, parameter, last = route.path.rsplit("/", 2)
            (name,) = route.param_convertors
            assert parameter == f"{{{name}}}", route.path
            for method in route.methods or ():
                templates[method, head, last] = FastTemplate(route, name, route.get_route_handler())
    return templates


class FastRouteMiddleware:
    """Handles the fast routes of an application, and passes all other requests to `others`.

    Unexpected errors propagate.
    """

    def __init__(self, app: ASGIApp, handlers: FastHandlers, templates: FastTemplates, *, others: ASGIApp) -> None:
        self._app, self._others = app, others
        self._handlers, self._templates = handlers, templates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._find(scope) if scope["type"] == "http" else None
        if handler is None:
            await self._others(scope, receive, send)
            return
        # FastAPI sets it when it is called, but is bypassed here.
        scope["app"] = self._app
        request = StrictRequest(scope, receive)
        try:
            response = await handler(request)
        except Exception as error:
            # Starlette's exception handlers are inside the application, so they must be called here.
            if (error_handler := errors.find_error_handler(error)) is None:
                raise
            response = await error_handler(request, error)
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> Handler | None:
        handler = self._handlers.get((scope["method"], scope["path"]))
        if handler is not None:
            return handler
        segments = scope["path"].rsplit("/", 2)
        if len(segments) != 3 or not segments[1]:
            return None
        head, value, last = segments
        template = self._templates.get((scope["method"], head, last))
        if template is None:
            return None
        # As the router does: for the handler, and for the label of the request's duration.
        scope["path_params"], scope["route"] = {template.parameter: value}, template.route
        return template.handler
