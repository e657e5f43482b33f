"""A scripted OpenID Connect provider: real HTTP on this machine, real signatures, and the errors that a test wants."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.stub import Answer, Asked, serving

CLIENT, SECRET = "stentor", "client-secret-5b1d"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
"""Made once: it takes a tenth of a second."""


@dataclass
class Account:
    """Somebody whom the provider knows."""

    sub: str
    email: str
    groups: list[str] | None = None
    claims: dict[str, Any] = field(default_factory=dict)


@dataclass
class IdentityProvider:
    """`sign_in` is what a browser and a person do there. `change_claims` and `sign` spoil the next ID tokens."""

    issuer: str
    asked: list[Asked]
    now: Callable[[], float]
    codes: dict[str, tuple[Account, dict[str, str]]] = field(default_factory=dict)
    userinfo: dict[str, Any] | None = None
    description: dict[str, Any] = field(default_factory=dict)
    change_claims: Callable[[dict[str, Any]], dict[str, Any]] = lambda claims: claims
    sign: Callable[[dict[str, Any]], str] | None = None
    keys: list[dict[str, Any]] = field(default_factory=lambda: [KEY.as_dict(private=False)])

    @property
    def settings(self) -> dict[str, str]:
        return {
            "SERVICE_OIDC_ISSUER": self.issuer,
            "SERVICE_OIDC_CLIENT_ID": CLIENT,
            "SERVICE_OIDC_CLIENT_SECRET": SECRET,
            "SERVICE_OIDC_ROLES": "platform=admin,reviewers=approver,ops=operator,staff=viewer",
        }

    def sign_in(self, url: str, account: Account) -> str:
        """Answer a request for a code, as if the account had signed in; returns where the browser goes then."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = account, asked
        return f"{asked['redirect_uri']}?code={code}&state={asked['state']}"

    def id_token(self, account: Account, nonce: str) -> str:
        issued = int(self.now())
        claims: dict[str, Any] = {"iss": self.issuer, "sub": account.sub, "aud": CLIENT, "nonce": nonce}
        claims |= {"iat": issued, "exp": issued + 300, "email": account.email}
        if account.groups is not None:
            claims["groups"] = account.groups
        claims = self.change_claims(claims | account.claims)
        return self.sign(claims) if self.sign else jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)

    def respond(self, asked: Asked, _: int) -> Answer:
        match urlsplit(asked.path).path:
            case "/.well-known/openid-configuration":
                return Answer(body=self._describe())
            case "/jwks":
                return Answer(body={"keys": self.keys})
            case "/token":
                return self._exchange(asked)
            case "/userinfo":
                return Answer(body=self.userinfo) if self.userinfo else Answer(401, {})
        return Answer(404, {})

    def _describe(self) -> dict[str, Any]:
        paths = {"authorization_endpoint": "/auth", "token_endpoint": "/token", "jwks_uri": "/jwks"}
        paths["userinfo_endpoint"] = "/userinfo"
        return {"issuer": self.issuer, **{name: self.issuer + path for name, path in paths.items()}, **self.description}

    def _exchange(self, asked: Asked) -> Answer:
        form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if asked.headers.get("authorization") != f"Basic {basic}":
            return Answer(401, {"error": "invalid_client"})
        account, wanted = self.codes.pop(form.get("code", ""), (None, {}))
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if account is None or challenge != wanted["code_challenge"] or form["redirect_uri"] != wanted["redirect_uri"]:
            return Answer(400, {"error": "invalid_grant", "error_description": "The code is not valid."})
        tokens = {"id_token": self.id_token(account, wanted["nonce"]), "token_type": "Bearer"}
        return Answer(body=tokens | {"access_token": "access-8c1e"})


@contextmanager
def identity_provider(now: Callable[[], float]) -> Iterator[IdentityProvider]:
    """A provider that runs; `now` returns its seconds since 1970."""
    made: list[IdentityProvider] = []
    with serving(lambda asked, count: made[0].respond(asked, count)) as (address, asked):
        made.append(IdentityProvider(address, asked, now))
        yield made[0]


def unsigned(claims: dict[str, Any], **header: Any) -> str:
    """A token with a signature of nobody."""
    parts = ({"alg": "RS256", "kid": "one", **header}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join((*encoded, "" if header.get("alg") == "none" else "c2ln"))
