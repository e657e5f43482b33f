"""Two gateways on one PostgreSQL and one vault, and what must hold of their index whatever happens to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.conftest import Service
from tests.patience import until

Serve = Callable[..., Service]


@dataclass
class Gateway:
    service: Service

    def __post_init__(self) -> None:
        self.client = self.service.client()

    def post(self, route: str, **body: Any) -> dict[str, Any]:
        answer = self.client.post(f"/api/v1/memory/{route}", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def write(self, path: str, content: str) -> dict[str, Any]:
        return self.post("write", operation="write", document={"path": path, "content": content})

    def read(self, path: str) -> str | None:
        document = self.client.get("/api/v1/memory/read/exact", params={"path": path}).json()["document"]
        return None if document is None else str(document["content"])

    def found(self, *terms: str) -> list[str]:
        return sorted(match["path"] for match in self.post("search/keyword", terms=list(terms), limit=1000)["matches"])

    def nearest(self, query: str) -> str | None:
        matches = self.post("search/semantic", query=query, top_k=1)["matches"]
        return str(matches[0]["path"]) if matches else None

    def until_found(self, term: str, paths: list[str]) -> None:
        until(lambda: self.found(term) == paths, f"{term!r} is not found in {paths}")

    def until_near(self, query: str, path: str) -> None:
        until(lambda: self.nearest(query) == path, f"{query!r} is not near {path}")

    def differences(self) -> list[dict[str, str]]:
        """Between the vault and the index, as `stentor verify` tells them."""
        found: list[dict[str, str]] = []
        after: str | None = ""
        while after is not None:
            step = self.post("verify", after=after, limit=500)
            found += step["differences"]
            after = step["next"]
        return found

    def leads(self) -> bool:
        """Whether it is the one that follows the vault."""
        return "stentor_memory_leads 1.0" in self.client.get("/metrics").text

    def kill(self) -> None:
        self.client.close()
        self.service.kill()


@dataclass
class Cluster:
    serve: Serve
    folder: Path
    url: str
    environ: dict[str, str]

    @property
    def vault(self) -> Path:
        return self.folder / "vault"

    def gateway(self, name: str) -> Gateway:
        """Starts one, with a data folder of its own."""
        environ = {"SERVICE_DATABASE_URL": self.url, "SERVICE_VAULT_DIR": str(self.vault), **self.environ}
        return Gateway(self.serve(data_dir=self.folder / name, **environ))

    def pair(self) -> tuple[Gateway, Gateway]:
        """The one that follows the vault, and another one."""
        first, second = self.gateway("a"), self.gateway("b")
        until(lambda: first.leads() or second.leads(), "nobody leads")
        return (first, second) if first.leads() else (second, first)

    def put(self, path: str, text: str) -> None:
        """As an editor does, by a rename."""
        file = self.vault / path
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}.aside")
        aside.write_text(text)
        aside.rename(file)

    def check(self) -> None:
        """Each note is in the index once, with its words and no other's."""
        with psycopg.connect(self.url, autocommit=True) as database:
            database.execute("set search_path = stentor_index")
            for query in _NONE:
                assert database.execute(query.encode()).fetchall() == [], query
            for query in _EQUAL:
                ((left, right),) = database.execute(query.encode()).fetchall()
                assert left == right, query


_NONE = [
    "select path from documents group by path having count(*) > 1",
    "select doc_id from lengths full join documents using (doc_id) where lengths.doc_id is null or path is null",
    "select doc_id from postings where doc_id not in (select doc_id from documents)",
    "select doc_id from windows where doc_id not in (select doc_id from documents)",
    "select doc_id, term from postings group by doc_id, term having count(*) > 1",
]
_EQUAL = [
    "select value, (select count(*) from documents) from facts where name = 'documents'",
    "select value, (select coalesce(sum(length), 0) from lengths) from facts where name = 'terms'",
]
