"""AtpService: sends messages. The operation is that of the REST route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stentor.surfaces.grpc.generated import atp_pb2 as pb
from stentor.surfaces.grpc.methods import Method
from stentor.surfaces.grpc.operations import operation_methods
from stentor.web.operations import Operation

SERVICE = pb.DESCRIPTOR.services_by_name["AtpService"]


class AtpServicer:
    """The methods of AtpService."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = operations

    def methods(self) -> Mapping[str, Method]:
        return operation_methods(SERVICE, self._operations)
