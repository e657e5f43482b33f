"""Signs people in with an ID token, finds who holds a session, and ends sessions.

All people are held in memory, as keys are: a request costs a lookup. Another process loads a change when it gets a
message about it, at the latest with its next poll.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from stentor.auth.api_keys import KeyRing, digest_key, generate_key
from stentor.auth.authority import use_store
from stentor.auth.oidc.id_token import LEEWAY_US, MAX_AGE_US
from stentor.auth.oidc.provider import OidcProvider
from stentor.auth.principal import Principal, RoleRegistry
from stentor.core.clock import HOUR, MINUTE, Clock
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.polling import PollQuery
from stentor.core.errors import Conflict, Forbidden, NotFound, SignInFailed, SignInRefused
from stentor.core.formats import canonical_json
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.settings.installation import SignInSettings
from stentor.domains.people import model, store
from stentor.domains.people.model import Granted, Person, PersonSession

NOT_CONFIGURED = "Single sign-on is not configured: set SERVICE_OIDC_ISSUER."
REFUSALS_KEPT = 1_000
_LOCK = "people"


class SignedIn(msgspec.Struct, frozen=True):
    """The person with the secret of the new session, which is not stored, and the end in microseconds."""

    person: Person
    secret: str
    expires_at: int

    def __repr__(self) -> str:
        return f"SignedIn({self.person.name!r})"


class PeopleService:
    """The use cases of people. `provider` is None while no provider is configured; `session_hours` is the longest."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        clock: Clock,
        roles: RoleRegistry,
        settings: SignInSettings,
        provider: OidcProvider | None,
        session_hours: float,
    ) -> None:
        self._db, self._runlog, self._clock, self._roles = db, runlog, clock, roles
        self._settings, self._provider = settings, provider
        self._lifetime_us = int(session_hours * HOUR)
        self._rules = _digest_rules(settings)
        self._by_name: dict[str, Person] = {}
        self._by_digest: dict[bytes, tuple[Person, PersonSession]] = {}
        self._refusals: dict[str, int] = {}

    @property
    def is_enabled(self) -> bool:
        return self._provider is not None

    def attach(self, ring: KeyRing) -> None:
        """Have a ring find the sessions too; without a provider there are none, whatever is stored."""
        if self.is_enabled:
            ring.finders.append(self.find)

    def find(self, digest: bytes) -> Principal | None:
        """Return who holds a session, by the digest of its secret; None for an unknown or ended one."""
        entry = self._by_digest.get(digest)
        return entry[0].principal if entry is not None and self._is_open(entry[1]) else None

    def count_sessions(self, person: Person) -> int:
        """Return how many sessions of a person this process accepts."""
        return sum(map(self._is_open, person.sessions))

    def poll_query(self, since: int) -> PollQuery:
        """Return the poll that loads the people that changed since a time in microseconds."""
        return lambda tx: partial(self._apply, store.changed_since(tx, since))

    async def close(self) -> None:
        if self._provider is not None:
            await self._provider.close()

    async def sign_in(self, id_token: str, nonce: str, access_token: str, address: str) -> SignedIn:
        """Open a session for the person whom an ID token names.

        Raises NotFound without a provider, SignInFailed for a token that cannot be trusted or was used before,
        SignInRefused for a person who may not sign in, ServiceUnavailable while the provider's keys cannot be read.
        """
        if self._provider is None:
            raise NotFound(NOT_CONFIGURED)
        claims = await self._provider.verify(id_token, nonce)
        needed = (self._settings.groups_claim, self._settings.name_claim)
        if access_token and not all(model.has_claim(claims, claim) for claim in needed):
            more = await self._provider.read_user_info(access_token)
            if more.get("sub") == claims["sub"]:  # for another person it would be a substituted token
                # The ID token wins: it is signed for this sign-in.
                claims = more | claims
        try:
            granted = await self._grant(claims)
            name = model.read_name(claims, self._settings.name_claim)
            return await self._open_session(claims, name, granted, address)
        except SignInRefused as refusal:
            await self._record_refusal(claims, address, refusal)
            raise

    async def sign_out(self, caller: Principal, secret: str) -> None:
        """End one of the caller's own sessions; an unknown one is not an error."""
        digest = digest_key(secret).hex()

        def work(tx: Tx) -> None:
            tx.lock(_LOCK)
            person = store.find(tx, caller.name)
            if person is not None and any(session.digest == digest for session in person.sessions):
                rest = tuple(session for session in person.sessions if session.digest != digest)
                self._update(tx, person, "signed out", caller.name, {"sessions": rest})

        await self._db.write(work)

    async def list_people(self, tenant: str) -> list[Person]:
        """Return the people of a tenant who ever signed in, by name."""
        people = await self._db.read(lambda tx: store.list_people(tx, tenant))
        return [model.under_settings(person, self._settings) for person in people]

    async def end_sessions(self, caller: Principal, name: str) -> Person:
        """Sign a person out everywhere. Raises Forbidden, NotFound."""
        return await self._change(caller, name, "signed out everywhere", {"sessions": ()})

    async def block(self, caller: Principal, name: str) -> Person:
        """End a person's sessions and refuse further sign-ins. Repeating it is not an error.

        Raises Forbidden, NotFound, and Conflict for oneself.
        """
        if name == caller.name:
            raise Conflict("You cannot block your own account. Ask another admin.")
        changes = {"sessions": (), "blocked_at": self._clock.now(), "blocked_by": caller.name}
        return await self._change(caller, name, "blocked", changes)

    async def unblock(self, caller: Principal, name: str) -> Person:
        """Let a blocked person sign in again. Repeating it is not an error. Raises Forbidden, NotFound."""
        return await self._change(caller, name, "unblocked", {"blocked_at": None, "blocked_by": None})

    async def release(self, caller: Principal, name: str) -> Person:
        """Let the next account with this name have it, because the provider created the account again.

        Ends the sessions. Raises Forbidden, NotFound.
        """
        return await self._change(caller, name, "released", {"sessions": (), "subject": None})

    def _is_open(self, session: PersonSession) -> bool:
        # Only groups that gave a role are stored, so what other settings grant is known fully at the next sign-in.
        return session.expires_at > self._clock.now() and session.rules == self._rules

    async def _grant(self, claims: JsonObject) -> Granted:
        groups = model.read_groups(claims, self._settings.groups_claim)
        granted = model.grant(groups, self._settings.roles, self._settings.teams)
        if granted is None:
            await self._withdraw(str(claims["iss"]), str(claims["sub"]))
            reason = (
                "none of its groups has a role. SERVICE_OIDC_ROLES gives groups a role"
                if groups
                else f"the provider sent no groups in the claim {self._settings.groups_claim}. Ask for them with "
                "SERVICE_OIDC_SCOPES, or name their claim with SERVICE_OIDC_GROUPS_CLAIM"
            )
            raise SignInRefused(f"This account may not sign in: {reason}.")
        return granted

    async def _withdraw(self, issuer: str, subject: str) -> None:
        """End the sessions and permissions that an account got when its groups still gave it a role."""

        def work(tx: Tx) -> None:
            tx.lock(_LOCK)
            person = store.find_subject(tx, issuer, subject)
            if person is not None and (person.permissions or person.sessions):
                self._update(tx, person, "left without a role", person.name, {"permissions": (), "sessions": ()})

        await self._db.write(work)

    async def _open_session(self, claims: JsonObject, name: str, granted: Granted, address: str) -> SignedIn:
        issuer, subject, secret = str(claims["iss"]), str(claims["sub"]), generate_key()
        use = canonical_json.digest(["id_token", issuer, subject, claims["nonce"], claims["iat"]])

        def work(tx: Tx) -> Person:
            tx.lock(_LOCK)
            use_store.delete_expired(tx, tx.now - HOUR)
            # A stolen token would open sessions again after an admin ended them. `verify` refuses an older one.
            if not use_store.insert_use(tx, use, tx.now + MAX_AGE_US + 2 * LEEWAY_US):
                raise SignInFailed("The ID token was used already. Sign in again.")
            session = PersonSession(digest_key(secret).hex(), tx.now, tx.now + self._lifetime_us, address, self._rules)
            fields: dict[str, Any] = {"role": granted.role, "permissions": granted.permissions, "team": granted.team}
            fields |= {"tenant": self._settings.tenant, "issuer": issuer, "subject": subject}
            fields |= {"last_sign_in_at": tx.now, "updated_at": tx.now, "member_of": granted.member_of}
            person = _find_account(tx, issuer, subject, name)
            if person is None:
                person = Person(name=name, sessions=(session,), created_at=tx.now, version=1, **fields)
                store.insert(tx, person)
            else:
                # Drops expired sessions; the oldest of the rest are replaced by the new one.
                kept = person.sessions_at(tx.now)[-(model.MAX_SESSIONS - 1) :]
                fields |= {"sessions": (*kept, session), "version": person.version + 1}
                person = msgspec.structs.replace(person, **fields)
                store.update(tx, person)
            self._announce(tx, person, _signed_in(person, address))
            return person

        person = await self._db.write(work)
        return SignedIn(person, secret, person.sessions[-1].expires_at)

    async def _record_refusal(self, claims: JsonObject, address: str, refusal: SignInRefused) -> None:
        """Record a refusal, at most once a minute for an account: everybody whom the provider knows can cause one."""
        subject, now = str(claims["sub"]), self._clock.monotonic()
        if self._refusals.get(subject, -MINUTE) > now - MINUTE:
            return
        if len(self._refusals) >= REFUSALS_KEPT:
            # The oldest one, as a dictionary keeps its order.
            del self._refusals[next(iter(self._refusals))]
        self._refusals[subject] = now
        account = _printable(str(claims.get(self._settings.name_claim) or subject)[:200])
        meta = {"account": account, "subject": subject[:255], "address": address, "reason": refusal.message}
        draft = EventDraft("sign_in_refused", "people", f"Sign-in of {account} refused.", meta)
        await self._db.write(lambda tx: self._runlog.append(tx, self._settings.tenant, [draft]), NO_LOCKS)

    async def _change(self, caller: Principal, name: str, change: str, changes: dict[str, Any]) -> Person:
        if not caller.is_person:
            raise Forbidden(f"The key {caller.name!r} has the role agent, so it may not decide who signs in.")

        def work(tx: Tx) -> Person:
            tx.lock(_LOCK)
            person = store.find(tx, name)
            if person is None or person.tenant != caller.tenant:
                raise NotFound(f"Nobody named {name!r} has signed in.")
            if all(getattr(person, field) == value for field, value in changes.items()):
                return person
            # The fields differ because of the time, but the first block is the one to keep.
            if change == "blocked" and person.blocked_at is not None:
                return person
            return self._update(tx, person, change, caller.name, changes)

        return await self._db.write(work)

    def _update(self, tx: Tx, person: Person, change: str, by: str, changes: dict[str, Any]) -> Person:
        person = msgspec.structs.replace(person, **changes, updated_at=tx.now, version=person.version + 1)
        store.update(tx, person)
        meta = {"name": person.name, "change": change, "by": by}
        self._announce(tx, person, EventDraft("person_changed", "people", f"{person.name} {change}.", meta))
        return person

    def _announce(self, tx: Tx, person: Person, draft: EventDraft) -> None:
        """Append the run log event, and load the person after the commit."""
        self._runlog.append(tx, person.tenant, [draft])
        # After the commit: a sign-in that is rolled back must not leave a valid session in memory.
        tx.after_commit(partial(self._apply, [person]))

    def _apply(self, changed: list[Person]) -> None:
        for stored in changed:
            # Work that a person ordered goes on without a session, and must not keep a role that the operator took.
            person = model.under_settings(stored, self._settings)
            known = self._by_name.get(person.name)
            if known is not None:
                if known.version >= person.version:
                    continue  # an older row must never make an ended session valid again
                for session in known.sessions:
                    self._by_digest.pop(bytes.fromhex(session.digest), None)
            self._by_name[person.name] = person
            for session in person.sessions:
                self._by_digest[bytes.fromhex(session.digest)] = person, session
            is_active = person.blocked_at is None and person.subject is not None and self.is_enabled
            self._roles.set_role(person.principal, is_active=is_active, expires_at=None, changed_at=person.updated_at)


def _digest_rules(settings: SignInSettings) -> str:
    """Return a digest of the settings that decide who a person is and which role and team it gets."""
    claims = [settings.issuer, settings.tenant, settings.groups_claim, settings.name_claim]
    # Of the teams the order counts.
    return canonical_json.digest([*claims, sorted(settings.roles), list(settings.teams)])


def _find_account(tx: Tx, issuer: str, subject: str, name: str) -> Person | None:
    """Return the person of a provider's account, None for a new one.

    Raises SignInRefused for a blocked person, and for a name that another account has.
    """
    # By the provider's own id: an address or a user name can change hands.
    person = store.find_subject(tx, issuer, subject) or store.find(tx, name)
    if person is None:
        return None
    if person.subject is not None and (person.issuer, person.subject) != (issuer, subject):
        raise SignInRefused(
            f"The name {name} belongs to another account of the provider. An admin can release it: "
            f"stentor call people.release name={name}"
        )
    if person.blocked_at is not None:
        raise SignInRefused("An admin has blocked this account.")
    return person


def _signed_in(person: Person, address: str) -> EventDraft:
    meta = {"by": person.name, "role": person.role, "surface": "dashboard", "address": address, "issuer": person.issuer}
    if person.team:
        meta["team"] = person.team
    return EventDraft("signed_in", "people", f"{person.name} signed in to the dashboard.", meta)


def _printable(text: str) -> str:
    """Return a text of a provider as one line that a database takes."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
