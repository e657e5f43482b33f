"""Finding tasks by their words, type and submitter, through the API, on both databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core import migrations
from stentor.core.db import NO_LOCKS, Database, Sql, Tx
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.postgres.pipeline import Pipeline
from stentor.core.errors import InvalidRequest
from stentor.domains.tasks import queries
from stentor.domains.tasks.reading import list_queries
from stentor.domains.tasks.search import service
from stentor.domains.tasks.search.model import Position, TaskText, parse_query, split_words
from stentor.domains.tasks.search.postgres_index import PostgresTaskIndex, build_tsvector
from stentor.domains.tasks.search.service import LAST_DOCUMENT
from stentor.domains.tasks.search.sqlite_index import INDEX_FILE, SqliteTaskIndex
from tests.conftest import MakeWorld, World
from tests.requirements import requirement

ADD_TASKS = Sql(
    """insert into tasks (tenant, task_id, status, type, title, priority, created_at, queued_at, timeout_seconds, epoch,
        attempt_epoch, provenance_id, head_id, submitted_by, submitted_status, estimated_start, estimated_completion,
        input, body_hash, metadata, required_capabilities)
    select 't', 'task ' || n, 'waiting', 'kind', 'title', 2, n, n, 60, 1,
        0, 'p', 'h', 'someone', 'queued', 0, 0, '"text\\n' || n || '"', 'b', '{}', '[]'
    from generate_series(1, 8000) as n"""
)
MERGE = Sql("select gin_clean_pending_list('task_search_words')")
BLOCKS_READ = Sql(
    """select sum(pg_stat_get_xact_blocks_fetched(indexrelid)) from pg_index where indrelid = 'tasks'::regclass"""
)


@pytest.fixture
async def world(make_world: MakeWorld) -> World:
    made: World = await make_world(SERVICE_TASK_SEARCH="1")
    return made


async def index(world: World) -> None:
    """Number the events, as the service does by itself, and index them."""
    await world.kernel.provenance.sequencer.drain()
    while await world.kernel.tasks.search.index_batch():
        pass


async def found(world: World, expected: int = 200, key: str = "ADMIN", **params: Any) -> list[str]:
    answer = await world.clients[key].get("/api/v1/tasks", params=params)
    assert answer.status_code == expected, answer.text
    return (
        [task["task_id"] for task in answer.json()["tasks"]] if expected == 200 else [answer.json()["error"]["message"]]
    )


async def end(world: World, agent: str, task_id: str, verb: str, **body: Any) -> None:
    claim = await world.claim(agent)
    assert claim["task_id"] == task_id
    answer = await world.admin.post(f"/api/v1/tasks/{task_id}/{verb}", json={"epoch": claim["epoch"], **body})
    assert answer.status_code == 200, answer.text


@requirement("tasks.search")
async def test_tasks_are_found_by_words_of_title_type_input_result_and_error(world: World) -> None:
    agent = await world.register()
    invoice = await world.submit(input={"text": "Pay the invoice of\nÉmile, now"}, title="Monthly bills")
    await end(world, agent, invoice, "complete", result={"answer": "Paid by wire"})
    broken = await world.submit(input="read notes/plan.md", type="reading")
    await end(world, agent, broken, "fail", error={"code": "SOURCE_UNREADABLE", "message": "no such file"})
    waiting = await world.submit(input="an invoice that waits")
    await index(world)
    for text, expected in {
        "invoice": [waiting, invoice],
        "INVOICE wire": [invoice],
        "emile": [invoice],
        "Émile now": [invoice],
        '"pay the invoice"': [invoice],
        '"invoice the pay"': [],
        "SOURCE_UNREADABLE": [broken],
        "notes/plan.md": [broken],
        "reading": [broken],
        "monthly": [invoice],
        "invo*": [waiting, invoice],
        "invo": [],
        "in*": [],
        "nowhere": [],
    }.items():
        assert await found(world, text=text) == expected, text


@requirement("tasks.search")
async def test_many_tasks_are_indexed_in_few_statements_and_in_their_order(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = PostgresDriver(postgres_url)
    migrations.upgrade(driver)
    database = Database(driver)
    index = PostgresTaskIndex(database)
    sent: list[int] = []
    run = Pipeline.run

    def counted(self: Pipeline, statements: Any) -> Any:
        sent.append(len(statements))
        return run(self, statements)

    monkeypatch.setattr(Pipeline, "run", counted)
    await index.put([TaskText("t", f"task {n}", f"word number{n}") for n in range(90)], Position(1, "one"))
    assert sum(sent) < 30
    changed = [TaskText("t", "task 5", "word again"), TaskText("t", "task 90", "word"), TaskText("t", "task 4", "word")]
    await index.put(changed, Position(2, "two"))
    every = await index.find("t", parse_query("word"), LAST_DOCUMENT, 200)
    assert [task_id for _, task_id in every[:4]] == ["task 4", "task 90", "task 5", "task 89"]
    assert len(every) == 91
    assert await index.find("t", parse_query("number4"), LAST_DOCUMENT, 9) == []
    database.close()


async def test_no_write_has_to_merge_the_pending_list_of_the_index(postgres_url: str) -> None:
    driver = PostgresDriver(postgres_url)
    migrations.upgrade(driver)
    database = Database(driver)
    index = PostgresTaskIndex(database)
    for number in range(4):
        texts = [TaskText("t", f"task {n}", "word" + "".join(f" {n}w{k}" for k in range(2600))) for n in range(20)]
        await index.put(texts, Position(number, "event"))
    [(pages,)] = await database.read(lambda tx: tx.rows(MERGE))
    assert pages == 0
    assert len(await index.find("t", parse_query("word 7w1299"), LAST_DOCUMENT, 200)) == 1
    database.close()


async def test_texts_of_tasks_are_read_by_key_before_their_table_was_analyzed(bare_url: str) -> None:
    driver = PostgresDriver(bare_url)
    migrations.upgrade(driver)
    database = Database(driver)
    await database.write(lambda tx: tx.run(ADD_TASKS), NO_LOCKS)

    def read(tx: Tx) -> tuple[list[TaskText], int]:
        texts = list_queries.read_texts(tx, [("t", "task 9"), ("t", "none"), ("t", "task 700")])
        return texts, int(tx.rows(BLOCKS_READ)[0][0])

    texts, blocks = await database.read(read)
    assert sorted((text.task_id, text.text.split()) for text in texts) == [
        ("task 700", ["title", "kind", '"text', '700"']),
        ("task 9", ["title", "kind", '"text', '9"']),
    ]
    assert blocks < 50
    database.close()


@requirement("tasks.search")
async def test_a_search_says_how_many_events_its_index_does_not_cover(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing() -> None:
        pass

    monkeypatch.setattr(world.kernel.tasks.search, "_catch_up", nothing)  # the job that indexes every second

    async def unindexed(**params: str) -> Any:
        return (await world.admin.get("/api/v1/tasks", params=params)).json()["unindexed_events"]

    await world.register()
    await world.submit(input="a pear")
    waiting = await unindexed(text="pear")
    assert waiting > 0
    await world.kernel.provenance.sequencer.drain()
    assert await unindexed(text="pear") == waiting
    await index(world)
    assert await unindexed(text="pear") == 0
    await world.submit(input="an apple")
    assert await unindexed(text="apple") > 0
    assert await unindexed() is None
    assert await unindexed(ref="1") is None


@requirement("tasks.search")
async def test_a_task_that_runs_again_is_found_by_its_present_texts_only(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(input="apples")
    await end(world, agent, task_id, "fail", error={"message": "rotten"})
    await index(world)
    assert await found(world, text="rotten") == [task_id]
    await world.admin.post(f"/api/v1/tasks/{task_id}/retry")
    await end(world, agent, task_id, "complete", result="juice")
    await index(world)
    assert await found(world, text="rotten") == []
    assert await found(world, text="apples juice") == [task_id]


@requirement("tasks.search", "tasks.list-more-filters")
async def test_a_search_goes_with_the_other_filters_and_with_pages(world: World) -> None:
    ann, bob = await world.register("ann"), await world.register("bob", capabilities=["other"])
    ids = [await world.submit(input="pear", type="even" if n % 2 else "odd") for n in range(7)]
    other = await world.submit(input="pear", required_capabilities=["other"], type="even")
    await end(world, bob, other, "complete", result=1)
    await index(world)
    assert await found(world, text="pear", type="odd") == ids[::-2]
    assert await found(world, text="pear", status="completed") == [other]
    assert await found(world, text="pear", agent_id=ann, type="even") == ids[5:0:-2]
    assert await found(world, text="pear", submitted_by="nobody") == []
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = (await world.admin.get("/api/v1/tasks", params={"text": "pear", "limit": 3, **cursor})).json()
        seen += [task["task_id"] for task in answer["tasks"]]
        if answer["next_cursor"] is None:
            break
        assert not answer["total_is_exact"]
        cursor = {"cursor": answer["next_cursor"]}
    assert seen == [other, *ids[::-1]]


@requirement("tasks.search")
async def test_a_page_stops_after_so_many_matches_that_a_filter_refuses_and_goes_on_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HITS_PER_READ", 2)
    monkeypatch.setattr(service, "MAX_SCANNED", 4)
    await world.register()
    rare = await world.submit(input="plum", type="rare")
    for _ in range(6):
        await world.submit(input="plum")
    await index(world)
    first = (await world.admin.get("/api/v1/tasks", params={"text": "plum", "type": "rare"})).json()
    assert (first["tasks"], first["next_cursor"] is None) == ([], False)
    assert await found(world, text="plum", type="rare", cursor=first["next_cursor"]) == [rare]


@requirement("tasks.search-visibility")
async def test_nobody_finds_tasks_that_they_may_not_read(world: World) -> None:
    await world.register()
    task_id = await world.submit(input="confidential")
    await index(world)
    assert await found(world, text="confidential") == [task_id]
    assert await found(world, key="OTHER", text="confidential") == []
    assert await found(world, key="BOB", text="confidential") == []


@requirement("tasks.search")
async def test_a_wrong_search_is_answered_with_what_is_wrong(world: World) -> None:
    assert "at least one letter" in (await found(world, 400, text=' "*" -'))[0]
    for text in ("a " * 51, f'"{"a " * 51}"', "a_" * 51, '"a a" ' * 26):
        assert (await found(world, 400, text=text))[0] == "text: has more than 50 words; use fewer."
    assert await found(world, text=f'"{"a " * 50}"') == []
    assert "cursor" in (await found(world, 400, text="a", offset=1))[0]
    assert "cannot be combined with other filters" in (await found(world, 400, ref="a", text="a"))[0]
    assert "cannot be combined with other filters" in (await found(world, 400, parent_task_id="a", type="a"))[0]
    for cursor in ("x", "WyJhIl0"):
        await found(world, 400, text="a", cursor=cursor)


@requirement("tasks.search-off")
async def test_a_search_that_is_switched_off_says_how_to_switch_it_on(make_world: MakeWorld, tmp_path: Path) -> None:
    world: World = await make_world(SERVICE_TASK_SEARCH="0")
    assert "SERVICE_TASK_SEARCH" in (await found(world, 409, text="a"))[0]
    assert not (tmp_path / "index" / INDEX_FILE).exists()


@requirement("tasks.search")
async def test_an_index_of_another_run_log_is_built_anew(make_world: MakeWorld) -> None:
    world: World = await make_world(SERVICE_TASK_SEARCH="1")
    await world.register()
    task_id = await world.submit(input="restored")
    search = world.kernel.tasks.search
    task_index = search._require_index()
    await task_index.put([TaskText("default", "gone", "restored")], Position(999, "another-event"))
    await search._clear_if_foreign(task_index)
    await index(world)
    assert await found(world, text="restored") == [task_id]


@pytest.mark.only("sqlite", reason="the index is a file of its own")
@requirement("tasks.search")
async def test_an_index_that_is_damaged_is_built_anew(make_world: MakeWorld, tmp_path: Path) -> None:
    world: World = await make_world(SERVICE_TASK_SEARCH="1")
    await world.register()
    task_id = await world.submit(input="durian")
    await index(world)
    await world.kernel.tasks.search.close()
    for file in (tmp_path / "index").glob(f"{INDEX_FILE}*"):
        file.write_bytes(b"not a database")
    again: World = await make_world(SERVICE_TASK_SEARCH="1")
    await index(again)
    assert await found(again, text="durian") == [task_id]


@requirement("tasks.list-more-filters")
async def test_tasks_are_listed_by_type_and_submitter_and_counted_up_to_a_number(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.register()
    ids = [await world.submit(type="even" if n % 2 else "odd") for n in range(5)]
    body = {"type": "odd", "input": 1, "required_capabilities": ["echo"]}
    other = (await world.clients["WRITER"].post("/api/v1/tasks", json=body)).json()["task_id"]
    assert await found(world, type="odd") == [other, *ids[::-2]]
    assert await found(world, type="odd", submitted_by="writer") == [other]
    assert await found(world, type="odd", submitted_by="admin", status="queued") == ids[::-2]
    assert await found(world, type="neither") == []
    answer = (await world.admin.get("/api/v1/tasks", params={"type": "odd", "limit": 1})).json()
    assert (answer["total"], answer["total_is_exact"]) == (4, True)
    assert await found(world, type="odd", cursor=answer["next_cursor"]) == ids[::-2]
    monkeypatch.setattr(list_queries, "MAX_TOTAL", 2)
    list_queries._statements.clear()
    # Not less than the tasks of the page.
    for limit, total in ((1, 2), (9, 4)):
        answer = (await world.admin.get("/api/v1/tasks", params={"type": "odd", "limit": limit})).json()
        assert (answer["total"], answer["total_is_exact"]) == (total, False)
    list_queries._statements.clear()
    lists = await world.kernel.infra.db.read(
        lambda tx: (queries.list_types(tx, "default"), queries.list_submitters(tx, "default"))
    )
    assert lists == (["even", "odd"], ["admin", "writer"])


@requirement("tasks.search")
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_a_search_or_is_refused_and_any_words_can_be_indexed(text: str, indexed: str) -> None:
    try:
        phrases = parse_query(text)
    except InvalidRequest:
        assert not split_words(text.replace('"', " "))
    else:
        assert all(word.isalnum() or not word.isascii() for phrase in phrases for word in phrase.words)
    build_tsvector(split_words(indexed))


@pytest.mark.only("sqlite", reason="the index is a file of its own")
@requirement("tasks.search")
@pytest.mark.parametrize(
    "text", ["İstanbul straße ﬁne", "日本語 テキスト", "a\u0301 x\u0307\u0323", "Ⅷ ½ ²", "ǆ ŉ", "١٢٣", "c4" * 64 + " x"]
)
async def test_what_is_indexed_is_found_whatever_its_letters_and_length(
    text: str, tmp_path: Path, world: World
) -> None:
    task_index = SqliteTaskIndex(tmp_path / "other")
    await task_index.put([TaskText("default", "t", text)], Position(1, "e"))
    for word in text.split():
        assert await task_index.find("default", parse_query(word), 2**62, 5) == [(1, "t")], word
    await task_index.close()
