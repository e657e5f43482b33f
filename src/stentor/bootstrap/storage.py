"""The database of an installation and what is stored outside it, for commands that start no service.

Importing the whole wiring takes most of the time of such a command.
"""

from __future__ import annotations

import importlib

from stentor.core.db import database_url
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StartRefused
from stentor.core.lazy_import import install_command
from stentor.core.settings import Settings
from stentor.domains.provenance.signing.signing_guard import ExternalState


def open_driver(settings: Settings) -> Driver:
    """Return a driver of the configured database. Raises StartRefused."""
    if not settings.storage.database_url:
        return SqliteDriver(settings.storage.data_dir / "stentor.db")
    # Checked before the import: a user who meant another database must not be told to install this one's client.
    url = _postgres_url("SERVICE_DATABASE_URL", settings.storage.database_url)
    try:
        module = importlib.import_module("stentor.core.db.postgres.driver")
    except ImportError:
        raise StartRefused(f"PostgreSQL needs the extra: {install_command('postgres')}.") from None
    session_url = settings.storage.session_url and _postgres_url(
        "SERVICE_DATABASE_SESSION_URL", settings.storage.session_url
    )
    driver: Driver = module.PostgresDriver(url, session_url=session_url)
    return driver


def external_state(settings: Settings) -> ExternalState:
    """Return what the run log stores outside the database for this data folder."""
    return ExternalState(settings.storage.data_dir / "keys", settings.provenance.checkpoint_file)


def _postgres_url(name: str, text: str) -> str:
    try:
        return database_url.parse_postgres_url(text).url
    except ValueError as error:
        raise StartRefused(f"{name} {error}.") from None
