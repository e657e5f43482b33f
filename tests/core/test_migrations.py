"""The schema's versions, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor.core import migrations
from stentor.core.db.driver import Driver
from stentor.core.db.postgres import PostgresDriver
from stentor.core.db.sql import Sql
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.errors import StartRefused


def write(driver: Driver, text: str) -> None:
    connection = driver.writer()
    connection.begin()
    connection.run(Sql(text), {})
    connection.commit()
    connection.close()


@pytest.fixture
def bare(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Driver:
    """A driver over a database without a schema."""
    if database == "sqlite":
        return SqliteDriver(tmp_path / "bare.db")
    return PostgresDriver(request.getfixturevalue("bare_postgres_url"))


def test_a_fresh_database_is_brought_to_the_newest_version_and_stays_there(bare: Driver) -> None:
    assert migrations.current_version(bare) is None
    migrations.upgrade(bare)
    assert migrations.current_version(bare) == migrations.HEAD
    migrations.upgrade(bare)
    assert migrations.current_version(bare) == migrations.HEAD


def test_the_databases_of_the_tests_are_at_the_newest_version(driver: Driver) -> None:
    assert migrations.current_version(driver) == migrations.HEAD


def test_the_newest_script_is_the_head() -> None:
    scripts = sorted((migrations.scripts_folder() / "versions").glob("[0-9]*.py"))
    assert scripts[-1].name.split("_")[0] == migrations.HEAD


def test_a_database_of_a_newer_program_is_refused(driver: Driver) -> None:
    write(driver, "update alembic_version set version_num = '9999'")
    with pytest.raises(StartRefused, match="9999"):
        migrations.upgrade(driver)


def test_an_empty_database_has_no_version(driver: Driver) -> None:
    write(driver, "drop table alembic_version")
    assert migrations.current_version(driver) is None
