"""What a worker is created with, and how it finds or registers its agent."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from worker_service import AGENT, Service, run_service

from stentor_worker import ServiceError, Worker

REGISTER = "Worker.register(sys.argv[1], 'key', 'slugger', ['slug'])"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8080",
        "localhost:8080",
        "ftp://127.0.0.1",
        "HTTPS://127.0.0.1",
        "http://",
        "http:///path",
        "http://[::1",
        "http://127.0.0.1:port",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://my host:8080",
        "http://a..b",
    ],
)
def test_what_is_no_address_is_refused_at_once_with_an_example(url: str) -> None:
    with pytest.raises(ValueError, match="must be a URL such as") as refused:
        Worker(url, "key", "agent")
    assert repr(url) in str(refused.value)


def test_a_key_that_no_header_can_carry_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="The key contains characters") as refused:
        Worker("http://127.0.0.1:8080", "sec\nret", "agent")
    assert "ret" not in str(refused.value)


def test_a_worker_is_the_registered_one_whose_capabilities_it_names_twice_and_in_another_order() -> None:
    with run_service(Service(tasks=0)) as service:
        worker = Worker.register(f"{service.url}/api/v1/", "key\n", "counter", ["sum", "count", "sum"])
        assert worker.agent_id == "agent"
        (request,) = service.requests
        assert request.startswith("GET /api/v1/registry/"), "an address that ends with /api/v1 works too"


def test_a_worker_finds_its_agent_on_a_later_page_and_registers_no_second_one() -> None:
    with run_service(Service(tasks=0)) as service:
        service.agent_pages = [[{**AGENT, "agent_id": "other", "name": "another"}], [AGENT]]
        assert Worker.register(service.url, "key", "counter", ["count", "sum"]).agent_id == "agent"
        assert [request.partition(" ")[0] for request in service.requests] == ["GET", "GET"]


def test_a_worker_that_may_not_register_its_agent_says_who_may_and_how() -> None:
    with run_service(Service(tasks=0)) as service:
        service.agents_reply = 403, {"error": {"code": "FORBIDDEN", "message": "This needs the permission 'admin'."}}
        with pytest.raises(ServiceError) as refused:
            Worker.register(service.url, "key", "my agent", ["sum", "count"])
    command = "stentor agent register 'my agent' --capability count --capability sum --key-name KEY"
    assert refused.value.status == 403
    assert refused.value.message.startswith("This needs the permission 'admin'. ")
    assert command in refused.value.message


@pytest.mark.parametrize(
    ("before", "after", "stderr"),
    [
        ("", REGISTER, r"http://\S+ rejected the worker: UNAUTHORIZED: Wrong key\. Use one of its keys: [^\n]+\n"),
        ("", "raise ValueError('another')", r"Traceback .*\nValueError: another\n"),
        (
            "sys.excepthook = lambda kind, *_: print('own', kind.__name__, file=sys.stderr)",
            REGISTER,
            "own ServiceError\n",
        ),
    ],
)
def test_an_uncaught_rejection_is_one_line_and_other_errors_stay_what_they_are(
    before: str, after: str, stderr: str
) -> None:
    program = f"""
import sys
from stentor_worker import ServiceError, Worker
{before}
try:
    {REGISTER}
except ServiceError as error:
    print(error.code, error.status)
{after}
"""
    with run_service(Service(tasks=0)) as service:
        service.agents_reply = 401, {"message": "Wrong key."}
        command = [sys.executable, "-c", program, service.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert (done.returncode, done.stdout) == (1, "UNAUTHORIZED 401\n"), done.stderr
    assert re.fullmatch(stderr, done.stderr, re.DOTALL), done.stderr


def test_a_text_in_place_of_a_list_of_capabilities_is_refused() -> None:
    with run_service(Service(tasks=0)) as service:
        with pytest.raises(TypeError, match=r"capabilities must be a list such as \['slug'\]"):
            Worker.register(service.url, "key", "slugger", "slug")
        assert service.requests == []
