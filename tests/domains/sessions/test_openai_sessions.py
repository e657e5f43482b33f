"""Sessions of OpenAI's Agents SDK: what the SDK appends is there once, in its order, also when a response is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stentor_worker import ServiceError
from stentor_worker.integrations.openai_agents import StentorSession
from tests.conftest import World
from tests.requirements import requirement
from tests.stub import Answer, Asked, serving

Sessions = Callable[[str], StentorSession]
SENT_ON = ("idempotency-key", "content-type")
LOST = Answer(raw=b"", status=502)


@asynccontextmanager
async def reached(
    world: World, who: str = "ADMIN", lost: tuple[int, ...] = (), path: str = ""
) -> AsyncIterator[Sessions]:
    """Sessions over HTTP. The service does each request; the responses of those that change something may be lost."""
    loop = asyncio.get_running_loop()
    changes = 0

    def respond(request: Asked, _count: int) -> Answer:
        nonlocal changes
        headers = {name: value for name, value in request.headers.items() if name in SENT_ON}
        client = world.clients[who]
        call = client.request(request.method, request.path, content=request.body, headers=headers)
        answer = asyncio.run_coroutine_threadsafe(call, loop).result(60)
        changes += request.method == "POST"
        if request.method == "POST" and changes - 1 in lost:
            return LOST
        return Answer(answer.status_code, answer.content)

    with serving(respond, keep_alive=True) as (address, _):
        yield lambda session_id: StentorSession(session_id, address + path, "key")


def messages(*numbers: int, size: int = 1) -> list[Any]:
    return [{"role": "user", "content": f"{number} " + "ü" * size} for number in numbers]


@requirement("sessions.openai")
@pytest.mark.parametrize("session_id", ["user 7", "team/7", "Zoë 日本", "50%2F?#"])
async def test_a_session_has_what_was_added_under_its_id(world: World, session_id: str) -> None:
    async with reached(world) as session_of:
        session = session_of(session_id)
        assert (await session.get_items(), await session.pop_item()) == ([], None)
        await session.clear_session()
        await session.add_items([])
        await session.add_items(messages(1, 2))
        await session_of(session_id).add_items(messages(3))
        assert await session.get_items() == messages(1, 2, 3)
        assert await session.get_items(limit=2) == messages(2, 3)
        assert await session.get_items(limit=0) == []
        assert await session.pop_item() == messages(3)[0]
        assert await session.get_items() == messages(1, 2)
        await session.clear_session()
        assert await session.get_items() == []
        listed = (await world.admin.get("/api/v1/sessions")).json()["sessions"]
        assert [found["session_id"] for found in listed] == [session_id]


@requirement("sessions.openai")
async def test_any_number_of_items_of_any_size_comes_back_in_order(world: World) -> None:
    async with reached(world) as session_of:
        session = session_of("s")
        await session.add_items(messages(*range(2_300)))
        await session.add_items(messages(*range(2_300, 2_312), size=400_000))
        await session.add_items(messages(2_312))
        found = await session.get_items()
        assert [int(item["content"].split()[0]) for item in found] == list(range(2_313))
        assert found[2_305] == messages(2_305, size=400_000)[0]
        assert await session.get_items(limit=2_200) == found[-2_200:]
        assert await session.get_items(limit=5_000) == found


@requirement("sessions.openai")
async def test_a_lost_response_neither_doubles_items_nor_removes_two(world: World) -> None:
    async with reached(world) as session_of:
        await session_of("s").add_items(messages(1))
    async with reached(world, lost=(0, 2, 3)) as session_of:
        session = session_of("s")
        await session.add_items(messages(2))
        await session.add_items(messages(2))
        assert await session.get_items() == messages(1, 2, 2)
    async with reached(world, lost=(0,)) as session_of:
        assert await session_of("s").pop_item() == messages(2)[0]
        assert await session_of("s").get_items() == messages(1, 2)


@requirement("sessions.openai")
async def test_clients_that_append_at_once_lose_nothing_and_keep_their_order(world: World) -> None:
    async with reached(world, lost=(2, 5, 11)) as session_of:
        clients = [session_of("s") for _ in range(4)]
        await asyncio.gather(
            *(client.add_items(messages(10 * n + i, 10 * n + i)) for i in range(5) for n, client in enumerate(clients))
        )
        found = [int(item["content"].split()[0]) for item in await clients[0].get_items()]
        assert sorted(found[::2]) == sorted(10 * n + i for n in range(4) for i in range(5))
        assert found[::2] == found[1::2]


@requirement("sessions.openai")
async def test_a_cancelled_run_leaves_no_half_known_outcome(world: World) -> None:
    async with reached(world) as session_of:
        session = session_of("s")
        adding = asyncio.create_task(session.add_items(messages(*range(1_500))))
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert len(await session.get_items()) == 1_500


@requirement("sessions.openai")
@pytest.mark.parametrize("path", ["/v1", "/stentor"])
async def test_a_session_at_a_wrong_address_is_not_taken_for_an_empty_one(world: World, path: str) -> None:
    async with reached(world, path=path) as session_of:
        session = session_of("s")
        for ask in (session.get_items, session.pop_item, session.clear_session):
            with pytest.raises(ServiceError, match=f"No route .* {path}/api/v1/sessions/s"):
                await ask()


@requirement("sessions.openai")
async def test_what_cannot_be_done_is_said_in_a_sentence(world: World) -> None:
    async with reached(world, "READER") as session_of:
        with pytest.raises(ServiceError, match="write") as refused:
            await session_of("s").add_items(messages(1))
        assert refused.value.status == 403
        assert await session_of("s").get_items() == []
        for item in ({"role": "user", "content": "\ud800"}, {"score": float("nan")}, {"at": object()}):
            with pytest.raises(ValueError, match="must be JSON"):
                await session_of("s").add_items([item])
        with pytest.raises(ValueError, match="session_id must identify"):
            session_of("..")
