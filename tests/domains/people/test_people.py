"""People who sign in with a provider: their groups decide, only real tokens count, and sessions end at once."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from joserfc import jws, jwt
from joserfc.jwk import OctKey, RSAKey

from stentor.auth.api_keys import digest_key
from stentor.auth.oidc.provider import OidcProvider
from stentor.core.clock import SECOND
from stentor.core.db import Database, Sql
from stentor.core.errors import ServiceUnavailable
from stentor.core.settings.installation import SignInSettings
from stentor.testing import FixedClock
from tests.conftest import MakeWorld, World
from tests.domains.governance.conftest import DECISION_FIELDS, proposal
from tests.identity_provider import KEY, SECRET, Account, IdentityProvider, identity_provider, unsigned
from tests.requirements import requirement

ANNA = Account("u-1", "Anna@Example.com", ["staff", "ops"])
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "one"})
NONCES = itertools.count()
TASK = {"type": "echo", "input": "hello", "required_capabilities": ["echo"]}
Spoil = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def provider(clock: FixedClock) -> Iterator[IdentityProvider]:
    with identity_provider(lambda: clock.now() / SECOND) as made:
        yield made


@pytest.fixture
async def office(make_world: MakeWorld, provider: IdentityProvider) -> World:
    """A world in which people sign in with the provider."""
    made: World = await make_world(**provider.settings)
    return made


async def post(world: World, path: str, body: Any = None, key: str = "") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://stentor.test") as client:
        headers = {"X-API-Key": key} if key else {}
        return await client.post(f"/api/v1/people{path}", json=body, headers=headers)


async def whoami(world: World, session: str) -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://stentor.test") as client:
        return (await client.get("/api/v1/whoami", headers={"X-API-Key": session})).status_code


async def sign_in(
    world: World, provider: IdentityProvider, account: Account = ANNA, nonce: str | None = None, **fields: str
) -> httpx.Response:
    """Sign in with a new nonce; `nonce` is another one that the token has instead."""
    sent = f"nonce-{next(NONCES)}"
    body = {"id_token": provider.id_token(account, sent if nonce is None else nonce), "nonce": sent, **fields}
    return await post(world, "/sign-in", body)


async def session(world: World, provider: IdentityProvider, account: Account = ANNA) -> str:
    answer = await sign_in(world, provider, account)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["session"])


async def events(world: World, category: str = "") -> list[dict[str, Any]]:
    answer = await world.admin.get("/api/v1/audit", params={"category": category} if category else {})
    return list(answer.json()["events"])


@requirement("people.sign-in", "people.roles")
async def test_groups_give_a_role_and_a_session_works_like_a_key(
    office: World, provider: IdentityProvider, db: Database
) -> None:
    token = provider.id_token(ANNA, "n-1")
    made = (await post(office, "/sign-in", {"id_token": token, "nonce": "n-1", "address": "192.0.2.7"})).json()
    assert (made["name"], made["role"], made["tenant"]) == ("anna@example.com", "operator", "default")
    assert made["permissions"] == ["delete", "read", "write"]
    assert await whoami(office, made["session"]) == 200
    assert (await post(office, "/anna@example.com/block", key=made["session"])).status_code == 403
    (event,) = await events(office, "sign-ins")
    assert (event["by"], event["metadata"]["address"]) == ("anna@example.com", "192.0.2.7")
    (row,) = await db.read(lambda tx: tx.rows(Sql("select sessions from people")))
    assert digest_key(made["session"]).hex() in row[0]
    everything = await db.read(
        lambda tx: repr(tx.rows(Sql("select * from events")) + tx.rows(Sql("select * from people")))
    )
    assert made["session"] not in everything
    assert token not in everything


GRANTED: list[tuple[Any, str, list[str]]] = [
    (["staff"], "viewer", ["read"]),
    (["reviewers", "ops"], "approver", ["approve", "delete", "propose", "read", "write"]),
    (["staff", "platform"], "admin", ["admin", "read"]),
    ("ops", "operator", ["delete", "read", "write"]),
    ([["platform"], 7, "staff"], "viewer", ["read"]),
]


@requirement("people.roles")
async def test_somebody_in_several_groups_may_do_what_any_role_may(office: World, provider: IdentityProvider) -> None:
    for groups, role, permissions in GRANTED:
        made = (await sign_in(office, provider, Account("u-2", "ben@example.com", groups))).json()
        assert (made["role"], made["permissions"]) == (role, permissions)


@requirement("people.refusals")
async def test_a_refusal_names_the_settings_that_bring_the_groups(office: World, provider: IdentityProvider) -> None:
    without = (await sign_in(office, provider, Account("u-1", "e@example.com"))).json()["error"]["message"]
    assert "SERVICE_OIDC_SCOPES" in without
    assert "SERVICE_OIDC_GROUPS_CLAIM" in without
    other = (await sign_in(office, provider, Account("u-2", "f@example.com", ["guests"]))).json()["error"]["message"]
    assert "SERVICE_OIDC_ROLES" in other


@requirement("people.roles", "people.refusals")
async def test_without_a_role_nobody_signs_in_and_the_refusal_is_recorded_once_a_minute(
    office: World, provider: IdentityProvider, clock: FixedClock
) -> None:
    stranger = Account("u-9", "eve@example.com", ["sales", "Platform"])
    for _ in range(3):
        answer = await sign_in(office, provider, stranger)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "SIGN_IN_REFUSED")
    (refused,) = await events(office, "refusals")
    assert refused["metadata"]["account"] == "eve@example.com"
    clock.advance(seconds=61)
    await sign_in(office, provider, stranger)
    assert len(await events(office, "refusals")) == 2
    assert (await office.admin.get("/api/v1/people")).json()["total"] == 0


WRONG: dict[str, Spoil] = {
    "another issuer": lambda c: c | {"iss": "https://evil.example"},
    "another client": lambda c: c | {"aud": "other"},
    "among clients": lambda c: c | {"aud": ["stentor", "other"]},
    "for another client": lambda c: c | {"azp": "other"},
    "expired": lambda c: c | {"exp": c["iat"] - 120},
    "issued long ago": lambda c: c | {"iat": c["iat"] - 3_600},
    "issued in the future": lambda c: c | {"iat": c["iat"] + 3_600},
    "no expiry": lambda c: {name: value for name, value in c.items() if name != "exp"},
    "expiry as text": lambda c: c | {"exp": "never"},
    "valid from a later time": lambda c: c | {"nbf": c["iat"] + 120},
    "valid from no time": lambda c: c | {"nbf": "now"},
    "infinite expiry": lambda c: c | {"exp": 1e300},
    "nobody": lambda c: c | {"sub": ""},
    "a subject that no text can be": lambda c: c | {"sub": "u\0-1"},
    "no nonce": lambda c: {name: value for name, value in c.items() if name != "nonce"},
    "another nonce": lambda c: c | {"nonce": "n-2"},
}


@requirement("people.tokens")
async def test_a_token_with_a_wrong_claim_is_refused(office: World, provider: IdentityProvider) -> None:
    for name, spoil in WRONG.items():
        provider.change_claims = spoil
        answer = await sign_in(office, provider)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "SIGN_IN_FAILED"), name


@requirement("people.tokens")
@pytest.mark.parametrize(("claim", "nonce"), [(None, "None"), (1, "1"), (True, "True")])
async def test_a_nonce_that_is_no_text_is_that_of_no_sign_in(
    office: World, provider: IdentityProvider, claim: Any, nonce: str
) -> None:
    provider.change_claims = lambda claims: claims | {"nonce": claim}
    answer = await post(office, "/sign-in", {"id_token": provider.id_token(ANNA, "n-1"), "nonce": nonce})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "SIGN_IN_FAILED")


UNREADABLE: list[Callable[[dict[str, Any]], str]] = [
    lambda _: "[" * 20_000,
    lambda _: '{"sub":' * 5_000,
    lambda claims: json.dumps(claims | {"sub": "\ud800"}),
]


@requirement("people.tokens")
@pytest.mark.parametrize("write", UNREADABLE)
async def test_claims_that_nobody_can_read_are_refused_although_they_are_signed(
    office: World, provider: IdentityProvider, write: Callable[[dict[str, Any]], str]
) -> None:
    provider.sign = lambda claims: jws.serialize_compact({"alg": "RS256", "kid": "one"}, write(claims), KEY)
    answer = await sign_in(office, provider)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "SIGN_IN_FAILED")


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


PUBLIC_AS_SECRET = OctKey.import_key(json.dumps(KEY.as_dict(private=False)))
FORGED: dict[str, Callable[[dict[str, Any]], str]] = {
    "by nobody": unsigned,
    "alg none": lambda c: unsigned(c, alg="none"),
    "alg None": lambda c: unsigned(c, alg="None"),
    "by another key": lambda c: jwt.encode({"alg": "RS256", "kid": "one"}, c, OTHER_KEY),
    "by a key in the header": lambda c: jwt.encode(
        {"alg": "RS256", "kid": "one", "jwk": OTHER_KEY.as_dict(private=False)}, c, OTHER_KEY
    ),
    "with the client's secret": lambda c: jwt.encode(
        {"alg": "HS256", "kid": "one"}, c, OctKey.import_key(SECRET), algorithms=["HS256"]
    ),
    "with the public key as secret": lambda c: jwt.encode(
        {"alg": "HS256", "kid": "one"},
        c,
        OctKey.import_key(json.dumps(KEY.as_dict(private=False))),
        algorithms=["HS256"],
    ),
    "no token": lambda c: "not.a.token",
    "one part": lambda c: "e30",
    "not an object": lambda c: f"{unsigned(c).split('.')[0]}.W10.c2ln",
    "a header that is a list": lambda c: f"{encoded('[]')}.e30.c2ln",
    "a header that is a number": lambda c: f"{encoded('1')}.e30.c2ln",
    "a header that is null": lambda c: f"{encoded('null')}.e30.c2ln",
    "a header without an algorithm": lambda c: f"{encoded('{}')}.e30.c2ln",
    "an algorithm that is a list": lambda c: f"{encoded(json.dumps({'alg': ['RS256']}))}.e30.c2ln",
    "a key id that is an object": lambda c: unsigned(c, kid={}),
    "a deep header": lambda c: f"{encoded('[' * 20_000)}.e30.c2ln",
    "a header of bytes that are no text": lambda c: "_____w.e30.c2ln",
    "too long": lambda c: unsigned(c | {"groups": ["x" * 40_000]}),
}


@requirement("people.tokens")
async def test_a_forged_token_is_refused(office: World, provider: IdentityProvider) -> None:
    for name, forge in FORGED.items():
        provider.sign = forge
        assert (await sign_in(office, provider)).status_code in (400, 403), name
    assert await events(office) == []


@requirement("people.keys")
async def test_new_keys_of_the_provider_are_found_and_made_up_ones_do_not_call_it_each_time(
    office: World, provider: IdentityProvider, clock: FixedClock
) -> None:
    await session(office, provider)
    for n in range(5):
        provider.sign = lambda claims, n=n: unsigned(claims, kid=f"made-up-{n}")
        assert (await sign_in(office, provider)).status_code == 403
    assert sum(asked.path == "/jwks" for asked in provider.asked) == 1
    clock.advance(seconds=61)
    new = RSAKey.generate_key(2048, {"kid": "two"})
    provider.keys = [{"kty": "new", "kid": "three"}, new.as_dict(private=False)]
    provider.sign = lambda claims: jwt.encode({"alg": "PS256", "kid": "two"}, claims, new, algorithms=["PS256"])
    assert (await sign_in(office, provider)).status_code == 201
    provider.sign = None
    assert (await sign_in(office, provider)).status_code == 403  # the provider has withdrawn the old one


@requirement("people.keys")
async def test_a_provider_with_more_keys_than_can_be_tried_is_refused(
    office: World, provider: IdentityProvider
) -> None:
    provider.keys = [KEY.as_dict(private=False)] * 101
    answer = await sign_in(office, provider)
    assert (answer.status_code, "101 keys" in answer.json()["error"]["message"]) == (503, True)


@requirement("people.keys")
@pytest.mark.parametrize("header", [{"kid": "one"}, {}])
async def test_a_new_key_of_the_provider_with_the_old_id_or_none_is_found(
    office: World, provider: IdentityProvider, clock: FixedClock, header: dict[str, str]
) -> None:
    for key in (KEY, OTHER_KEY):
        public = key.as_dict(private=False)
        provider.keys = [{name: public[name] for name in ("kty", "n", "e")} | header]
        provider.sign = lambda claims, key=key: jwt.encode({"alg": "RS256", **header}, claims, key)
        assert (await sign_in(office, provider)).status_code == 201
        clock.advance(seconds=31)


@requirement("people.claims")
async def test_claims_that_the_id_token_lacks_come_from_the_user_info_of_the_same_person(
    office: World, provider: IdentityProvider
) -> None:
    bare = Account("u-3", "carl@example.com")
    assert (await sign_in(office, provider, bare, access_token="t")).status_code == 403  # the provider refuses it
    provider.userinfo = {"sub": "u-1", "groups": ["platform"]}
    assert (await sign_in(office, provider, bare, access_token="t")).status_code == 403
    provider.userinfo = {"sub": "u-3", "groups": ["reviewers"], "email": "else@example.com"}
    made = (await sign_in(office, provider, bare, access_token="t")).json()
    assert (made["name"], made["role"]) == ("carl@example.com", "approver")


@requirement("people.claims")
async def test_the_claims_of_groups_and_names_are_settings(make_world: MakeWorld, provider: IdentityProvider) -> None:
    names = {"SERVICE_OIDC_GROUPS_CLAIM": "realm_access.roles", "SERVICE_OIDC_NAME_CLAIM": "preferred_username"}
    world = await make_world(**provider.settings, **names)
    claims = {"realm_access": {"roles": ["staff"]}, "preferred_username": "dora"}
    made = (await sign_in(world, provider, Account("u-4", "d@example.com", claims=claims))).json()
    assert (made["name"], made["role"]) == ("dora@127.0.0.1", "viewer")
    lacking = await sign_in(
        world, provider, Account("u-5", "e@example.com", claims={"realm_access": {"roles": ["staff"]}})
    )
    assert "preferred_username" in lacking.json()["error"]["message"]


@requirement("people.names")
async def test_a_name_stays_with_its_account_until_an_admin_releases_it(
    office: World, provider: IdentityProvider
) -> None:
    first = await session(office, provider)
    renamed = await sign_in(office, provider, Account("u-1", "anna.new@example.com", ["staff"]))
    assert renamed.json()["name"] == "anna@example.com"
    taker = Account("u-666", "anna@example.com", ["platform"])
    refused = await sign_in(office, provider, taker)
    assert refused.status_code == 403
    assert "people.release" in refused.json()["error"]["message"]
    for is_verified in (False, "false", "False", 0, "no", " false ", [False]):
        unverified = Account("u-667", "ceo@example.com", ["staff"], {"email_verified": is_verified})
        assert (await sign_in(office, provider, unverified)).status_code == 403
    verified = Account("u-668", "cto@example.com", ["staff"], {"email_verified": "true"})
    assert (await sign_in(office, provider, verified)).status_code == 201
    assert (await office.admin.post("/api/v1/people/anna@example.com/release")).json()["status"] == "released"
    assert await whoami(office, first) == 401
    assert (await sign_in(office, provider, taker)).json()["name"] == "anna@example.com"


@requirement("people.names", "people.end")
async def test_a_released_name_stays_blocked_until_an_admin_unblocks_it(
    office: World, provider: IdentityProvider
) -> None:
    await session(office, provider)
    successor = Account("u-2", "anna@example.com", ["staff"])
    for change in ("block", "release"):
        answer = await office.admin.post(f"/api/v1/people/anna@example.com/{change}")
        assert answer.json()["status"] == "blocked"
    refused = await sign_in(office, provider, successor)
    assert (refused.status_code, "blocked" in refused.text) == (403, True)
    assert (await office.admin.post("/api/v1/people/anna@example.com/unblock")).json()["status"] == "released"
    assert (await sign_in(office, provider, successor)).status_code == 201
    assert (await sign_in(office, provider)).status_code == 403, "the name is the successor's now"


@requirement("people.names")
async def test_no_name_can_be_that_of_a_key_or_mean_something_else(office: World, provider: IdentityProvider) -> None:
    for email in ("a b@x.com", "a:b@x.com", "a/b@x.com", "a\n@x.com", "x" * 300, "", "*@x"):
        assert (await sign_in(office, provider, Account("u-7", email, ["platform"]))).status_code == 403, email
    made = await sign_in(office, provider, Account("u-7", "admin", ["platform"]))
    assert made.json()["name"] == "admin@127.0.0.1"


@requirement("people.names", "people.refusals")
async def test_the_refusal_of_a_name_that_no_text_can_have_is_recorded(
    office: World, provider: IdentityProvider
) -> None:
    answer = await sign_in(office, provider, Account("u-9", "eve\0\n@x.com", ["platform"]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "SIGN_IN_REFUSED")
    (refused,) = await events(office, "refusals")
    assert refused["metadata"]["account"] == "eve\ufffd\ufffd@x.com"


@requirement("people.end")
async def test_signing_out_blocking_and_expiry_end_sessions_at_once(
    office: World, provider: IdentityProvider, clock: FixedClock
) -> None:
    here, there = await session(office, provider), await session(office, provider)
    assert (await post(office, "/sign-out", {"session": here}, key=here)).status_code == 200
    assert (await whoami(office, here), await whoami(office, there)) == (401, 200)
    other = await session(office, provider, Account("u-2", "ben@example.com", ["staff"]))
    assert (await post(office, "/sign-out", {"session": there}, key=other)).status_code == 200  # not one's own: nothing
    assert await whoami(office, there) == 200
    assert (await office.admin.post("/api/v1/people/anna@example.com/sign-out")).json()["sessions"] == 0
    assert await whoami(office, there) == 401
    again = await session(office, provider)
    blocked = (await office.admin.post("/api/v1/people/anna@example.com/block")).json()
    assert (blocked["status"], blocked["blocked_by"]) == ("blocked", "admin")
    assert await whoami(office, again) == 401
    assert (await sign_in(office, provider)).status_code == 403
    assert (await office.admin.post("/api/v1/people/anna@example.com/unblock")).json()["status"] == "active"
    last = await session(office, provider)
    clock.advance(seconds=43_200)
    assert await whoami(office, last) == 401
    changes = [event["metadata"]["change"] for event in await events(office, "changes")]
    assert changes == ["unblocked", "blocked", "signed out everywhere", "signed out"]


@requirement("people.sign-in", "people.end")
async def test_an_id_token_opens_one_session(office: World, provider: IdentityProvider) -> None:
    body = {"id_token": provider.id_token(ANNA, "n"), "nonce": "n"}
    answers = await asyncio.gather(*(post(office, "/sign-in", body) for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [201, 403, 403]
    assert (await office.admin.post("/api/v1/people/anna@example.com/sign-out")).status_code == 200
    again = await post(office, "/sign-in", body)
    assert (again.status_code, again.json()["error"]["code"]) == (403, "SIGN_IN_FAILED")
    assert (await sign_in(office, provider)).status_code == 201


@requirement("people.end")
async def test_a_lower_role_applies_to_the_sessions_of_before(office: World, provider: IdentityProvider) -> None:
    before = await session(office, provider, Account("u-1", "anna@example.com", ["platform"]))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(office.app), base_url="http://stentor.test", headers={"X-API-Key": before}
    ) as client:
        assert (await client.get("/api/v1/people")).status_code == 200
        await session(office, provider, Account("u-1", "anna@example.com", ["staff"]))
        assert (await client.get("/api/v1/people")).status_code == 403


@requirement("people.end")
@pytest.mark.parametrize(
    "changed",
    [
        {"SERVICE_OIDC_ROLES": "platform=admin,reviewers=approver,staff=viewer"},
        {"SERVICE_OIDC_TENANT": "another"},
        {"SERVICE_OIDC_GROUPS_CLAIM": "realm_access.roles"},
        {"SERVICE_OIDC_TEAMS": "staff=research"},
    ],
)
async def test_a_session_ends_when_the_settings_that_gave_its_role_change(
    office: World, provider: IdentityProvider, make_world: MakeWorld, changed: dict[str, str]
) -> None:
    before = await session(office, provider)
    reordered = ",".join(reversed(provider.settings["SERVICE_OIDC_ROLES"].split(",")))
    same = await make_world(**provider.settings | {"SERVICE_OIDC_ROLES": reordered})
    assert await whoami(same, before) == 200
    other = await make_world(**provider.settings | changed)
    assert await whoami(other, before) == 401
    if "SERVICE_OIDC_TENANT" not in changed:  # else she is not of the tenant whose people are listed
        (listed,) = (await other.admin.get("/api/v1/people")).json()["people"]
        assert listed["sessions"] == 0


@requirement("people.end", "schedules.key")
@pytest.mark.parametrize(
    ("changed", "runs"),
    [
        ({"SERVICE_OIDC_ROLES": "platform=admin,reviewers=approver,staff=viewer"}, False),
        ({"SERVICE_OIDC_ROLES": "platform=admin,ops=viewer,staff=viewer"}, False),
        ({"SERVICE_OIDC_ROLES": "platform=admin"}, False),
        ({"SERVICE_OIDC_TENANT": "another"}, False),
        ({"SERVICE_OIDC_ISSUER": "https://login.example.com"}, False),
        ({"SERVICE_OIDC_ROLES": "another=admin,ops=operator"}, True),
        ({"SERVICE_OIDC_ROLES": "platform=admin,*=operator"}, True),
        ({"SERVICE_OIDC_TEAMS": "staff=research"}, True),
        ({}, True),
    ],
)
async def test_a_schedule_runs_with_the_role_that_the_settings_of_now_give(
    office: World, provider: IdentityProvider, make_world: MakeWorld, changed: dict[str, str], runs: bool
) -> None:
    await office.register()
    body = {"name": "s", "cron": "* * * * *", "task": TASK}
    headers = {"X-API-Key": await session(office, provider)}
    assert (await office.admin.post("/api/v1/schedules", json=body, headers=headers)).status_code == 201
    later = await make_world(**provider.settings | changed)
    later.clock.advance(seconds=120)
    await later.kernel.schedules.scheduler.tick()
    schedule = (await later.admin.get("/api/v1/schedules/s")).json()
    assert schedule["paused"] is not runs
    found = later.kernel.infra.roles.find_active("default", "anna@example.com")
    assert (found is not None and found.may("write")) is runs
    # The settings of before: an operator who made a mistake loses nothing but the runs of the meantime.
    again = await make_world(**provider.settings)
    assert again.kernel.infra.roles.find_active("default", "anna@example.com").may("write")


@requirement("people.end")
async def test_other_settings_give_nothing_back_that_a_refused_sign_in_took(
    office: World, provider: IdentityProvider, make_world: MakeWorld
) -> None:
    await session(office, provider)
    assert (await sign_in(office, provider, Account("u-1", "anna@example.com", []))).status_code == 403
    other = await make_world(**provider.settings | {"SERVICE_OIDC_ROLES": "ops=admin,*=admin"})
    (listed,) = (await other.admin.get("/api/v1/people")).json()["people"]
    assert (listed["status"], listed["permissions"]) == ("without_role", [])


@requirement("people.end")
async def test_the_list_of_people_shows_the_role_that_the_settings_of_now_give(
    office: World, provider: IdentityProvider, make_world: MakeWorld
) -> None:
    await session(office, provider)
    for roles, role, permissions in (
        ("ops=viewer", "viewer", ["read"]),
        ("other=admin", "operator", []),
        ("staff=operator", "operator", ["delete", "read", "write"]),
    ):
        other = await make_world(**provider.settings | {"SERVICE_OIDC_ROLES": roles})
        (listed,) = (await other.admin.get("/api/v1/people")).json()["people"]
        assert (listed["role"], listed["permissions"]) == (role, permissions)


@requirement("people.end")
async def test_a_refused_sign_in_without_a_role_ends_the_sessions_and_permissions_of_before(
    office: World, provider: IdentityProvider
) -> None:
    before = await session(office, provider)
    roles = office.kernel.infra.roles
    assert (await sign_in(office, provider, Account("u-1", "anna@example.com", []))).status_code == 403
    assert await whoami(office, before) == 401
    found = roles.find_active("default", "anna@example.com")
    assert found is None or not found.may("write")  # so her schedules pause
    for _ in range(2):  # of an account that never had a role, and again of one that lost it: no change
        assert (await sign_in(office, provider, Account("u-9", "eve@example.com", []))).status_code == 403
        assert (await sign_in(office, provider, Account("u-1", "anna@example.com", []))).status_code == 403
    changes = [event["metadata"]["change"] for event in await events(office, "changes")]
    assert changes == ["left without a role"]
    (listed,) = (await office.admin.get("/api/v1/people")).json()["people"]
    assert (listed["status"], listed["permissions"]) == ("without_role", [])
    assert await whoami(office, await session(office, provider)) == 200


@requirement("people.end")
async def test_the_oldest_session_gives_way_to_the_twenty_first(office: World, provider: IdentityProvider) -> None:
    made = [await session(office, provider) for _ in range(21)]
    assert [await whoami(office, made[n]) for n in (0, 1, 20)] == [401, 200, 200]


@requirement("people.agents")
async def test_no_agent_decides_who_signs_in(office: World, provider: IdentityProvider) -> None:
    await session(office, provider)
    for action in ("sign-out", "block", "unblock", "release"):
        answer = await office.clients["BOSS"].post(f"/api/v1/people/anna@example.com/{action}")
        assert answer.status_code == 403, action
        assert (await office.clients["READER"].post(f"/api/v1/people/anna@example.com/{action}")).status_code == 403
        assert (await office.admin.post(f"/api/v1/people/nobody/{action}")).status_code == 404
        assert (await office.clients["OTHER"].post(f"/api/v1/people/anna@example.com/{action}")).status_code in (
            403,
            404,
        )
    admin = await session(office, provider, Account("u-8", "root@example.com", ["platform"]))
    assert (await post(office, "/root@example.com/block", key=admin)).status_code == 409


@requirement("people.four-eyes")
async def test_people_count_as_people_for_approvals(office: World, provider: IdentityProvider) -> None:
    agent = await office.register()
    anna = await session(office, provider, Account("u-1", "anna@example.com", ["platform"]))
    ben = await session(office, provider, Account("u-2", "ben@example.com", ["reviewers"]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(office.app), base_url="http://stentor.test") as client:
        body = proposal(agent_id=agent)
        made = await client.post("/api/v1/governance/updates", json=body, headers={"X-API-Key": anna})
        assert made.status_code == 202, made.text
        path = f"/api/v1/governance/updates/{made.json()['update_id']}/approve"
        decision = DECISION_FIELDS["approve"]
        own = await client.post(path, json=decision, headers={"X-API-Key": anna})
        other = await client.post(path, json=decision, headers={"X-API-Key": ben})
    assert own.status_code == 403, own.text
    assert other.status_code == 200, other.text


@requirement("people.off")
async def test_without_a_provider_nothing_of_it_counts(
    office: World, provider: IdentityProvider, make_world: MakeWorld
) -> None:
    old = await session(office, provider)
    plain = await make_world()
    answer = await sign_in(plain, provider)
    assert answer.status_code == 404
    assert "SERVICE_OIDC_ISSUER" in answer.json()["error"]["message"]
    assert await whoami(plain, old) == 401


@requirement("people.provider-down")
async def test_a_provider_that_is_down_or_calls_itself_otherwise_is_said(
    make_world: MakeWorld, provider: IdentityProvider
) -> None:
    gone = await make_world(**provider.settings | {"SERVICE_OIDC_ISSUER": "http://127.0.0.1:1"})
    answer = await sign_in(gone, provider)
    assert (answer.status_code, "127.0.0.1" in answer.text) == (503, True)
    provider.description = {"issuer": provider.issuer + "/"}
    world = await make_world(**provider.settings)
    answer = await sign_in(world, provider)
    assert answer.status_code == 503
    assert "must be exactly that" in answer.json()["error"]["message"]


@requirement("people.provider-down")
async def test_all_who_wait_for_a_provider_that_does_not_answer_wait_for_one_request(
    clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = OidcProvider(SignInSettings(issuer="https://id.example.com"), clock)
    asked: list[str] = []

    async def time_out(_method: str, url: str) -> tuple[int, bytes]:
        asked.append(url)
        await asyncio.sleep(0)
        raise ServiceUnavailable("The sign-in provider id.example.com cannot be reached.")

    monkeypatch.setattr(made, "_request", time_out)
    for requests in (1, 2):
        sign_ins = (made.authorization_url("https://stentor.test/", "state", "nonce", "verifier") for _ in range(4))
        answers = await asyncio.gather(*sign_ins, return_exceptions=True)
        assert all(isinstance(answer, ServiceUnavailable) for answer in answers)
        assert len(asked) == requests
