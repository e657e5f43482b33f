"""The checks of `stentor doctor`. Each fails closed: one that cannot be made is a problem that is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from stentor.cli.checks import cage, configuration, database, folder, memory, receipts, runlog, service, system
from stentor.cli.checks.finding import Finding, Situation
from stentor.cli.inspection import inspect
from stentor.core.security.redaction import Redactor

Check = Callable[[Situation], Iterable[Finding]]
CHECKS: dict[str, Check] = {
    "Python": system.python,
    "SQLite": system.sqlite,
    "extras": system.extras,
    "gRPC": system.grpc,
    "settings": configuration.settings,
    "safety": configuration.safety,
    "keys": configuration.keys,
    "data folder": folder.data_folder,
    "key files": folder.key_files,
    "receipts": receipts.issuers,
    "memory": memory.vault,
    "embeddings": memory.embeddings,
    "cage": cage.cage,
    "database": database.sqlite,
    "PostgreSQL": database.postgresql,
    "run log": runlog.run_log,
    "service": service.owner,
    "SERVICE_URL": service.address,
}


def run(environ: Mapping[str, str], data_dir: Path | None) -> list[Finding]:
    """All findings, in the order of the checks; never raises on what it finds."""
    found = inspect(environ, data_dir)
    situation = Situation(found, found.effective, environ)
    redactor = Redactor()
    for secret in (
        found.effective.database_url,
        found.effective.client_key,
        found.effective.shared_key,
        found.effective.embedding_key,
    ):
        redactor.add_secret(secret)
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            findings += check(situation)
        except Exception as error:  # noqa: BLE001 - a doctor that falls ill helps nobody
            reason = redactor.redact(f"{type(error).__name__}: {error}")
            findings.append(Finding("problem", name, f"The check itself failed ({reason})."))
    return findings
