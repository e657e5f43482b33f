"""The guard of outbound HTTP: which addresses may be called."""

from __future__ import annotations

import contextlib
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.http_client.session import GuardedResolver
from stentor.core.http_client.ssrf_guard import NON_PUBLIC_BLOCKS, SsrfGuard, TargetRefused, is_public_address
from tests.domains.endpoint import answering, serving
from tests.requirements import requirement

INSIDE = [
    *("127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1", "169.254.169.254"),
    *("0.0.0.0", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "::ffff:10.0.0.1", "::10.0.0.1"),
    *("64:ff9b::a00:1", "64:ff9b:1::1", "2002:a00:1::", "2001:0:1::", "2001:db8::1", "::ffff:0:127.0.0.1"),
]
METADATA = [
    *("168.63.129.16", "169.254.169.254", "169.254.170.2", "192.0.0.192", "100.100.100.200"),
    *("fd00:ec2::254", "fd20:ce::254"),
]
OUTSIDE = [
    *("1.1.1.1", "93.184.216.34", "172.32.0.1", "168.63.129.15", "192.0.1.1", "192.31.196.1", "192.175.48.1"),
    *("2606:4700::1111", "2001:200::1", "::ffff:1.1.1.1", "64:ff9b::101:101"),
]


@requirement("execution.http-runtime-guarded")
@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_not_public(address: str) -> None:
    assert not is_public_address(address)


@requirement("execution.http-runtime-guarded")
@pytest.mark.parametrize("block", NON_PUBLIC_BLOCKS)
def test_no_address_of_a_block_in_the_table_is_public(block: str) -> None:
    network = ipaddress.ip_network(block)
    for at in {0, 1, network.num_addresses // 2, network.num_addresses - 1}:
        if at < network.num_addresses:
            assert not is_public_address(str(network[at]))


@requirement("execution.http-runtime-guarded")
@pytest.mark.parametrize("address", METADATA)
def test_no_address_that_a_cloud_tells_secrets_at_is_public(address: str) -> None:
    assert not is_public_address(address)
    if "." in address:
        inner = int(ipaddress.IPv4Address(address))
        for form in (f"::ffff:{address}", f"64:ff9b::{address}", f"64:ff9b:1::{address}", f"::{address}"):
            assert not is_public_address(form)
        assert not is_public_address(f"2002:{inner >> 16:x}:{inner & 0xFFFF:x}::1")
        hidden = ~inner & 0xFFFFFFFF  # Teredo has the client's address with all bits turned
        assert not is_public_address(f"2001:0:101:101:0:0:{hidden >> 16:x}:{hidden & 0xFFFF:x}")


@given(st.ip_addresses())
def test_nothing_is_public_that_the_standard_library_knows_to_be_private(address: ipaddress.IPv4Address) -> None:
    if is_public_address(str(address)):
        assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96")


@pytest.mark.parametrize("address", OUTSIDE)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public_address(address)


@given(st.ip_addresses(v=4, network="127.0.0.0/8") | st.ip_addresses(v=4, network="10.0.0.0/8"))
def test_no_form_of_a_private_address_is_public(address: object) -> None:
    for form in (f"{address}", f"::ffff:{address}", f"64:ff9b::{address}", f"::{address}"):
        assert not is_public_address(form)


@requirement("execution.http-runtime-guarded")
async def test_a_name_is_judged_by_what_it_resolves_to_and_its_port() -> None:
    resolver = GuardedResolver(SsrfGuard(("localhost:8000",)))
    with pytest.raises(TargetRefused):
        await resolver.resolve("localhost", 8001)
    assert await resolver.resolve("LOCALHOST", 8000)
    await resolver.close()


@requirement("execution.http-runtime-guarded")
@pytest.mark.parametrize("host", ["localhost", "2130706433", "127.1", "0x7f.0.0.1", "0177.0.0.1"])
async def test_the_session_itself_refuses_what_the_check_did_not_see(host: str) -> None:
    async with serving(answering({"result": "inside"})) as endpoint:
        outbound = OutboundHttp(())
        with pytest.raises((OSError, ValueError)):
            await outbound.session.post(f"http://{host}:{endpoint.port}/")
        assert endpoint.calls == []
        await outbound.close()


@requirement("execution.http-runtime-guarded")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127\u30020\u30020\u30021",
        "127\uff0e0\uff0e0\uff0e1",
        "\uff11\uff12\uff17\u30020\u30020\u30021",
        "[::1]",
    ],
)
async def test_a_literal_address_is_seen_however_it_is_written(host: str) -> None:
    """The clients read full-width dots and digits as the plain ones, and resolve no literal address."""
    async with serving(answering({"result": "inside"})) as endpoint:
        outbound = OutboundHttp(())
        with pytest.raises(InvalidRequest):
            outbound.check_url(f"http://{host}:{endpoint.port}/")
        with pytest.raises(TargetRefused):
            await outbound.session.post(f"http://{host}:{endpoint.port}/")
        assert endpoint.calls == []
        await outbound.close()


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(answering({})) as endpoint:
        outbound = OutboundHttp(("127.0.0.1",))
        async with outbound.session.post(endpoint.url) as answer:
            assert answer.status == 200
        await outbound.close()


def test_an_ipv6_address_is_allowed_as_a_url_has_it() -> None:
    for entry in ("[::1]:8443", "::1:8443", "[::1]", "::1"):
        OutboundHttp((entry,)).check_url("https://[::1]:8443/")
    with pytest.raises(InvalidRequest, match=r"add \[::1\]:8444 to SERVICE_OUTBOUND_ALLOW"):
        OutboundHttp(("[::1]:8443",)).check_url("https://[::1]:8444/")
    with pytest.raises(InvalidRequest, match="not public"):  # an address of its own that ends like the port
        OutboundHttp(("[fd00::1]:8443",)).check_url("https://[fd00::1:8443]:22/")


def test_the_operators_list_is_host_or_host_and_port() -> None:
    outbound = OutboundHttp(("10.0.0.5", "build.internal:8080", "127.0.0.1:9000"))
    for url in ("http://10.0.0.5:1/", "https://10.0.0.5/", "http://127.0.0.1:9000/x", "http://Build.Internal:8080/"):
        outbound.check_url(url)
    for url in ("http://127.0.0.1:9001/", "http://127.0.0.1/", "http://10.0.0.6/"):
        with pytest.raises(InvalidRequest, match="SERVICE_OUTBOUND_ALLOW"):
            outbound.check_url(url)


@given(st.text(max_size=60))
def test_any_text_is_checked_without_another_error(url: str) -> None:
    for text in (url, f"http://{url}", f"https://{url}:80/"):
        with contextlib.suppress(InvalidRequest):
            OutboundHttp(()).check_url(text)
