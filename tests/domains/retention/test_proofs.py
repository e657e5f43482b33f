"""The run log after tasks have left the database: what still verifies, and which manipulations are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from stentor.cli.provenance import run_log
from stentor.core.db import Sql
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.domains.provenance.audit.verification import verify_run_log
from stentor.domains.provenance.export import EventSelection
from stentor.domains.retention import parquet_files
from stentor.domains.retention.parquet_files import WrittenFiles
from stentor.domains.retention.verification import verify_archives
from tests.conftest import World
from tests.domains.retention.archives import archive, archiver, audit, audit_archives, count, select, sign
from tests.requirements import requirement


async def two_archives(world: World) -> list[str]:
    """Two archived tasks in an archive each, and one that stays; answers the events of the archived ones."""
    agent = await world.register()
    for _ in range(2):
        await world.do(agent)
    await world.submit(id="kept")
    assert (await archive(world, most=1)).archives == 2
    await world.kernel.provenance.service.publish()
    return [row[0] for row in select(world, "select event_id from {events} order by number")]


async def run(world: World, *statements: str) -> None:
    await world.kernel.infra.db.write(lambda tx: [tx.run(Sql(statement)) for statement in statements])


@requirement("retention.proofs")
async def test_the_database_alone_still_proves_the_tree_and_counts_the_archived_events(world: World) -> None:
    events = await two_archives(world)
    report = audit(world)
    assert (report.findings, report.archived, report.archives_read) == ([], len(events), 0)
    assert report.covered == report.size
    archives = audit_archives(world)
    assert (archives.findings, archives.archives, archives.events, archives.unknown) == ([], 2, len(events), [])


@pytest.mark.only("postgresql", reason="its server ends transactions that are idle")
@requirement("retention.proofs", "provenance.export")
async def test_archives_are_verified_and_events_exported_however_long_that_takes_between_two_queries(
    world: World, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events = await two_archives(world)
    hasty = PostgresDriver(postgres_url, world.clock, {"idle_in_transaction_session_timeout": "'1ms'"})
    assert verify_archives(hasty, world.kernel.archiver.folder).events == len(events)
    assert verify_run_log(hasty, [world.kernel.provenance.signer.verifier]).is_intact
    monkeypatch.setattr(run_log, "_open_driver", lambda *_: hasty)
    out = tmp_path / "out.json"
    run_log.export_events(world.kernel.infra.settings, None, "otlp", EventSelection("default"), out)
    assert out.read_text().count("resourceSpans") == await count(world, "events")


@requirement("retention.proofs")
async def test_an_archived_event_has_a_proof_with_its_body_or_at_least_its_hash(world: World) -> None:
    event = (await two_archives(world))[3]
    answer = await world.admin.get(f"/api/v1/provenance/{event}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "TASK_ARCHIVED")
    path = f"/api/v1/provenance/{event}/proof"
    whole = (await world.admin.get(path)).json()
    assert f'"event_id":"{event}"' in whole["event"]
    assert (await world.clients["OTHER"].get(path)).status_code == 404
    folder = world.kernel.archiver.folder
    folder.rename(folder.with_name("elsewhere"))
    bare = (await world.admin.get(path)).json()
    assert bare == {**whole, "event": None}


DATABASE: dict[str, tuple[list[str], str]] = {
    "an event that was deleted and called archived": (
        [
            "insert into archived_events select l.number, 1 from provenance_leaves l join events e using (event_id) "
            "where e.task_id = 'kept'",
            "delete from events where task_id = 'kept'",
            "delete from tasks where task_id = 'kept'",
        ],
        "archive",
    ),
    "an archive that does not exist": (
        [
            "insert into archived_events select l.number, 9 from provenance_leaves l join events e using (event_id) "
            "where e.task_id = 'kept'",
            "delete from events where task_id = 'kept'",
            "delete from tasks where task_id = 'kept'",
        ],
        "archive",
    ),
    "an archive without its event": (["update archives set event_id = 'x' where number = 1"], "archive"),
    "a mark that was removed": (
        ["delete from archived_events where number = (select min(number) from archived_events)"],
        "removed",
    ),
    "a leaf of an archived event": (
        [f"update provenance_leaves set hash = '{'0' * 64}' where number = (select min(number) from archived_events)"],
        "changed",
    ),
    "events that were deleted": (["delete from events where task_id = 'kept'"], "removed"),
}


@requirement("retention.proofs")
@pytest.mark.parametrize("damage", DATABASE)
async def test_the_database_alone_shows_what_was_changed_in_it(world: World, damage: str) -> None:
    await two_archives(world)
    statements, kind = DATABASE[damage]
    await run(world, *statements)
    assert kind in {finding.kind for finding in audit(world).findings}


def rewrite(path: Path, change: Callable[[dict[str, list[Any]]], object]) -> None:
    """Change the rows of a file."""
    # Not at the top: the library starts threads, and tests run in forks of the process that imported this.
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(path)
    columns = table.to_pydict()
    change(columns)
    parquet.write_table(pyarrow.Table.from_pydict(columns, schema=table.schema), path)


FILES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "a message": (lambda path: rewrite(path, lambda rows: rows["message"].__setitem__(2, "x")), {"archive", "changed"}),
    "a missing event": (
        lambda path: rewrite(path, lambda rows: [column.pop() for column in rows.values()]),
        {"archive", "removed"},
    ),
    "a foreign event": (
        lambda path: rewrite(path, lambda rows: rows["number"].__setitem__(0, 10**6)),
        {"archive", "inserted", "removed"},
    ),
    "half a file": (lambda path: path.write_bytes(path.read_bytes()[:100]), {"archive"}),
    "no file": (lambda path: path.unlink(), {"archive"}),
    "a file of tasks": (
        lambda path: rewrite(path.with_name("tasks.parquet"), lambda rows: rows["result"].__setitem__(0, "null")),
        {"archive"},
    ),
}


@requirement("retention.tampered-archive")
@pytest.mark.parametrize("damage", FILES)
async def test_a_changed_file_is_found_and_named(world: World, damage: str) -> None:
    await two_archives(world)
    change, kinds = FILES[damage]
    path = sorted(world.kernel.archiver.folder.glob("*/events.parquet"))[1]
    change(path)
    report = audit_archives(world)
    assert {finding.kind for finding in report.findings} == kinds
    assert all(path.parent.name in finding.text for finding in report.findings)
    assert audit(world).is_intact, "the database has not changed"


@requirement("retention.tampered-archive")
async def test_the_events_of_an_archive_that_was_recorded_without_their_file_are_missing(world: World) -> None:
    await world.do(await world.register())
    await sign(world)
    # As one who can write to the database would record it, to delete events.
    await archiver(world, write_files=lambda *_: WrittenFiles({}, 0)).archive(world.clock.now() + 1)
    archived = audit(world).archived
    assert archived > 0
    findings = audit_archives(world).findings
    assert [finding.kind for finding in findings] == ["removed"] * archived


@requirement("retention.tampered-archive")
async def test_a_folder_from_before_a_restore_is_named_and_not_used(world: World) -> None:
    await two_archives(world)
    (world.kernel.archiver.folder / "000001-2020-01-01-00000000").mkdir()
    assert audit_archives(world).unknown == ["000001-2020-01-01-00000000"]
    assert await count(world, "archives") == 2


@requirement("retention.proofs")
async def test_a_file_that_is_not_the_recorded_one_is_not_parsed_for_a_proof(world: World) -> None:
    event = (await two_archives(world))[1]
    url = f"/api/v1/provenance/{event}/proof"
    whole = (await world.admin.get(url)).json()
    assert f'"event_id":"{event}"' in whole["event"]
    # With the same rows: only its hash tells it from the recorded one, so a body would show that it was parsed.
    rewrite(min(world.kernel.archiver.folder.glob("*/events.parquet")), lambda rows: None)
    assert (await world.admin.get(url)).json() == {**whole, "event": None}


HOSTILE_COLUMNS = {"number": [1], "event_id": 1, "message": {"a": 1}, "happened_at": numpy.datetime64(1, "ns")}
"""Column -> a value that no event has there, for all rows."""


@requirement("retention.proofs")
@pytest.mark.parametrize("name", HOSTILE_COLUMNS)
async def test_a_file_with_values_that_no_event_can_have_is_a_finding_and_proves_nothing(
    world: World, name: str
) -> None:
    import pyarrow  # not at the top: see `rewrite`
    from pyarrow import parquet

    event = (await two_archives(world))[1]
    path = min(world.kernel.archiver.folder.glob("*/events.parquet"))
    table = parquet.read_table(path)
    column = pyarrow.array([HOSTILE_COLUMNS[name]] * table.num_rows)
    parquet.write_table(table.set_column(table.column_names.index(name), name, column), path)
    found = audit_archives(world).findings
    assert [finding.kind for finding in found] == ["archive", "archive"]
    answer = await world.admin.get(f"/api/v1/provenance/{event}/proof")
    assert (answer.status_code, answer.json()["event"]) == (200, None)


@requirement("retention.proofs")
async def test_no_name_in_the_database_leads_out_of_the_folder_of_archives(world: World, tmp_path: Path) -> None:
    await two_archives(world)
    folder = world.kernel.archiver.folder
    before = sorted(folder.iterdir())
    victim = tmp_path / "victim"
    victim.mkdir()
    names = [str(victim), f"../{folder.name}", "", "."]
    for number, name in enumerate(names, 90):
        await run(
            world,
            "insert into archives (number, name, tenant, tasks, events, size_bytes, first_at, last_at, started_at) "
            f"values ({number}, '{name}', 'default', 1, 1, 1, 1, 1, 1)",
        )
    assert set(await archiver(world).forget_unfinished()) == set(names)
    assert victim.exists()
    assert sorted(folder.iterdir()) == before
    for archive_name, file in (("..", "x.parquet"), ("x", "../x")):
        with pytest.raises(ValueError, match="not the name of an archive"):
            parquet_files.locate(folder, archive_name, file)
