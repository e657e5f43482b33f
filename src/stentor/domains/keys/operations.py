"""Operations on API keys, for people with the permission `admin`. Source: docs/keys.md, "Keys"."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import Path
from pydantic import AfterValidator, Field, StringConstraints

from stentor.auth.principal import Permission, Principal, Role
from stentor.core.clock import Clock, micros_from_datetime
from stentor.core.validation.text_checks import NAME_PATTERN, check_printable
from stentor.domains.keys.model import ApiKey, KeyStatus
from stentor.domains.keys.service import KeyDraft, KeyService
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, Name, ResponseModel, Time, Timestamp

KeyName = Annotated[str, Path(description="The key's name."), AfterValidator(decode_path_segment)]
Description = Annotated[str, StringConstraints(max_length=500), AfterValidator(check_printable)]
MemoryText = Annotated[str, StringConstraints(max_length=2_000), AfterValidator(check_printable)]
BudgetTexts = Annotated[list[Annotated[Name, StringConstraints(max_length=100)]], Field(max_length=10)]
ModelPattern = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200), AfterValidator(check_printable)
]
ModelPatterns = Annotated[list[ModelPattern], Field(max_length=50)]
TeamName = Annotated[str, StringConstraints(pattern=rf"^({NAME_PATTERN})?$")]


class KeyIn(RequestModel):
    """Without `permissions` the key has those of its role.

    `memory` is its access to the governed memory as `<namespace>:r` or `<namespace>:rw`, comma separated; empty means
    the default of its permissions. `budgets` limit what it may spend on models, such as `usd/month=20`. `models` limit
    which it may call: groups, and models as `gpt-5-mini` or `openai/gpt-*` where `*` is any text; empty means all.
    The model calls of keys with the same `team` count to the budgets of this team together; empty means no team.
    """

    model_config = example_config(name="ci", role="operator", description="Nightly builds", budgets=["usd/month=20"])

    name: Annotated[Name, StringConstraints(max_length=63)]
    role: Role
    permissions: Annotated[list[Permission], Field(min_length=1, max_length=10)] | None = None
    description: Description = ""
    memory: MemoryText = ""
    budgets: BudgetTexts = []
    models: ModelPatterns = []
    team: TeamName = ""
    expires_at: Time | None = None


class KeyChange(RequestModel):
    """Omitted fields stay unchanged; `expires_at` null means never. A new role without `permissions` brings its own."""

    model_config = example_config(role="viewer")

    role: Role | None = None
    permissions: Annotated[list[Permission], Field(min_length=1, max_length=10)] | None = None
    description: Description | None = None
    memory: MemoryText | None = None
    budgets: BudgetTexts | None = None
    models: ModelPatterns | None = None
    team: TeamName | None = None
    expires_at: Time | None = None


class KeyOut(ResponseModel):
    """A key without its secret; `hint` is how the secret begins.

    Keys that are `configured` come from the environment: they cannot be changed here, and have no times.
    """

    name: str
    role: Role
    permissions: list[str]
    tenant: str
    status: KeyStatus
    configured: bool
    hint: str | None = None
    description: str = ""
    memory: str = ""
    budgets: list[str] = []
    models: list[str] = []
    team: str = ""
    created_by: str | None = None
    created_at: Timestamp | None = None
    expires_at: Timestamp | None = None
    last_used_at: Timestamp | None = None
    revoked_at: Timestamp | None = None
    revoked_by: str | None = None


class NewKey(KeyOut):
    """Has the secret `key`, as no other response does."""

    key: str


class KeyList(ResponseModel):
    keys: list[KeyOut]
    total: int


Output = TypeVar("Output", bound=KeyOut)


class KeyOperations:
    """Operations on API keys."""

    def __init__(self, keys: KeyService, clock: Clock) -> None:
        self._keys, self._clock = keys, clock

    @operation("keys.create", "admin", "POST /keys", 201, (409,))
    async def create(self, caller: Caller, body: KeyIn) -> NewKey:
        """Create a key in the tenant of the caller, valid at once. Only this response shows it."""
        fields = body.model_dump()
        if body.expires_at is not None:
            fields["expires_at"] = micros_from_datetime(body.expires_at)
        fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        key, secret = await self._keys.create(caller, KeyDraft(**fields))
        return self._output(NewKey, key, key=secret)

    @operation("keys.list", "admin", "GET /keys")
    async def list_keys(self, caller: Caller) -> KeyList:
        """List the keys of the tenant: those of the environment by name, then the others, oldest first."""
        configured = [_configured_output(principal) for principal in self._keys.list_configured(caller.tenant)]
        stored = [self._output(KeyOut, key) for key in await self._keys.list_keys(caller.tenant)]
        return KeyList(keys=configured + stored, total=len(configured) + len(stored))

    @operation("keys.get", "admin", "GET /keys/{name}", errors=(404, 409))
    async def read(self, caller: Caller, name: KeyName) -> KeyOut:
        """Return a key that was made at runtime, without its secret."""
        return self._output(KeyOut, await self._keys.get(caller.tenant, name))

    @operation("keys.change", "admin", "PATCH /keys/{name}", errors=(404, 409))
    async def change(self, caller: Caller, name: KeyName, body: KeyChange) -> KeyOut:
        """Change what a key may do and until when; it applies at once."""
        changes: dict[str, Any] = body.model_dump(exclude_unset=True)
        # Only for the expiry does null mean something: never.
        changes = {field: value for field, value in changes.items() if value is not None or field == "expires_at"}
        if body.expires_at is not None:
            changes["expires_at"] = micros_from_datetime(body.expires_at)
        changes |= {field: tuple(value) for field, value in changes.items() if isinstance(value, list)}
        return self._output(KeyOut, await self._keys.change(caller, name, changes))

    @operation("keys.rotate", "admin", "POST /keys/{name}/rotate", errors=(404, 409))
    async def rotate(self, caller: Caller, name: KeyName) -> NewKey:
        """Give a key a new secret, which only this response shows; the old one is invalid at once."""
        key, secret = await self._keys.rotate(caller, name)
        return self._output(NewKey, key, key=secret)

    @operation("keys.revoke", "admin", "POST /keys/{name}/revoke", errors=(404, 409))
    async def revoke(self, caller: Caller, name: KeyName) -> KeyOut:
        """Revoke a key permanently and at once. Repeating it is not an error."""
        return self._output(KeyOut, await self._keys.revoke(caller, name))

    def _output(self, kind: type[Output], stored: ApiKey, **fields: str) -> Output:
        return kind.of(stored, status=stored.status_at(self._clock.now()), configured=False, **fields)


def _configured_output(principal: Principal) -> KeyOut:
    permissions = sorted(principal.permissions)
    return KeyOut.of(principal, permissions=permissions, status="active", configured=True)
