"""`stentor receipt`: issued on one line, looked into with a warning, verified by exit code."""

from __future__ import annotations

import json
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from stentor.auth.authority import keys
from stentor.auth.authority.delegation import delegate
from stentor.core.clock import SystemClock
from stentor.domains.memory.governed.authorization import CAPABILITIES
from tests.auth.authority.forging import jwk, receipt
from tests.cli.program import Done, Program
from tests.requirements import requirement

DOCS = Path(__file__).parents[2] / "docs/receipts.md"
ISSUE = ("receipt", "issue", "--principal", "ann", "--namespace", "team/notes", "--capability", "memory:read")


def issued(program: Program, *more: str) -> str:
    done = program(*ISSUE, *more)
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1
    return done.out.strip()


@requirement("authority.command-line")
def test_a_receipt_is_the_only_thing_on_standard_output(program: Program) -> None:
    text = issued(
        program, "--namespace", "shared", "--capability", "memory:write", "--tenant", "acme", "--lifetime", "60"
    )
    found = program("receipt", "verify", "--json", stdin=text + "\n").json
    assert found.pop("receipt_id")
    assert found.pop("expires_at").endswith("Z")
    assert found == {
        "valid": True,
        "principal": "ann",
        "tenant": "acme",
        "namespaces": ["team/notes", "shared"],
        "capabilities": ["memory:read", "memory:write"],
        "issuer": "stentor",
        "delegated_by": [],
    }
    assert stat.S_IMODE(keys.signing_key_file(program.data_dir).stat().st_mode) == 0o600


@requirement("authority.command-line")
def test_capabilities_of_commas_only_are_a_wrong_option(program: Program) -> None:
    done = program(*ISSUE[:-1], " , ")
    assert (done.code, done.out) == (2, "")
    assert "has only commas" in done.err


@requirement("authority.command-line")
def test_the_first_example_of_the_docs_grants_what_the_memory_asks_for(program: Program) -> None:
    found = re.search(r"```bash\n(.+?)\n```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    issue, verify = (shlex.split(command)[1:] for command in found[1].split("|"))
    held = program(*verify, "--json", stdin=program(*issue).out).json
    assert held["valid"]
    assert set(held["capabilities"]) <= set(CAPABILITIES)


@requirement("authority.command-line")
def test_a_receipt_is_read_from_stdin_a_file_or_an_argument(program: Program, tmp_path: Path) -> None:
    text = issued(program)
    file = tmp_path / "receipt.txt"
    file.write_text(f"\n  {text}\n")
    for done in (
        program("receipt", "verify", stdin=text),
        program("receipt", "verify", "-", stdin=text),
        program("receipt", "verify", "--file", str(file)),
        program("receipt", "verify", text),
    ):
        assert (done.code, "The receipt is valid" in done.out) == (0, True)
    assert program("receipt", "verify", text, "--file", str(file)).code == 2
    assert program("receipt", "verify", "--file", str(tmp_path / "none")).code == 2
    assert program("receipt", "verify", stdin=b"\xff\xfe").code == 2


@requirement("authority.command-line")
def test_whatever_does_not_hold_ends_with_1_and_says_no_more(program: Program) -> None:
    text = issued(program)
    refused = [
        program("receipt", "verify", "--json", stdin=text[:-4] + "AAAA"),
        program("receipt", "verify", "--json", "--audience", "other", stdin=text),
        program("receipt", "verify", "--json", stdin=receipt()),
        program("receipt", "verify", "--json", stdin=""),
        program("receipt", "verify", "--json", stdin="x" * 200_000),
    ]
    assert [(done.code, done.json) for done in refused] == [
        (1, {"valid": False, "error": "The receipt was refused."})
    ] * len(refused)
    plain = program("receipt", "verify", stdin=receipt())
    assert (plain.code, plain.out, plain.err.strip()) == (1, "", "The receipt was refused.")


def test_the_operator_reads_the_reason_in_the_debug_log(program: Program) -> None:
    text = issued(program)
    program.environ = {"SERVICE_LOG_LEVEL": "debug"}
    done = program("receipt", "verify", "--audience", "other", stdin=text)
    assert "it is for another audience" in done.err
    assert text not in done.err


@requirement("authority.command-line")
def test_inspect_says_that_nothing_was_verified(program: Program) -> None:
    forged = receipt(sub="eve\x1b[2J", aud="a\u202eb", exp=5)
    found = program("receipt", "inspect", "--json", stdin=forged).json
    assert found["verified"] is False
    assert [link["claims"]["sub"] for link in found["receipts"]] == ["eve\x1b[2J"]
    done = program("receipt", "inspect", stdin=forged)
    assert (done.code, "Not verified" in done.out) == (0, True)
    assert not {"\x1b", "\u202e"} & set(done.out)
    assert not keys.signing_key_file(program.data_dir).exists()
    broken = program("receipt", "inspect", stdin="x.y.z")
    assert (broken.code, "cannot be read" in broken.err) == (3, True)


def test_verify_makes_no_key(program: Program) -> None:
    assert program("receipt", "verify", stdin=receipt()).code == 1
    assert not program.data_dir.exists()


@requirement("authority.proof-of-possession")
def test_a_receipt_is_bound_to_a_public_key_and_passed_on_by_its_holder(program: Program, tmp_path: Path) -> None:
    holder, following = OKPKey.generate_key("Ed25519"), OKPKey.generate_key("Ed25519")
    bound: list[str] = []
    for name, content in (("key.jwk", json.dumps(jwk(holder)).encode()), ("key.pem", holder.as_pem(private=False))):
        (tmp_path / name).write_bytes(content)
        bound.append(issued(program, "--bind", str(tmp_path / name)))
    for text in bound:
        chain = delegate(text, holder, following, "helper", now=SystemClock().now())
        found = program("receipt", "verify", "--json", stdin=chain).json
        assert (found["principal"], found["delegated_by"]) == ("ann/helper", ["ann"])
        links = program("receipt", "inspect", "--json", stdin=chain).json["receipts"]
        assert [link["claims"]["sub"] for link in links] == ["ann", "ann/helper"]


@pytest.mark.parametrize(
    ("words", "code", "wanted"),
    [
        (["--lifetime", "301"], 2, "300"),
        (["--lifetime", "0"], 2, "--lifetime"),
        (["--tenant", " "], 3, "tenant"),
        (["--namespace", "a/../b"], 3, "ns"),
        (["--capability", ""], 3, "cap"),
        (["--principal", "\u200b"], 3, "sub"),
        (["--audience", " "], 3, "aud"),
        (["--bind", "/nowhere/key"], 2, "/nowhere/key"),
    ],
)
def test_a_receipt_that_nobody_would_take_is_not_issued(
    program: Program, words: list[str], code: int, wanted: str
) -> None:
    done = program(*ISSUE, *words)
    assert (done.code, done.out) == (code, "")
    assert wanted in done.err


def test_a_private_key_is_not_taken_for_a_public_one(program: Program, tmp_path: Path) -> None:
    holder = OKPKey.generate_key("Ed25519")
    (tmp_path / "key.jwk").write_text(json.dumps(holder.as_dict(private=True)))
    done = program(*ISSUE, "--bind", str(tmp_path / "key.jwk"))
    assert (done.code, "private key" in done.err) == (2, True)
    assert str(holder.as_dict(private=True)["d"]) not in done.out + done.err


@requirement("authority.issuers-file")
def test_other_issuers_are_those_of_the_file(program: Program, tmp_path: Path) -> None:
    program.environ = {"SERVICE_AUTHORITY_ISSUERS": str(tmp_path / "issuers.json")}
    (tmp_path / "issuers.json").write_text('{"ci": {}}')
    done: Done = program("receipt", "verify", stdin=receipt())
    assert (done.code, "'ci'" in done.err) == (3, True)
    claims: dict[str, Any] = {"iss": "https://ci.example", "aud": "here", "tenant": "acme"}
    now = SystemClock().now() // 1_000_000
    ci = OKPKey.generate_key("Ed25519")
    text = receipt({"kid": "ci"}, ci, iat=now, exp=now + 60, **claims)
    entry = {"issuer": "https://ci.example", "key": jwk(ci), "tenants": ["acme"]}
    (tmp_path / "issuers.json").write_text(json.dumps({"ci": entry}))
    program.environ["SERVICE_AUTHORITY_AUDIENCE"] = "here"
    assert program("receipt", "verify", "--json", stdin=text).json["issuer"] == "https://ci.example"
    assert "Receipts from https://ci.example are accepted" in program("doctor").out
    (tmp_path / "issuers.json").write_text(json.dumps({"ci": {**entry, "tenants": ["default"]}}))
    assert program("receipt", "verify", stdin=text).code == 1


def test_a_blank_audience_stops_the_start(program: Program) -> None:
    program.environ = {"SERVICE_AUTHORITY_AUDIENCE": " "}
    done = program(*ISSUE)
    assert (done.code, "SERVICE_AUTHORITY_AUDIENCE" in done.err) == (3, True)
