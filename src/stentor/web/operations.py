"""Operations: what Stentor offers, each declared once and served by every surface.

An operation is a typed function with a name and a permission. Its parameters are the input, its return type is the
output; both are pydantic types, so the same declaration validates, serializes and documents. This module has the
decorator and the HTTP adapter; the gRPC adapter is `surfaces/grpc/operations.py`. What does not fit (streams, foreign
wire formats) is an ordinary route next to the operations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from stentor.auth.principal import Principal
from stentor.core.errors import Unauthorized
from stentor.core.jsontext import JsonObject
from stentor.core.validation.unknown_fields import explain_unknown_fields
from stentor.core.validation.validation_errors import list_errors
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.errors import validation_error
from stentor.web.fast_routes import FastRoute
from stentor.web.routes import PUBLIC, GatewayRoute
from stentor.web.wire import (
    API_PREFIX,
    COMMON_ERROR_RESPONSES,
    Enveloped,
    ResponseModel,
    error_responses,
    next_link,
)

Run = TypeVar("Run", bound=Callable[..., Coroutine[Any, Any, Any]])


@dataclass(frozen=True, eq=False)
class Operation:
    """A declared operation; `run` is a function of a class, and once bound a method of its instance.

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
    def documented_errors(self) -> tuple[int, ...]:
        """`errors`, with that of an archived task where the path has one."""
        return tuple(sorted({*self.errors, 410})) if "{task_id}" in self.http else self.errors

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

    def bound_to(self, owner: object, name: str) -> Operation:
        """Return the same with a method of `owner` to run; what was computed from the signature is kept."""
        # Not by `copy`: every start of a service and of a test binds all operations.
        made = object.__new__(Operation)
        made.__dict__.update(self.__dict__, run=getattr(owner, name))
        return made

    @property
    def response_model(self) -> Any:
        """The body over HTTP."""
        return Enveloped.__class_getitem__(self.output) if self.envelope else self.output


def operation(
    name: str,
    permission: str,
    http: str,
    status: int = 200,
    errors: tuple[int, ...] = (),
    *,
    grpc: str | None = None,
    **flags: bool,
) -> Callable[[Run], Run]:
    """Declare a method as an operation, with the fields of its Operation; `operations_of` its class lists it."""

    def declare(run: Run) -> Run:
        vars(run)["operation"] = Operation(name, permission, run, http, status, errors, grpc=grpc, **flags)
        return run

    return declare


def operations_of(cls: type) -> list[Operation]:
    """Return the operations among the methods of a class, in their order."""
    return [method.operation for method in vars(cls).values() if hasattr(method, "operation")]


@cache
def _signature(run: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of an operation. They are evaluated once for all instances of its class."""
    signature = inspect.signature(run, eval_str=True)
    return signature.replace(parameters=[p for name, p in signature.parameters.items() if name != "self"])


def bind(operations: Iterable[Operation], *owners: object) -> list[Operation]:
    """Return the operations of these instances' classes, bound to the instances; all others are left out."""
    by_class = {type(owner).__name__: owner for owner in owners}
    bound = []
    for row in operations:
        name_of_class, _, name = row.run.__qualname__.partition(".")
        if name_of_class in by_class:
            bound.append(row.bound_to(by_class[name_of_class], name))
    return bound


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
                where = ("body",) if name == "body" else ("body", name)
                details = list_errors(error, *where)
                annotation = operation.signature.parameters[name].annotation
                raise validation_error(explain_unknown_fields(details, annotation)) from None
    if "caller" in operation.signature.parameters:
        values["caller"] = caller
    return operation.output_adapter.dump_python(await operation.run(**values), mode="json", by_alias=True)


def http_request(operation: Operation, arguments: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Return method, path with its query, and body of a call of the operation over HTTP."""
    rest = dict(arguments)
    body = rest.pop("body", None)
    method, _, template = operation.http.partition(" ")
    path = re.sub(r"\{(\w+)\}", lambda found: quote(str(rest.pop(found[1])), safe=""), template)
    query = f"?{urlencode(rest)}" if rest else ""
    return method, f"{API_PREFIX}{path}{query}", {} if body is None and method in ("POST", "PATCH") else body


@cache
def operation_route(operation: Operation, tag: str) -> GatewayRoute:
    """Return the route of an operation over HTTP, the same in every application of the process.

    FastAPI takes long to build one. So it calls the operation of the application that has the request, which
    `app.state.operations` has by its name.
    """
    method, _, path = operation.http.partition(" ")

    def describe(endpoint: Callable[..., Any]) -> JsonObject:
        return {
            "endpoint": endpoint,
            "methods": [method],
            "name": operation.run.__name__,
            # Generated clients name their functions after it.
            "operation_id": operation.name.replace(".", "_"),
            "description": inspect.getdoc(operation.run),
            "status_code": operation.status,
            "response_model": operation.response_model,
            "responses": {**COMMON_ERROR_RESPONSES, **error_responses(*operation.documented_errors)},
            "openapi_extra": {"x-permission": operation.permission},
            "tags": [tag],
        }

    if operation.fast:
        return FastRoute(API_PREFIX + path, **describe(_fast_endpoint(operation)))
    return GatewayRoute.described_later(
        method, API_PREFIX + path, operation.permission, lambda: describe(_endpoint(operation))
    )


def _endpoint(operation: Operation) -> Callable[..., Any]:
    """Return the operation as a function of a FastAPI route."""

    async def endpoint(request: Request, response: Response, **arguments: Any) -> Any:
        work = _of_application(request, operation).run(**arguments)
        output = await (cancel_on_disconnect(request, work) if operation.cancellable else work)
        if has_headers:
            response.headers.update(response_headers(output, request))
        return {"success": True, "data": output} if operation.envelope else output

    has_headers = _has_headers(operation.output)
    return _with_parameters(endpoint, operation, "request", "response")


def _fast_endpoint(operation: Operation) -> Callable[..., Any]:
    """Return the operation as a function of a FastRoute, which passes the request and takes a response."""

    async def endpoint(request: Request, **arguments: Any) -> Response:
        output = await _of_application(request, operation).run(**arguments)
        headers = response_headers(output, request) if has_headers else None
        return Response(
            operation.output_adapter.dump_json(output, by_alias=True), operation.status, headers, "application/json"
        )

    has_headers = _has_headers(operation.output)
    return _with_parameters(endpoint, operation, "request")


def _of_application(request: Request, operation: Operation) -> Operation:
    bound: Operation = request.app.state.operations[operation.name]
    return bound


def _with_parameters(endpoint: Callable[..., Any], operation: Operation, *http_only: str) -> Callable[..., Any]:
    """Have FastAPI see the operation's parameters and the endpoint's: it reads the signature."""
    own = inspect.signature(endpoint, eval_str=True).parameters
    every = [*(own[name] for name in http_only), *operation.signature.parameters.values()]
    # All become keywords: any order is valid.
    parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in every]
    endpoint.__signature__ = operation.signature.replace(parameters=parameters)  # pyrefly: ignore[missing-attribute] - inspect looks for it, the type of a function has none
    return endpoint


def _has_headers(output: Any) -> bool:
    return (
        isinstance(output, type) and issubclass(output, ResponseModel) and bool(_HEADER_FIELDS & {*output.model_fields})
    )


_HEADER_FIELDS = {"next_cursor", "etag"}


def response_headers(output: Any, request: Request) -> dict[str, str]:
    """Return the headers that follow from an output: `Link` to the next page, `ETag` of a document."""
    headers = next_link(request, getattr(output, "next_cursor", None))
    if etag := getattr(output, "etag", None):
        headers["ETag"] = f'"{etag}"'
    return headers
