"""Fields that are named like credentials are refused wherever they stand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.auth.authority.credential_detection import (
    CredentialFieldError,
    is_credential_name,
    reject_credential_fields,
)
from tests.requirements import requirement

UNSAFE = """apiKey api_key API-KEY APIKEY Api.Key api:key x-api-key openai_api_key apiKeys api_key_2 apikey1 api__key_
accessToken access_token ACCESS-TOKEN userAccessToken access_tokens AccessToken2 bearerToken bearer_token BEARER-TOKEN
httpBearerToken providerSecret provider_secret PROVIDER-SECRET provider_secrets llmProviderSecret""".split()
SPELLED = ["api key", "API\tKEY", "ap\u200bi_key", "ａｐｉＫｅｙ", "api\u2010key", "𝐚𝐩𝐢_key", " apiKey ", "api/key"]
SAFE = """api key token secret tokens max_tokens token_count keyboard apikeyless api_key_rotation access tokenizer
access_tokenizer bearer provider provider_secretary secretary content principal receipt proof namespace 42 é""".split()


@requirement("http.receipt-unsafe-proof-names")
@pytest.mark.parametrize("name", [*UNSAFE, *SPELLED])
def test_a_name_of_a_credential_is_unsafe_however_it_is_spelled(name: str) -> None:
    assert is_credential_name(name)
    with pytest.raises(CredentialFieldError) as caught:
        reject_credential_fields({"proof": [1, {name: "value-51fe"}]})
    assert (caught.value.status, caught.value.code) == (400, "INVALID_REQUEST")
    assert "value-51fe" not in str(caught.value)


@pytest.mark.parametrize("name", [*SAFE, "", " "])
def test_other_names_are_safe(name: str) -> None:
    reject_credential_fields({name: {name: [{name: "apiKey"}, "access_token"]}})


@requirement("http.receipt-unsafe-proof-names")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"apiKey": 1}, "apiKey"),
        ({"a": {"b": [0, {"api_key": None}]}}, "a.b[1].api_key"),
        ([[{"API-KEY": {}}]], "[0][0].API-KEY"),
        ({"accessToken": {"apiKey": 1}}, "accessToken"),
        (({"x": ({"bearer token": 1},)},), "[0].x[0].bearer token"),
        ({"a\nb": {"apiKey": 1}}, "a\ufffdb.apiKey"),
        ({"n" * 99: {"apiKey": 1}}, f"{'n' * 63}….apiKey"),
    ],
)
def test_the_error_names_the_path_of_the_field(value: Any, path: str) -> None:
    with pytest.raises(CredentialFieldError) as caught:
        reject_credential_fields(value)
    assert f"The field {path} is named" in caught.value.message


def nested(depth: int, inner: Any) -> Any:
    for n in range(depth):
        inner = {"a": inner} if n % 2 else [inner]
    return inner


@requirement("http.receipt-unsafe-proof-names")
def test_depth_is_no_refuge_and_no_recursion_error() -> None:
    reject_credential_fields(nested(20_000, {"safe": 1}))
    with pytest.raises(CredentialFieldError) as caught:
        reject_credential_fields(nested(20_000, {"apiKey": 1}))
    assert len(caught.value.message) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


def put(value: Any, inner: dict[str, int], pick: int) -> bool:
    """Hide the inner object somewhere in the value."""
    while True:
        places = [
            part for part in (value.values() if isinstance(value, dict) else value) if isinstance(part, (dict, list))
        ]
        if places and pick % 3:
            value, pick = places[pick % len(places)], pick // 3
            continue
        if isinstance(value, dict):
            value["hidden"] = inner
        else:
            value.append(inner)
        return True


@given(
    JSON.filter(lambda value: isinstance(value, (dict, list))),
    st.sampled_from([*UNSAFE, *SPELLED]),
    st.integers(0, 999),
)
def test_a_hidden_field_is_found_anywhere(value: Any, name: str, pick: int) -> None:
    reject_credential_fields(value)
    assert put(value, {name: 1}, pick)
    with pytest.raises(CredentialFieldError):
        reject_credential_fields(value)
