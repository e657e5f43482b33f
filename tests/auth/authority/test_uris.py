"""Addresses lose the credentials in them, and nothing else."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stentor.auth.authority.credential_detection import strip_uri_credentials
from tests.requirements import requirement

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln"
STRIPPED = [
    ("https://user:pw@host/x", "https://host/x"),
    ("https://user@host", "https://host"),
    ("https://:pw@host", "https://host"),
    ("https://@host", "https://host"),
    ("https://a@b:c@host/x", "https://host/x"),
    ("https://us%65r:p%40w@host:8443/x?q=1#top", "https://host:8443/x?q=1#top"),
    ("https://user:p/w@host/x", "https://host/x"),
    ("https://user:p?w@host/x", "https://host/x"),
    ("https://user:p#w@host/x", "https://host/x"),
    ("https://user:pw@[::1]:8080/x", "https://[::1]:8080/x"),
    ("HTTPS://user:pw@host", "HTTPS://host"),
    ("https:user:pw@host/x", "https:host/x"),
    ("https:\\\\user:pw@host/x", "https:\\\\host/x"),
    ("https:/user:pw@host/x", "https:/host/x"),
    ("//user:pw@host/x", "//host/x"),
    ("postgresql://user:pw@db/name", "postgresql://db/name"),
    ("ht\ntps://user:pw@host", "https://host"),
    ("  https://user:pw@host", "  https://host"),
    ("https://host/?api_key=s", "https://host/"),
    ("https://host/?apiKey=s&q=1", "https://host/?q=1"),
    ("https://host/?q=1&access_token=s", "https://host/?q=1"),
    ("https://host/?q=1;token=s;r=2", "https://host/?q=1;r=2"),
    ("https://host/?q=1&TOKEN=s&r=2&sig=x", "https://host/?q=1&r=2"),
    ("https://host/?api%5Fkey=s", "https://host/"),
    ("https://host/?%61pi%255Fkey=s", "https://host/"),
    (
        "https://host/?X-Amz-Signature=a&X-Amz-Credential=b&X-Amz-Security-Token=c&X-Amz-Date=d",
        "https://host/?X-Amz-Date=d",
    ),
    ("https://host/?client_secret=a&password=b&pwd=c&key=d&code=e", "https://host/"),
    ("https://host/?q=Bearer+abc", "https://host/"),
    (f"https://host/?q={JWT}", "https://host/"),
    (f"https://host/?{JWT}", "https://host/"),
    ("https://host/?to=https%3A%2F%2Fu%3Ap%40other%2F", "https://host/"),
    ("https://host/?to=https://other/?token=s", "https://host/"),
    ("/login?next=%2Fpath%3Ftoken%3Ds", "/login"),
    ("/login?next=/path?token=s", "/login"),
    ("/login?next=%2Fpath%3Fq%3D1&x=1%26token%3Ds", "/login?next=%2Fpath%3Fq%3D1"),
    ("/login?next=%252Fpath%253Ftoken%253Ds", "/login"),
    ("/login?token%3Ds", "/login"),
    ("/login?x=%2525252541", "/login"),
    ("https://host/#access_token=s&state=1", "https://host/#state=1"),
    ("https://host/#access_token=s", "https://host/"),
    (f"https://host/#{JWT}", "https://host/"),
    ("https://host/#/page?token=s", "https://host/#/page"),
    ("https://host/#/page?token=s&x=1", "https://host/#/page?x=1"),
    ("/path?token=s", "/path"),
    ("path?q=1&token=s", "path?q=1"),
    ("?token=s", ""),
]
KEPT = """https://host https://host/ https://host:8443/a/b?q=1&r=2#top https://host/@user https://host/a@b
https://host/?q=user@example.com https://host/?token https://host/#token https://host/?q=basic+training
https://host/?q=100%25 https://host/?monkey=1&keys_view=2 https://host/?to=https%3A%2F%2Fother%2F https://[::1]/x
https://host/?a=1;b=2 https://host/?q https://host/?q= https://host/#section-2 https://host/;v=1
mailto:ann@example.com urn:isbn:0451450523 /path /path?q=1 path #top a@b user:pw data:text/plain,hi
file:///etc/hosts https://host/?page=2&&x""".split()


@requirement("http.receipt-failures-sanitized", "authority.uris-are-stripped")
@pytest.mark.parametrize(("uri", "wanted"), STRIPPED)
def test_credentials_are_stripped(uri: str, wanted: str) -> None:
    assert strip_uri_credentials(uri) == wanted


@pytest.mark.parametrize("uri", [*KEPT, "", "not an address at all", "two words?x=1"])
def test_what_holds_no_credential_is_left_as_it_is(uri: str) -> None:
    assert strip_uri_credentials(uri) == uri


PARTS = [
    "https:",
    "http:",
    "//",
    "/",
    "\\",
    "?",
    "#",
    "&",
    ";",
    "=",
    "@",
    ":",
    "[",
    "]",
    "%",
    "%40",
    "%3D",
    "token",
    "key",
    "u",
    "é",
    "\n",
    "\x00",
    "\ud800",
    " ",
]
SOUP = st.lists(st.sampled_from(PARTS), max_size=25).map("".join)


@given(SOUP | st.text())
@example("https://[::1")
@example("https:@//@")
@example("https://host:port")
@example("//" * 5)
def test_it_is_total_and_once_is_enough(text: str) -> None:
    once = strip_uri_credentials(text)
    assert strip_uri_credentials(once) == once
    assert len(once) <= len(text)


SECRET = "s3cr3t-9f"
NAMES = st.sampled_from(["apiKey", "access_token", "x-api-key", "client_secret", "sig", "Password"])


@given(SOUP.map(lambda text: text.replace("?", "").replace("#", "")), NAMES)
def test_a_secret_of_a_query_never_survives(path: str, name: str) -> None:
    assert SECRET not in strip_uri_credentials(f"https://host/{path}?q=1&{name}={SECRET}")
    assert SECRET not in strip_uri_credentials(f"https://host/{path}#{name}={SECRET}")


@given(SOUP.map(lambda text: text.replace("?", "").replace("#", "")), NAMES, st.integers(0, 4))
def test_a_secret_in_an_address_in_a_query_never_survives(path: str, name: str, times: int) -> None:
    inner = f"https://other/?{name}={SECRET}"
    for _ in range(times):
        inner = quote(inner, safe="")
    assert SECRET not in strip_uri_credentials(f"https://host/{path}?next={inner}&q=1")


@given(st.sampled_from(["https", "ftp", "postgres", "x"]), st.text("ab/?#:@%[]é ", max_size=8))
def test_a_password_never_survives(scheme: str, more: str) -> None:
    assert SECRET not in strip_uri_credentials(f"{scheme}://user:{SECRET}{more}@host/path")


def test_long_texts_take_no_long_time_and_no_stack() -> None:
    assert strip_uri_credentials("https://h/?x=" * 20_000) == "https://h/"
    assert SECRET not in strip_uri_credentials("https://h/?x=" * 20_000 + f"https://u:{SECRET}@h")
    assert strip_uri_credentials("https://" + "a@" * 100_000 + "h") == "https://h"
    assert strip_uri_credentials("https:" + "@//" * 100_000) == ""
    assert strip_uri_credentials("https://h/?x=" + "eyJ" * 100_000) == "https://h/?x=" + "eyJ" * 100_000
