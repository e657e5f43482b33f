"""What commands need that open the database themselves, without a service in their process."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from stentor.cli.output import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, CommandFailed
from stentor.core import migrations
from stentor.core import settings as settings_module
from stentor.core.db import database_url
from stentor.core.db.driver import Driver
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings


def load_offline_settings(data_dir: Path | None) -> Settings:
    """Load the settings for a command that opens the database itself; keep secrets and passwords out of the log.

    Raises CommandFailed if the data folder is a file.
    """
    settings = settings_module.load(os.environ, {"SERVICE_DATA_DIR": data_dir})
    if settings.storage.data_dir.is_file():
        raise CommandFailed(f"The data folder {settings.storage.data_dir} is a file, not a folder.", EXIT_USAGE)
    redactor = Redactor()
    for url in (settings.storage.database_url, settings.storage.session_url):
        for secret in (url, *database_url.url_secrets(url)):
            redactor.add_secret(secret)
    redaction.configure_logging("warning", redactor)
    return settings


def has_database(settings: Settings) -> bool:
    """Return whether another database is configured, or the data folder has one."""
    return bool(settings.storage.database_url) or (settings.storage.data_dir / "stentor.db").exists()


def require_database(settings: Settings) -> None:
    """Raise CommandFailed if the data folder has no database and no other one is configured."""
    if not has_database(settings):
        raise CommandFailed(
            f"No service is running, and {settings.storage.data_dir.absolute()} has no database. "
            "Start `stentor serve`, or select another data folder with --data-dir or a service with --url.",
            EXIT_UNREACHABLE,
        )


def require_current_schema(driver: Driver, file: Path | None = None) -> None:
    """Raise CommandFailed unless the database has the schema of this program; `file` is one in no data folder."""
    current = migrations.current_version(driver)
    migrations.require_supported(current)
    if current != migrations.HEAD:
        way = f"Upgrade it: {migrations.UPGRADE_COMMAND}, or start `stentor serve`."
        if file is not None:
            way = (
                f"Upgrade a copy: `mkdir -m 0700 copy`, `cp {shlex.quote(str(file))} copy/stentor.db`, "
                "`stentor db upgrade --data-dir copy`; then pass that file."
            )
        raise CommandFailed(
            f"The schema of the database is {current or 'none'}, and this program needs {migrations.HEAD}. {way}",
            EXIT_FAILED,
        )
