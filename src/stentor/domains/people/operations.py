"""Operations of people who sign in with a provider. Source: docs/keys.md, "Single sign-on"."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import AfterValidator, StringConstraints

from stentor.auth.principal import Role
from stentor.domains.people.model import Person
from stentor.domains.people.service import PeopleService
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import PUBLIC, RequestModel, example_config
from stentor.web.wire import Address, Caller, ResponseModel, Timestamp

PersonName = Annotated[str, Path(description="The person's name."), AfterValidator(decode_path_segment)]
Token = Annotated[str, StringConstraints(min_length=1, max_length=50_000, pattern=r"^[!-~]+$")]


SIGN_IN_PATHS = frozenset(("/api/v1/people/sign-in",))
"""Needs no key, because an ID token is the credential."""


class SignInIn(RequestModel):
    """The tokens that the provider gave for a code, and the nonce that was sent to it.

    The access token is used for claims that the ID token lacks; it is not stored.
    """

    model_config = example_config(id_token="eyJhbGciOiJSUzI1NiJ9.e30.c2ln", nonce="n-0S6_WzA2Mj")  # noqa: S106 - fake

    id_token: Token
    nonce: Annotated[Token, StringConstraints(max_length=200)]
    access_token: Annotated[str, StringConstraints(max_length=50_000)] = ""
    address: Address = ""


class OpenedSession(ResponseModel):
    """`session` is a credential like a key, until `expires_at`; only this response has it."""

    name: str
    role: Role
    permissions: list[str]
    tenant: str
    session: str
    expires_at: Timestamp


class SignOutIn(RequestModel):
    model_config = example_config(session="st_4fT0")

    session: Token


class SignOutOut(ResponseModel):
    signed_out: Literal[True] = True


class PersonOut(ResponseModel):
    """A person who has signed in. `sessions` is the number of open ones; a `released` name has no account.

    With `without_role` the groups gave no role at the last attempt to sign in, or the settings of now give them none,
    and `role` is the one of before.
    """

    name: str
    role: Role
    permissions: list[str]
    status: Literal["active", "blocked", "released", "without_role"]
    sessions: int
    last_sign_in_at: Timestamp
    created_at: Timestamp
    blocked_at: Timestamp | None = None
    blocked_by: str | None = None
    team: str = ""


class PersonList(ResponseModel):
    people: list[PersonOut]
    total: int
    provider: bool
    """Whether a provider is configured."""


class PeopleOperations:
    """Operations on people."""

    def __init__(self, people: PeopleService) -> None:
        self._people = people

    @operation("people.sign_in", PUBLIC, "POST /people/sign-in", 201, (404,))
    async def sign_in(self, body: SignInIn) -> OpenedSession:
        """Open a session for the person whom an ID token names. It needs no key: the token is the credential."""
        done = await self._people.sign_in(body.id_token, body.nonce, body.access_token, body.address)
        permissions = sorted(done.person.permissions)
        return OpenedSession.of(done.person, permissions=permissions, session=done.secret, expires_at=done.expires_at)

    @operation("people.sign_out", "read", "POST /people/sign-out")
    async def sign_out(self, caller: Caller, body: SignOutIn) -> SignOutOut:
        """End one of one's own sessions. An unknown one is not an error."""
        await self._people.sign_out(caller, body.session)
        return SignOutOut()

    @operation("people.list", "admin", "GET /people")
    async def list_people(self, caller: Caller) -> PersonList:
        """List the people of the tenant who ever signed in with the provider, by name."""
        people = [self._output(person) for person in await self._people.list_people(caller.tenant)]
        return PersonList(people=people, total=len(people), provider=self._people.is_enabled)

    @operation("people.sign_out_all", "admin", "POST /people/{name}/sign-out", errors=(404,))
    async def sign_out_all(self, caller: Caller, name: PersonName) -> PersonOut:
        """Sign a person out everywhere, at once. The next sign-in brings the role that the groups have then."""
        return self._output(await self._people.end_sessions(caller, name))

    @operation("people.block", "admin", "POST /people/{name}/block", errors=(404, 409))
    async def block(self, caller: Caller, name: PersonName) -> PersonOut:
        """End a person's sessions at once, and refuse further sign-ins. Repeating it is not an error."""
        return self._output(await self._people.block(caller, name))

    @operation("people.unblock", "admin", "POST /people/{name}/unblock", errors=(404,))
    async def unblock(self, caller: Caller, name: PersonName) -> PersonOut:
        """Let a blocked person sign in again. Repeating it is not an error."""
        return self._output(await self._people.unblock(caller, name))

    @operation("people.release", "admin", "POST /people/{name}/release", errors=(404,))
    async def release(self, caller: Caller, name: PersonName) -> PersonOut:
        """Let the next account with this name have it, because the provider has replaced the person's account."""
        return self._output(await self._people.release(caller, name))

    def _output(self, person: Person) -> PersonOut:
        sessions = self._people.count_sessions(person)
        return PersonOut.of(person, permissions=sorted(person.permissions), status=_status(person), sessions=sessions)


def _status(person: Person) -> str:
    if person.blocked_at is not None:
        return "blocked"
    if person.subject is None:
        return "released"
    return "active" if person.permissions else "without_role"
