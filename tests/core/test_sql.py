"""PostgreSQL takes every statement of the stores, whether or not another test runs it there: all run on SQLite."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import psycopg

import stentor.domains
import stentor.surfaces
from stentor.core.db import CounterTable, RowsSql, Sql

OWN_SCHEMA = ("stentor.domains.memory.index.", "stentor.domains.tasks.search.sqlite_index")
"""The search indexes are other databases; their own tests run all of their statements on each kind."""
ON_SQLITE = ("stentor.domains.tasks.queues.lane_store",)
PROGRAMS = ("embedding.onnx_export",)
PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


def statements() -> Iterator[tuple[str, Sql]]:
    """Those that modules hold, with their names; of those that are said for each database, PostgreSQL's."""
    for package in (stentor.domains, stentor.surfaces):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.startswith((*OWN_SCHEMA, *ON_SQLITE)) or found.name.endswith(PROGRAMS):
                continue
            for name, value in vars(importlib.import_module(found.name)).items():
                if isinstance(value, dict) and "postgresql" in value:
                    value = value["postgresql"]
                if isinstance(value, RowsSql):
                    value = list(value.statements.values())
                if isinstance(value, CounterTable):
                    value = value.statements
                for one in value if isinstance(value, (tuple, list)) else [value]:
                    if isinstance(one, Sql):
                        yield f"{found.name}.{name}", one


def test_postgresql_takes_every_statement(postgres_url: str) -> None:
    refused, count = [], 0
    with psycopg.connect(postgres_url, autocommit=True) as server:
        for name, one in statements():
            numbers = {word: f"${n}" for n, word in enumerate(dict.fromkeys(PARAMETER.findall(one.text)), 1)}
            text = PARAMETER.sub(lambda found: numbers[found[1]], one.text)  # noqa: B023
            count += 1
            try:
                server.execute(f"prepare statement_{count} as {text}".encode())
            except psycopg.Error as error:
                refused.append(f"{name}: {error}")
    assert refused == []
    assert count > 200
