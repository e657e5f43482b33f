"""What a start does not need is not imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stentor.core import migrations

HEAVY = (
    "aiohttp alembic genai_prices grpc markdown_it mcp mcp_types numpy onnx onnxruntime PIL rich ruamel sqlalchemy "
    "tokenizers"
).split()


def test_wiring_the_service_imports_no_library_that_its_start_can_do_without() -> None:
    modules = "stentor.bootstrap.service, stentor.bootstrap.surfaces, stentor.cli.commands.servers.serve"
    code = f"import sys, {modules}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_schema_of_a_new_file_is_created_without_alembic(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from stentor.core import migrations;"
        "from stentor.core.db.sqlite.driver import SqliteDriver;"
        "print(len(migrations.upgrade(SqliteDriver(Path(sys.argv[1]))).applied));"
        f"print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "stentor.db")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(len(migrations.revisions())), ""]


def test_commands_that_open_the_database_themselves_import_no_wiring_of_the_service() -> None:
    modules = "stentor.cli.commands.archive, stentor.cli.commands.db, stentor.cli.commands.provenance"
    code = f"import sys, {modules}; print(*sorted({{'fastapi', 'stentor.bootstrap.kernel'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_note_that_changes_imports_no_numpy_while_there_is_no_embedding_model() -> None:
    code = (
        "import sys; from unittest.mock import Mock;"
        "from stentor.domains.memory.index.sqlite.in_memory_vectors import InMemoryVectorStore;"
        "tx = Mock(); InMemoryVectorStore(Mock()).withdraw(tx, 1); tx.run.assert_called_once();"
        f"print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
