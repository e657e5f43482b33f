"""Runs the Alembic scripts over either database."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from stentor.core.db.driver import Driver
from stentor.core.migrations import scripts_folder


def run(driver: Driver) -> None:
    """Upgrade to the newest version, in one transaction where the database can."""
    engine = create_engine(_address(driver), poolclass=NullPool)
    config = Config()
    config.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()


def _address(driver: Driver) -> str:
    if driver.name == "sqlite":
        return f"sqlite:///{driver.path}"  # type: ignore[attr-defined]
    url: str = driver.url  # type: ignore[attr-defined]
    return "postgresql+psycopg://" + url.split("://", 1)[1]
