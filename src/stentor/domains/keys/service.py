"""Makes, changes, rotates and revokes API keys, and finds the holder of one.

All keys are held in memory, by digest. Other processes load a change when they get a message about it, at the latest
with their next poll; a revoked key never becomes valid again there, however late an older row arrives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec

from stentor.auth.api_keys import (
    KeyRing,
    MemoryAccess,
    digest_key,
    find_unknown_vault,
    generate_key,
    parse_memory_access,
)
from stentor.auth.principal import Principal, Role, RoleRegistry
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.db.polling import CatchUp, PollQuery
from stentor.core.errors import Conflict, Forbidden, InvalidRequest, NotFound, StoreUnavailable
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.timers import sleep_until_tick
from stentor.domains.keys import model, store
from stentor.domains.keys.model import ApiKey

USE_SECONDS = 60.0
"""How often the times of last use are stored."""
_LOCK = "api keys"
log = logging.getLogger(__name__)


class KeyDraft(msgspec.Struct, frozen=True):
    """A key to be made; `permissions` None means those of the role. `expires_at` in microseconds."""

    name: str
    role: Role
    permissions: tuple[str, ...] | None = None
    description: str = ""
    memory: str = ""
    budgets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    team: str = ""
    expires_at: int | None = None


class KeyService:
    """The use cases of keys. `check_budgets` raises StartRefused for a malformed budget; `vaults` are their names.

    `on_budgets` gets the budgets of all keys by tenant, as entries of SERVICE_LLM_BUDGETS, whenever they change.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        clock: Clock,
        roles: RoleRegistry,
        check_budgets: Callable[[list[str]], object],
        on_budgets: Callable[[dict[str, list[str]]], None],
        vaults: Collection[str],
    ) -> None:
        self._db, self._runlog, self._clock, self._roles = db, runlog, clock, roles
        self._check_budgets, self._on_budgets, self._vaults = check_budgets, on_budgets, vaults
        self._configured: dict[str, Principal] = {}
        self.configured_access: dict[str, MemoryAccess] = {}
        """What the keys of the environment may access of the governed memory, by name."""
        self._by_name: dict[str, ApiKey] = {}
        self._by_digest: dict[bytes, tuple[ApiKey, Principal]] = {}
        self._used: dict[str, int] = {}
        self.catch_up = CatchUp()

    def attach(self, ring: KeyRing) -> None:
        """Make a key ring find these keys too. Its own keys win over stored keys of the same name."""
        self._configured = {principal.name: principal for principal in ring.principals}
        ring.finders.append(self.find)
        ring.find_expiry = self.find_expiry
        ring.catch_up = self.catch_up

    async def reserve_names(self) -> None:
        """Reserve the names of the environment's keys permanently, because records contain them."""
        holders = self._configured.values()
        await self._db.write(lambda tx: store.insert_missing(tx, [reserve_name(holder, tx.now) for holder in holders]))

    def find(self, digest: bytes) -> Principal | None:
        """Return the holder of a key by its digest; None for an unknown, expired or revoked one."""
        entry = self._by_digest.get(digest)
        if entry is None:
            return None
        key, principal = entry
        now = self._clock.now()
        # Checked at each use, because the expiry of a key triggers nothing.
        if key.status_at(now) != "active":
            return None
        # In memory: a write for each request would cost more than the request.
        self._used[key.name] = now
        return principal

    def find_expiry(self, digest: bytes) -> int | None:
        """Return when a key expires or has expired, in microseconds; None for an unknown, revoked or lasting one."""
        entry = self._by_digest.get(digest)
        return None if entry is None else entry[0].expires_at

    def memory_access(self, name: str) -> MemoryAccess | None:
        """Return the access to the governed memory that a key was given; None if it has the default."""
        if (access := self.configured_access.get(name)) is not None:
            return access
        key = self._by_name.get(name)
        return parse_memory_access(key.memory) if key is not None and key.memory else None

    def list_configured(self, tenant: str) -> list[Principal]:
        """Return the keys of the environment, which cannot be changed here."""
        return sorted((p for p in self._configured.values() if p.tenant == tenant), key=lambda p: p.name)

    def poll_query(self, since: int) -> PollQuery:
        """Return the poll that loads the keys that changed since a time in microseconds."""
        return lambda tx: partial(self._apply, store.changed_since(tx, since))

    async def create(self, caller: Principal, draft: KeyDraft) -> tuple[ApiKey, str]:
        """Create a key in the caller's tenant and return it with its secret, which is not stored.

        Raises Forbidden, InvalidRequest, and Conflict for a name that is taken and for too many keys.
        """
        _require_person(caller)
        model.check_name(draft.name, self._configured)
        permissions = model.select_permissions(draft.role, draft.permissions)
        self._check_limits(draft.name, draft.memory, draft.budgets)
        model.check_models(draft.models)
        secret = generate_key()

        def work(tx: Tx) -> ApiKey:
            # Names are unique over all tenants, so the lock is one for all of them.
            tx.lock(_LOCK)
            model.check_expiry(draft.expires_at, tx.now)
            # Includes revoked keys: their names are in records, and must not refer to somebody else later.
            if (taken := store.find(tx, draft.name)) is not None:
                if not taken.created_by:
                    why = "belongs or belonged to a key of the environment, and records refer to that key"
                    raise Conflict(f"The name {draft.name!r} {why}: use another name.")
                if taken.tenant == caller.tenant and taken.revoked_at is None:
                    raise Conflict(f"A key named {draft.name!r} exists: rotate it, or use another name.")
                raise Conflict(f"A key named {draft.name!r} exists or was revoked: use another.")
            if store.count_active(tx, caller.tenant) >= model.MAX_ACTIVE_KEYS:
                raise Conflict(f"This tenant has {model.MAX_ACTIVE_KEYS} keys, which is the most allowed: revoke one.")
            key = ApiKey(
                **msgspec.structs.asdict(draft) | {"permissions": permissions},
                tenant=caller.tenant,
                created_by=caller.name,
                created_at=tx.now,
                updated_at=tx.now,
                digest=digest_key(secret).hex(),
                hint=_hint(secret),
            )
            store.insert(tx, key)
            self._record(tx, caller, key, "created")
            return key

        return await self._db.write(work), secret

    async def list_keys(self, tenant: str) -> list[ApiKey]:
        """Return a tenant's keys, revoked ones included, oldest first."""
        return [self._with_use(key) for key in await self._db.read(lambda tx: store.list_keys(tx, tenant))]

    async def get(self, tenant: str, name: str) -> ApiKey:
        """Return a key. Raises NotFound, and Conflict for a key of the environment."""
        return self._with_use(await self._db.read(lambda tx: self._require(tx, tenant, name)))

    async def change(self, caller: Principal, name: str, changes: dict[str, Any]) -> ApiKey:
        """Change any of role, permissions, description, memory, budgets, models, team and expires_at.

        A new role without permissions brings its own. Raises Forbidden, InvalidRequest, NotFound and Conflict.
        """
        _require_person(caller)
        if not changes:
            raise InvalidRequest(
                "The request changes nothing. Set role, permissions, memory, budgets, models, team or expires_at."
            )

        def work(tx: Tx) -> ApiKey:
            tx.lock(_LOCK)
            key = self._require_valid(tx, caller.tenant, name)
            if "role" in changes or "permissions" in changes:
                given = changes.get("permissions", None if "role" in changes else key.permissions)
                changes["permissions"] = model.select_permissions(changes.get("role", key.role), given)
            if "expires_at" in changes:
                model.check_expiry(changes["expires_at"], tx.now)
            self._check_limits(name, changes.get("memory", ""), changes.get("budgets", ()))
            model.check_models(changes.get("models", ()))
            changed = [field for field, value in changes.items() if getattr(key, field) != value]
            return self._update(tx, caller, key, "changed", changes, changed)

        return await self._db.write(work)

    async def rotate(self, caller: Principal, name: str) -> tuple[ApiKey, str]:
        """Give a key a new secret, and return both; the old secret is invalid at once.

        Raises Forbidden, NotFound, and Conflict for a revoked key.
        """
        _require_person(caller)
        secret = generate_key()

        def work(tx: Tx) -> ApiKey:
            tx.lock(_LOCK)
            key = self._require_valid(tx, caller.tenant, name)
            changes = {"digest": digest_key(secret).hex(), "hint": _hint(secret)}
            return self._update(tx, caller, key, "rotated", changes)

        return await self._db.write(work), secret

    async def revoke(self, caller: Principal, name: str) -> ApiKey:
        """Revoke a key for good. Repeating it is not an error. Raises Forbidden, NotFound, Conflict."""
        _require_person(caller)

        def work(tx: Tx) -> ApiKey:
            tx.lock(_LOCK)
            key = self._require(tx, caller.tenant, name)
            if key.revoked_at is not None:
                return key
            return self._update(tx, caller, key, "revoked", {"revoked_at": tx.now, "revoked_by": caller.name})

        return await self._db.write(work)

    async def run(self) -> None:
        """Store the times of last use at intervals, until cancelled."""
        while True:
            await sleep_until_tick(USE_SECONDS)
            await self.store_use()

    async def store_use(self) -> None:
        """Store when keys were last used since the last call."""
        # Taken before the write: uses during it belong to the next round.
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await self._db.write(partial(store.record_use, used=used))
        except StoreUnavailable:
            # Uses since then are newer.
            self._used = used | self._used  # the database logs its outage

    def _apply(self, changed: list[ApiKey]) -> None:
        has_new_budgets = False
        for key in changed:
            known = self._by_name.get(key.name)
            if key.name in self._configured:
                # One key per name: otherwise the environment's key would get the role, revocation and memory of this
                # one.
                if key.created_by:
                    log.warning("keys: stored key ignored, the environment has a key of this name name=%s", key.name)
                continue
            # A poll may have read the row before this process changed it.
            if known is not None and known.version >= key.version:
                continue
            if known is not None:
                self._by_digest.pop(bytes.fromhex(known.digest), None)
            self._by_name[key.name] = key
            # Expired keys stay: an admin may extend them.
            if key.revoked_at is None:
                self._by_digest[bytes.fromhex(key.digest)] = (key, key.principal)
            # Only the first version tells who created the key; later ones are changes by others.
            maker = key.created_by if key.version == 1 else None
            self._roles.record_change(key.principal, key.updated_at, maker)
            is_active = key.revoked_at is None
            self._roles.set_role(
                key.principal,
                is_active=is_active,
                expires_at=key.expires_at,
                changed_at=key.updated_at,
                is_reserved=not key.created_by,
            )
            has_new_budgets |= key.budget_entries != (known.budget_entries if known else [])
        if has_new_budgets:
            self._announce_budgets()

    def _announce_budgets(self) -> None:
        entries: dict[str, list[str]] = {}
        for key in self._by_name.values():
            entries.setdefault(key.tenant, []).extend(key.budget_entries)
        self._on_budgets(entries)

    def _with_use(self, key: ApiKey) -> ApiKey:
        used = max(filter(None, (key.last_used_at, self._used.get(key.name))), default=None)
        return msgspec.structs.replace(key, last_used_at=used)

    def _check_limits(self, name: str, memory: str, budgets: Collection[str]) -> None:
        try:
            namespaces = parse_memory_access(memory).namespaces
        except ValueError as error:
            raise InvalidRequest(f"memory: {error}") from None
        if (vault := find_unknown_vault(namespaces, self._vaults)) is not None:
            raise InvalidRequest(f"memory: {vault!r} is not a vault of SERVICE_VAULTS")
        for entry in model.budget_entries(name, budgets):
            try:
                self._check_budgets([entry])
            except Exception:  # noqa: BLE001 - the message of the setting would name the wrong source
                budget = entry.removeprefix(f"key:{name}:")
                raise InvalidRequest(
                    f"budgets: {budget!r} is invalid; expected usd/month=20 or tokens/day=100000"
                ) from None

    def _require(self, tx: Tx, tenant: str, name: str) -> ApiKey:
        if (configured := self._configured.get(name)) is not None and configured.tenant == tenant:
            raise Conflict(f"The key {name!r} is a key of the environment: change it there, and restart.")
        key = store.find(tx, name)
        if key is not None and key.created_by and key.tenant == tenant:
            return key
        raise NotFound(f"There is no key {name!r}.")

    def _require_valid(self, tx: Tx, tenant: str, name: str) -> ApiKey:
        key = self._require(tx, tenant, name)
        if key.revoked_at is not None:
            raise Conflict(f"The key {name!r} was revoked: make one with another name.")
        return key

    def _update(
        self,
        tx: Tx,
        caller: Principal,
        key: ApiKey,
        change: str,
        changes: dict[str, Any],
        changed: Collection[str] = (),
    ) -> ApiKey:
        updated = msgspec.structs.replace(key, **changes, updated_at=tx.now, version=key.version + 1)
        store.update(tx, updated)
        self._record(tx, caller, updated, change, changed)
        return updated

    def _record(self, tx: Tx, caller: Principal, key: ApiKey, change: str, changed: Collection[str] = ()) -> None:
        """Append the run log event with the names of the fields that changed, and load the key after the commit."""
        meta = {
            "name": key.name,
            "change": change,
            "role": key.role,
            "permissions": list(key.permissions),
            "expires_at": key.expires_at,
            "memory": key.memory,
            "budgets": list(key.budgets),
            "models": list(key.models),
            "team": key.team,
            "changed": sorted(changed),
            "by": caller.name,
        }
        draft = EventDraft("key_changed", "keys", f"Key {key.name} ({key.role}) {change}.", meta)
        self._runlog.append(tx, key.tenant, [draft])
        # After the commit: a key whose transaction is rolled back must not open anything.
        tx.after_commit(partial(self._apply, [key]))


def _require_person(caller: Principal) -> None:
    """Raises Forbidden for an agent's key: it could make itself a key of a person."""
    if not caller.is_person:
        raise Forbidden(f"The key {caller.name!r} has the role agent, so it may not make or change keys.")


def reserve_name(holder: Principal, now: int) -> ApiKey:
    """Return the row that reserves the name of an environment key: a revoked key with a secret that nobody has."""
    return ApiKey(
        name=holder.name,
        tenant=holder.tenant,
        digest=digest_key(generate_key()).hex(),
        hint="",
        role=holder.role,
        permissions=tuple(holder.permissions),
        description="",
        memory="",
        budgets=(),
        models=(),
        created_by="",
        created_at=now,
        updated_at=now,
        revoked_at=now,
        revoked_by="",
    )


def _hint(secret: str) -> str:
    return secret[: model.HINT_CHARACTERS]
