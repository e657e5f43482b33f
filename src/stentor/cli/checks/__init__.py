"""The checks of `stentor doctor`, by name, and `run_checks`, which runs them all.

Each fails closed: a check that raises an error is reported as a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from stentor.cli.checks import components, environment, storage
from stentor.cli.inspection import CheckContext, CheckFinding, inspect_config
from stentor.core.security.redaction import Redactor

Check = Callable[[CheckContext], Iterable[CheckFinding]]
CHECKS: dict[str, Check] = {
    "Python": environment.check_python,
    "SQLite": environment.check_sqlite_version,
    "extras": environment.check_extras,
    "gRPC": environment.check_grpc,
    "settings": environment.check_settings,
    "stentor.toml": environment.check_config_file,
    "TLS": components.check_tls,
    "safety": environment.check_safety,
    "keys": environment.check_api_keys,
    "sign-in": components.check_provider,
    "data folder": storage.check_data_folder,
    "key files": storage.check_key_files,
    "receipts": storage.check_receipt_issuers,
    "memory": components.check_vault,
    "embeddings": components.check_embeddings,
    "sandbox": components.check_sandbox,
    "database": storage.check_sqlite_database,
    "PostgreSQL": storage.check_postgresql,
    "run log": storage.check_run_log,
    "service": components.check_folder_owner,
    "SERVICE_URL": components.check_service_url,
}


def run_checks(environ: Mapping[str, str], data_dir: Path | None) -> list[CheckFinding]:
    """Run all checks and return their findings in order; never raises because of what a check finds."""
    inspection = inspect_config(environ, data_dir)
    context = CheckContext(inspection, inspection.effective, environ)
    # A finding may repeat an address with a password, and the error of a check a connection string or a key.
    redactor = Redactor()
    for secret in (
        inspection.effective.storage.database_url,
        inspection.effective.client.key,
        inspection.effective.auth.shared_key,
        inspection.effective.memory.embedding_key,
    ):
        redactor.add_secret(secret)
    findings: list[CheckFinding] = []
    for name, check in CHECKS.items():
        try:
            findings += check(context)
        except Exception as error:  # noqa: BLE001 - one failing check must not hide the other findings
            reason = f"{type(error).__name__}: {error}"
            findings.append(CheckFinding("problem", name, f"The check raised an error ({reason})."))
    return [msgspec.structs.replace(finding, message=redactor.redact(finding.message)) for finding in findings]
