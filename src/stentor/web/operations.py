"""Operations: what Stentor offers, each declared once and served by every surface.

An operation is a typed function with a name and a permission. Its parameters are the input, its return type is the
output; both are pydantic types, so the same declaration validates, serializes and documents. This module has the row of
the table and the HTTP adapter; the gRPC adapter is `surfaces/grpc/operations.py`. What does not fit (streams, foreign
wire formats) is an ordinary route beside the table.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from stentor.auth.principal import Principal
from stentor.core.errors import Unauthorized
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.errors import validation_error
from stentor.web.fast_routes import FastRoute
from stentor.web.routes import PUBLIC
from stentor.web.unknown_fields import explain_unknown_fields
from stentor.web.wire import API_PREFIX, Enveloped, ResponseModel, api_router, error_responses, next_link


@dataclass(frozen=True)
class Operation:
    """A row of the table of operations.

    `http` is a method and a path below /api/v1. `errors` are statuses beyond those that every operation may answer.
    `envelope` wraps the output as `{"success": true, "data": ...}`. `cancellable` work is cancelled when the caller
    hangs up. `fast` leaves out FastAPI's parameter resolution, for frequent operations. `grpc` is the method of the
    domain's gRPC service. `has_own_route` is for a route that is written by hand, because it does more than the
    operation, such as stream.
    """

    name: str
    permission: str
    run: Callable[..., Coroutine[Any, Any, Any]]
    http: str
    status: int = 200
    errors: tuple[int, ...] = ()
    envelope: bool = False
    cancellable: bool = False
    fast: bool = False
    grpc: str | None = None
    has_own_route: bool = False

    @property
    def signature(self) -> inspect.Signature:
        return _signature(getattr(self.run, "__func__", self.run))

    @property
    def output(self) -> Any:
        return self.signature.return_annotation

    @cached_property
    def output_adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.output)

    @cached_property
    def parameters(self) -> dict[str, TypeAdapter[Any]]:
        """What validates each parameter but the caller."""
        every = self.signature.parameters.items()
        return {name: TypeAdapter(p.annotation) for name, p in every if name != "caller"}

    @property
    def response_model(self) -> Any:
        """The body over HTTP."""
        return Enveloped.__class_getitem__(self.output) if self.envelope else self.output


@cache
def _signature(run: Callable[..., Any]) -> inspect.Signature:
    """The parameters of an operation; of the function of a class, they are evaluated once for all instances."""
    signature = inspect.signature(run, eval_str=True)
    return signature.replace(parameters=[p for name, p in signature.parameters.items() if name != "self"])


def bind(operations: Iterable[Operation], owner: object) -> list[Operation]:
    """The operations of a class as those of one of its instances."""
    return [replace(operation, run=getattr(owner, operation.run.__name__)) for operation in operations]


async def invoke(operation: Operation, caller: Principal | None, arguments: Mapping[str, Any]) -> Any:
    """Call an operation without HTTP: check the permission, validate the arguments, return the output as JSON values.

    Only public operations need no caller. Raises Unauthorized, Forbidden, InvalidRequest, and what it raises itself.
    """
    if operation.permission != PUBLIC:
        if caller is None:
            raise Unauthorized("Authentication required.")
        caller.require(operation.permission)
    values: dict[str, Any] = {}
    for name, adapter in operation.parameters.items():
        if name not in arguments:
            if operation.signature.parameters[name].default is inspect.Parameter.empty:
                raise validation_error([{"type": "missing", "loc": ("body", name), "msg": "Field required"}])
        else:
            try:
                values[name] = adapter.validate_python(arguments[name])
            except ValidationError as error:
                where = () if name == "body" else (name,)
                details = [{**detail, "loc": ("body", *where, *detail["loc"])} for detail in error.errors()]
                annotation = operation.signature.parameters[name].annotation
                raise validation_error(explain_unknown_fields(details, annotation)) from None
    if "caller" in operation.signature.parameters:
        values["caller"] = caller
    return operation.output_adapter.dump_python(await operation.run(**values), mode="json", by_alias=True)


def http_request(operation: Operation, arguments: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Method, path with its query, and body of a call of the operation over HTTP."""
    rest = dict(arguments)
    body = rest.pop("body", None)
    method, _, template = operation.http.partition(" ")
    path = re.sub(r"\{(\w+)\}", lambda found: quote(str(rest.pop(found[1])), safe=""), template)
    query = f"?{urlencode(rest)}" if rest else ""
    return method, f"{API_PREFIX}{path}{query}", {} if body is None and method in ("POST", "PATCH") else body


def operation_routes(operations: Iterable[Operation], *tags: str) -> APIRouter:
    """Serve operations over HTTP, in the order of the table."""
    api = api_router(tags=list(tags))
    for operation in operations:
        if operation.has_own_route:
            continue
        method, _, path = operation.http.partition(" ")
        api.add_api_route(
            path,
            _fast_endpoint(operation) if operation.fast else _endpoint(operation),
            methods=[method],
            name=operation.run.__name__,
            description=inspect.getdoc(operation.run),
            status_code=operation.status,
            response_model=operation.response_model,
            responses=error_responses(*operation.errors),
            openapi_extra={"x-permission": operation.permission},
            route_class_override=FastRoute if operation.fast else None,
        )
    return api


def _endpoint(operation: Operation) -> Callable[..., Any]:
    """The operation's own function, wrapped only where HTTP has more to do with it."""
    if not operation.envelope and not operation.cancellable and not _has_headers(operation.output):
        return operation.run

    async def endpoint(request: Request, response: Response, **arguments: Any) -> Any:
        work = operation.run(**arguments)
        output = await (cancel_on_disconnect(request, work) if operation.cancellable else work)
        response.headers.update(response_headers(output, request))
        return {"success": True, "data": output} if operation.envelope else output

    signature = inspect.signature(endpoint, eval_str=True)
    http_only = [signature.parameters["request"], signature.parameters["response"]]
    # FastAPI reads the signature and must see the operation's own parameters. All become keywords: any order is valid.
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*http_only, *operation.signature.parameters.values())]
    endpoint.__signature__ = operation.signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return endpoint


def _fast_endpoint(operation: Operation) -> Callable[..., Any]:
    """The operation as a function of a FastRoute, which hands over the request and takes a response."""

    has_headers = _has_headers(operation.output)

    async def endpoint(request: Request, **arguments: Any) -> Response:
        output = await operation.run(**arguments)
        headers = response_headers(output, request) if has_headers else None
        return Response(
            operation.output_adapter.dump_json(output, by_alias=True), operation.status, headers, "application/json"
        )

    request = inspect.signature(endpoint, eval_str=True).parameters["request"]
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (request, *operation.signature.parameters.values())]
    endpoint.__signature__ = operation.signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return endpoint


def _has_headers(output: Any) -> bool:
    return (
        isinstance(output, type) and issubclass(output, ResponseModel) and bool(_HEADER_FIELDS & {*output.model_fields})
    )


_HEADER_FIELDS = {"next_cursor", "etag"}


def response_headers(output: Any, request: Request) -> dict[str, str]:
    """The headers that follow from an output: `Link` to the next page, `ETag` of a document."""
    headers = next_link(request, getattr(output, "next_cursor", None))
    if etag := getattr(output, "etag", None):
        headers["ETag"] = f'"{etag}"'
    return headers
