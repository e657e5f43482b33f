"""What is invalidated at one gateway is out of the searches of another, also after both started anew."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Service
from tests.patience import until
from tests.processes.conftest import Start
from tests.requirements import requirement

pytestmark = pytest.mark.together("processes")
MEMORY = {"SERVICE_MEMORY": "1", "SERVICE_EMBEDDING_MODEL": "none"}


def post(service: Service, path: str, **body: Any) -> dict[str, Any]:
    with service.client() as http:
        answer = http.post(f"/api/v1/memory/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def found(service: Service) -> list[str]:
    matches = post(service, "search/keyword", terms=["zebra"])["matches"]
    return sorted(match["path"] for match in matches)


@requirement("memory.invalid-everywhere")
def test_two_gateways_exclude_the_same_at_once_and_after_a_restart(start: Start, tmp_path_factory: Any) -> None:
    vault = {"SERVICE_VAULT_DIR": str(tmp_path_factory.mktemp("vault"))}
    one, other = (start("gateway", **MEMORY, **vault) for _ in range(2))
    for name, entry in (("a", "https://x.example"), ("b", "[[a]]"), ("c", "task:1")):
        document = {"path": f"{name}.md", "content": "zebra", "frontmatter": {"derived_from": [entry]}}
        post(one, "write", operation="write", document=document)
    until(lambda: found(other) == ["a.md", "b.md", "c.md"])
    post(one, "invalidate", source="https://x.example", reason="wrong")
    assert found(other) == ["c.md"]
    post(other, "invalidate", note="c.md", reason="wrong")
    assert found(one) == []
    for service in (one, other):
        service.process.terminate()
        service.process.wait(60)
    third = start("gateway", **MEMORY, **vault)
    assert found(third) == []
    assert post(third, "restore", source="https://x.example")["total"] == 2
    assert found(third) == ["a.md", "b.md"]
