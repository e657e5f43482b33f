"""Whom the service believes: its own key, and the operator's file."""

from __future__ import annotations

import json
import multiprocessing
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from stentor.auth.authority import issuers, keys
from stentor.auth.authority.claims import ReceiptError
from stentor.auth.authority.keys import check_point, parse_public_jwk, parse_public_key_file, thumbprint
from stentor.core.errors import StartRefused
from tests.auth.authority.forging import CI_KEY, HOLDER, OWN_KEY, b64, jwk
from tests.requirements import requirement

ENTRY: dict[str, Any] = {"issuer": "https://ci.example", "key": jwk(CI_KEY), "tenants": ["default", "acme"]}


def table(folder: Path, content: Any) -> Path:
    path = folder / "issuers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@requirement("authority.issuer-tenants")
def test_the_file_gives_issuers_by_key_id(tmp_path: Path) -> None:
    found = issuers.load_issuers(table(tmp_path, {"ci-1": ENTRY}), OWN_KEY)
    assert len(found) == 2
    ci, mine = found.find("ci-1"), found.find(thumbprint(OWN_KEY))
    assert (ci.name, thumbprint(ci.key)) == ("https://ci.example", thumbprint(CI_KEY))
    assert [ci.may_issue_for(tenant) for tenant in ("default", "acme", "other", "*")] == [True, True, False, False]
    assert (mine.name, mine.may_issue_for("any")) == ("stentor", True)
    assert not mine.key.is_private
    others: list[Any] = ["ci-2", "", None, 1, []]
    for kid in others:
        with pytest.raises(ReceiptError):
            found.find(kid)


def test_without_a_file_the_service_believes_itself_alone() -> None:
    assert len(issuers.load_issuers(None, OWN_KEY)) == 1
    assert len(issuers.load_issuers(None, None)) == 0


PRIVATE = CI_KEY.as_dict(private=True)
BROKEN: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "JSON object with unique names"),
    "a list": ([ENTRY], "JSON object with unique names"),
    "a key id twice": (f'{{"ci": {json.dumps(ENTRY)}, "ci": {json.dumps(ENTRY)}}}', "JSON object with unique names"),
    "no object": ({"ci-7": 1}, "'ci-7'"),
    "a field that is missing": (
        {"ci-7": {"issuer": "x", "key": jwk(CI_KEY)}},
        "'ci-7': it is not an object with exactly",
    ),
    "a field too many": ({"ci-7": {**ENTRY, "note": 1}}, "'ci-7': it is not an object with exactly"),
    "a private key": ({"ci-7": {**ENTRY, "key": PRIVATE}}, "'ci-7': it holds a private key"),
    "a key with an id": ({"ci-7": {**ENTRY, "key": {**jwk(CI_KEY), "kid": "x"}}}, "'ci-7': a key is not"),
    "another curve": ({"ci-7": {**ENTRY, "key": {**jwk(CI_KEY), "crv": "X25519"}}}, "'ci-7': a key is not"),
    "another type": ({"ci-7": {**ENTRY, "key": {"kty": "oct", "crv": "Ed25519", "x": "AA"}}}, "'ci-7': a key is not"),
    "a short key": ({"ci-7": {**ENTRY, "key": {**jwk(CI_KEY), "x": "AAAA"}}}, "'ci-7': a key does not have 32"),
    "a key that is a number": ({"ci-7": {**ENTRY, "key": {**jwk(CI_KEY), "x": 1}}}, "'ci-7': a key is not"),
    "a padded key": ({"ci-7": {**ENTRY, "key": {**jwk(CI_KEY), "x": jwk(CI_KEY)["x"] + "="}}}, "'ci-7': a part is not"),
    "a key anybody can sign for": (
        {"ci-7": {**ENTRY, "key": {**jwk(CI_KEY), "x": b64(bytes(32))}}},
        "'ci-7': a key is a point of small order",
    ),
    "no tenants": ({"ci-7": {**ENTRY, "tenants": []}}, "'ci-7': tenants"),
    "tenants as text": ({"ci-7": {**ENTRY, "tenants": "default"}}, "'ci-7': tenants"),
    "all tenants": ({"ci-7": {**ENTRY, "tenants": ["*"]}}, "'ci-7': tenants"),
    "a blank tenant": ({"ci-7": {**ENTRY, "tenants": [" "]}}, "'ci-7': tenants"),
    "a blank issuer": ({"ci-7": {**ENTRY, "issuer": ""}}, "'ci-7': issuer"),
    "our own name": ({"ci-7": {**ENTRY, "issuer": "stentor"}}, "'ci-7': its issuer"),
    "a blank key id": ({" ": ENTRY}, "' '"),
    "one key twice": ({"ci-7": ENTRY, "ci-8": ENTRY}, "'ci-7' and 'ci-8' have the same key"),
    "our own key id": ({thumbprint(OWN_KEY): ENTRY}, "key id of the built-in issuer"),
    "deep": ("[" * 5000, "JSON object with unique names"),
}


@requirement("authority.issuers-file")
@pytest.mark.parametrize(("content", "wanted"), BROKEN.values(), ids=BROKEN)
def test_a_wrong_file_stops_the_start_and_names_the_entry(tmp_path: Path, content: Any, wanted: str) -> None:
    path = table(tmp_path, content)
    with pytest.raises(StartRefused) as caught:
        issuers.load_issuers(path, OWN_KEY)
    assert wanted in caught.value.message
    assert str(path) in caught.value.message
    assert str(PRIVATE["d"]) not in caught.value.message


def test_a_file_that_is_missing_or_everybodys_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="cannot be read"):
        issuers.load_issuers(tmp_path / "none.json", None)
    path = table(tmp_path, {"ci-1": ENTRY})
    path.chmod(0o646)
    with pytest.raises(StartRefused, match="chmod o-w"):
        issuers.load_issuers(path, None)


@requirement("authority.own-key")
def test_the_own_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert keys.find_signing_key(folder) is None
    made = keys.ensure_signing_key(folder)
    assert made.is_private
    assert thumbprint(keys.ensure_signing_key(folder)) == thumbprint(made)
    path = keys.signing_key_file(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["receipts.key"]


def make(folder: Path) -> str:
    return thumbprint(keys.ensure_signing_key(folder))


def test_processes_that_start_together_have_one_key(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert len(set(pool.map(make, [tmp_path / "data"] * 8))) == 1


@requirement("authority.own-key")
def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    keys.ensure_signing_key(tmp_path)
    keys.signing_key_file(tmp_path).chmod(0o640)
    with pytest.raises(StartRefused, match="chmod 600"):
        keys.find_signing_key(tmp_path)


X25519 = {"kty": "OKP", "crv": "X25519", "x": b64(bytes(range(32))), "d": b64(bytes(range(32)))}


@pytest.mark.parametrize(
    "content",
    ["", "x", "{}", "[]", "1", json.dumps(jwk(OWN_KEY)), json.dumps(X25519), "\x00", "\udcff"],
    ids=["empty", "text", "object", "list", "number", "public", "another curve", "zero", "no UTF-8"],
)
def test_a_broken_own_key_is_told_and_never_replaced(tmp_path: Path, content: str) -> None:
    path = keys.signing_key_file(tmp_path)
    path.parent.mkdir()
    path.write_bytes(content.encode(errors="surrogateescape"))
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(StartRefused, match="no Ed25519 private key"):
        keys.ensure_signing_key(tmp_path)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StartRefused, match=r"receipts\.key"):
        keys.ensure_signing_key(tmp_path / "data")


def test_a_public_key_is_read_from_jwk_and_pem() -> None:
    wanted = thumbprint(HOLDER)
    assert thumbprint(parse_public_key_file(json.dumps({**jwk(HOLDER), "kid": "x", "use": "sig"}).encode())) == wanted
    assert thumbprint(parse_public_key_file(HOLDER.as_pem(private=False))) == wanted


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"{}",
        b"-----BEGIN PUBLIC KEY-----",
        json.dumps({**X25519, "d": "x"}).encode(),
        b"\xff",
        b"[1]",
        b"null",
    ],
)
def test_what_is_no_public_key_is_refused(data: bytes) -> None:
    with pytest.raises(ReceiptError):
        parse_public_key_file(data)


@pytest.mark.parametrize(
    "data", [json.dumps(HOLDER.as_dict(private=True)).encode(), HOLDER.as_pem(private=True)], ids=["json", "pem"]
)
def test_a_private_key_is_not_taken_for_a_public_one(data: bytes) -> None:
    with pytest.raises(ReceiptError, match="private"):
        parse_public_key_file(data)


def test_keys_and_thumbprints_are_those_of_the_standards() -> None:
    """The key of RFC 8037, appendix A, which is the first of RFC 8032."""
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    known = OKPKey.import_key(Ed25519PrivateKey.from_private_bytes(secret))
    assert known.as_dict(private=True)["d"] == "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"
    assert jwk(known) == {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    assert thumbprint(parse_public_jwk(jwk(known))) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


PRIME = 2**255 - 19


def order_eight() -> int:
    """The y of a point of order 8, from the curve's own equation: doubling it gives y = 0, where d*y^4 + 2*y^2 = 1."""
    d = -121665 * pow(121666, -1, PRIME) % PRIME
    root = square_root((1 + d) % PRIME)
    for sign in (root, -root):
        squared = (sign - 1) * pow(d, -1, PRIME) % PRIME
        if pow(squared, (PRIME - 1) // 2, PRIME) == 1:
            return square_root(squared)
    raise AssertionError("the curve has points of order 8")


def square_root(n: int) -> int:
    root = pow(n, (PRIME + 3) // 8, PRIME)
    if root * root % PRIME != n:
        root = root * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    assert root * root % PRIME == n
    return root


@requirement("authority.weak-keys")
@pytest.mark.parametrize("y", [0, 1, PRIME - 1, order_eight(), PRIME - order_eight(), PRIME, PRIME + 1, 2**255 - 1])
@pytest.mark.parametrize("sign", [0, 2**255])
def test_a_key_that_anybody_can_sign_for_is_refused(y: int, sign: int) -> None:
    encoded = (y + sign).to_bytes(32, "little")
    with pytest.raises(ReceiptError):
        check_point(encoded)
    with pytest.raises(ReceiptError):
        parse_public_jwk({"kty": "OKP", "crv": "Ed25519", "x": b64(encoded)})
