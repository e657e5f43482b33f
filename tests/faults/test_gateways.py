"""Several gateways share one vault and one index: what one does all find, and nothing is lost when one is killed."""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests import forkserver
from tests.conformance.indexes import plain_role
from tests.conformance.test_embedder import Service as EmbeddingService
from tests.conformance.test_embedder import service as embedding_service
from tests.conftest import Service
from tests.faults.gateways import Cluster, Gateway
from tests.patience import until
from tests.requirements import requirement

pytestmark = pytest.mark.fault
__all__ = ["embedding_service"]
WORDS_ONLY = {"SERVICE_EMBEDDING_MODEL": "none"}


@pytest.fixture
def cluster(serve: Callable[..., Service], bare_url: str, tmp_path: Path) -> Cluster:
    return Cluster(serve, tmp_path, bare_url, WORDS_ONLY)


@requirement("scale.memory-index")
def test_what_one_gateway_writes_the_other_finds_at_once_and_reads_as_it_is(cluster: Cluster) -> None:
    one, other = cluster.pair()
    for writer, reader in ((one, other), (other, one)):
        for text in ("first", "second"):
            writer.write("a.md", f"{text} heron")
            assert reader.found(text) == ["a.md"]
            assert reader.read("a.md") == f"{text} heron"
        assert reader.found("first") == []
    other.post("write", operation="delete", document={"path": "a.md"})
    assert (one.found("heron"), one.read("a.md")) == ([], None)
    cluster.check()


@requirement("scale.memory-index")
def test_an_edit_in_the_folder_is_found_and_read_through_both(cluster: Cluster) -> None:
    gateways = cluster.pair()
    for text in ("quixotic", "prosaic"):
        cluster.put("deep/human.md", text)
        for gateway in gateways:
            gateway.until_found(text, ["deep/human.md"])
            assert gateway.read("deep/human.md") == text
    (cluster.vault / "deep" / "human.md").unlink()
    for gateway in gateways:
        gateway.until_found("prosaic", [])
        assert gateway.read("deep/human.md") is None


@requirement("scale.one-follows-the-vault")
def test_when_the_one_that_watches_is_killed_the_other_takes_over(cluster: Cluster) -> None:
    leader, other = cluster.pair()
    assert not other.leads()
    cluster.put("before.md", "heron")
    other.until_found("heron", ["before.md"])
    leader.kill()
    cluster.put("while.md", "heron")  # nobody watches at this moment
    other.until_found("heron", ["before.md", "while.md"])
    assert other.leads()
    cluster.put("after.md", "heron")
    other.until_found("heron", ["after.md", "before.md", "while.md"])
    third = cluster.gateway("c")
    assert (other.leads(), third.leads()) == (True, False)
    cluster.check()


class Writer:
    """Writes notes one after the other, some of them by several writers, until its gateway is gone or it is told."""

    def __init__(self, gateway: Gateway, seed: int, stop: threading.Event) -> None:
        self._gateway, self._dice, self._stop = gateway, random.Random(seed), stop
        self.answered: dict[str, str] = {}
        self.tried: dict[str, set[str]] = {}
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                path, text = f"n/{self._dice.randrange(30)}.md", f"w{self._dice.randrange(10**9)} heron"
                self.tried.setdefault(path, set()).add(text)
                self._gateway.write(path, text)
                self.answered[path] = text
        except httpx.HTTPError:
            return


@pytest.mark.slow
@requirement("scale.one-follows-the-vault", "scale.memory-index")
def test_under_writes_to_the_same_notes_and_a_kill_no_note_is_indexed_twice_or_lost(cluster: Cluster) -> None:
    leader, other = cluster.pair()
    stop = threading.Event()
    writers = [Writer(gateway, seed, stop) for seed, gateway in enumerate([leader, leader, other, other])]
    dice = random.Random(7)
    by_hand: dict[str, str] = {}
    for n in range(60):
        path, text = f"hand/{dice.randrange(20)}.md", f"h{n} heron"
        cluster.put(path, text)
        by_hand[path] = text
        if n == 30:
            leader.service.kill()
        time.sleep(0.03)
    stop.set()
    for writer in writers:
        writer.thread.join()
    until(other.leads, "nobody leads")
    until(lambda: other.differences() == [], "the index is not as the vault")
    files = sorted(
        str(path.relative_to(cluster.vault)) for path in cluster.vault.rglob("*.md") if ".trash" not in path.parts
    )
    assert other.found("heron") == files
    assert set(files) == set(by_hand) | {path for writer in writers for path in writer.tried}
    for path, text in by_hand.items():
        assert other.found(text.split()[0]) == [path]
    for path in files:
        if path.startswith("n/"):
            text = (cluster.vault / path).read_text()
            assert any(text in writer.tried.get(path, ()) for writer in writers)
            assert path in other.found(text.split()[0])
    cluster.check()


def test_a_write_that_a_killed_gateway_left_open_is_carried_out_by_the_other(cluster: Cluster) -> None:
    leader, other = cluster.pair()
    leader.write("a.md", "old")
    leader.write("a.md", "new words")
    until(lambda: open_writes(cluster) == 0, "a write is not settled")
    leader.kill()
    (cluster.vault / "a.md").write_text("old")  # as if the kill had come before the file was written
    intent = """insert into memory_intents (write_id, path, before_hash, after_hash, created_at)
        select 'left', path, content_hash, encode(sha256('new words'), 'hex'), created_at - 3600000000
        from memory_versions where path = 'a.md' and content_hash = encode(sha256('old'), 'hex')"""
    with psycopg.connect(cluster.url, autocommit=True) as database:
        assert database.execute(intent).rowcount == 1
    until(lambda: other.read("a.md") == "new words", "the write is not carried out")
    other.until_found("new", ["a.md"])
    until(lambda: open_writes(cluster) == 0, "the write stays open")


def open_writes(cluster: Cluster) -> int:
    with psycopg.connect(cluster.url, autocommit=True) as database:
        return len(database.execute("select 1 from memory_intents").fetchall())


def test_a_write_under_way_at_one_gateway_is_left_alone_by_the_others(cluster: Cluster) -> None:
    leader, _ = cluster.pair()
    leader.write("a.md", "old")
    # Of a time ahead: on a busy machine the third may take longer to start than a write may take.
    intent = """insert into memory_intents (write_id, path, before_hash, after_hash, created_at)
        values ('mine', 'a.md', '', '', (extract(epoch from now() + interval '1 hour') * 1000000)::bigint)"""
    with psycopg.connect(cluster.url, autocommit=True) as database:
        database.execute(intent)
        third = cluster.gateway("c")
        third.until_found("old", ["a.md"])
        assert database.execute("select write_id from memory_intents").fetchall() == [("mine",)]


NOTE = "---\ntype: echo\nrequired_capabilities: [echo]\n---\nWhat is new {n}?\n"


@requirement("scale.one-follows-the-vault")
def test_a_note_in_the_inbox_becomes_one_task_also_when_the_one_that_takes_it_is_killed(cluster: Cluster) -> None:
    cluster.environ |= {"SERVICE_INBOX_QUIET_SECONDS": "0.3"}
    leader, other = cluster.pair()
    agent = {"name": "ann", "capabilities": ["echo"]}
    assert other.client.post("/api/v1/registry/agents", json=agent).status_code == 201

    def tasks() -> list[str]:
        found = other.client.get("/api/v1/tasks", params={"limit": 100}).json()["tasks"]
        return [task["task_id"] for task in found]

    for n in range(5):
        cluster.put(f"Tasks/Inbox/{n}.md", NOTE.format(n=n))
    until(lambda: len(tasks()) >= 2, "no note becomes a task")
    leader.kill()
    for n in range(5, 8):
        cluster.put(f"Tasks/Inbox/{n}.md", NOTE.format(n=n))
    until(lambda: len(tasks()) == 8, "not every note becomes a task")
    for task_id in tasks():  # 409: the gateway that took it did not know the agent yet, and nobody could do it
        assert other.client.post(f"/api/v1/tasks/{task_id}/cancel", json={}).status_code in (200, 409)
    answers = cluster.vault / "Tasks" / "Inbox"
    until(lambda: len(list(answers.glob("* (answer).md"))) == 8, "not every note has its answer")
    time.sleep(1)  # nothing more comes
    assert len(tasks()) == 8
    assert sorted(path.name for path in answers.glob("*.md")) == sorted(
        name for n in range(8) for name in (f"{n}.md", f"{n} (answer).md")
    )


@pytest.mark.slow
def test_an_index_that_is_dropped_while_gateways_run_comes_back(cluster: Cluster) -> None:
    gateways = cluster.pair()
    for n in range(5):
        gateways[0].write(f"{n}.md", "heron")
    with psycopg.connect(cluster.url, autocommit=True) as database:
        database.execute("drop schema stentor_index cascade")

    def back(gateway: Gateway) -> bool:
        answer = gateway.client.post("/api/v1/memory/search/keyword", json={"terms": ["heron"]})
        assert answer.status_code in (200, 503)
        return answer.status_code == 200 and answer.json()["total_matches"] == 5

    for gateway in gateways:
        until(lambda gateway=gateway: back(gateway), "the index does not come back")
    cluster.check()
    done = command(gateways[1].service, "verify", "--json")
    found = {"notes": 5, "task_notes": 0, "differences": []}
    assert (done.returncode, json.loads(done.stdout)) == (0, found), done.stderr
    assert json.loads(command(gateways[1].service, "reindex", "--json").stdout) == {"notes": 5, "task_notes": 0}
    cluster.check()


def command(service: Service, *words: str) -> subprocess.CompletedProcess[str]:
    words = (*words, "--data-dir", str(service.data_dir), "--key", service.key)
    environ = {**service.environ, "SERVICE_URL": service.address, "SERVICE_CLIENT_KEY": service.key}
    return forkserver.run_text(words, environ, 120)


@pytest.fixture
def embeddings(embedding_service: str, cluster: Cluster) -> list[dict[str, list[str]]]:
    """What was asked of the service that makes vectors, which all gateways use."""
    cluster.environ = {"SERVICE_EMBEDDING_URL": embedding_service, "SERVICE_EMBEDDING_MODEL": "m"}
    return EmbeddingService.asked


def embedded(asked: list[dict[str, list[str]]], word: str) -> Counter[str]:
    return Counter(text for call in asked for text in call["input"] if word in text)


@pytest.mark.slow
@requirement("scale.memory-index")
def test_every_gateway_makes_vectors_and_each_text_has_its_own_made_once(
    cluster: Cluster, embeddings: list[dict[str, list[str]]]
) -> None:
    leader, other = cluster.pair()
    for n in range(40):
        cluster.put(f"{n}.md", f"heron number n{n} by the sea")
    other.write("own.md", "a kingfisher on the river")
    for gateway in (leader, other):
        gateway.until_near("kingfisher river", "own.md")
        for n in (3, 39):
            gateway.until_near(f"heron n{n}", f"{n}.md")
    until(lambda: len(embedded(embeddings, " by the sea")) == 40, "some texts have no vector")
    assert set(embedded(embeddings, " by the sea").values()) == {1}
    leader.kill()
    cluster.put("late.md", "an owl in the night")
    other.until_near("owl night", "late.md")


@pytest.mark.slow
def test_a_gateway_with_another_model_searches_by_word_and_says_why(
    cluster: Cluster, embeddings: list[dict[str, list[str]]]
) -> None:
    first = cluster.gateway("a")
    first.write("a.md", "heron")
    first.until_near("heron", "a.md")
    cluster.environ["SERVICE_EMBEDDING_MODEL"] = "newer"
    second = cluster.gateway("b")
    second.until_near("heron", "a.md")
    answer = first.client.post("/api/v1/memory/search/semantic", json={"query": "heron"})
    assert answer.status_code == 503
    assert "The shared index holds vectors of the model" in answer.json()["error"]["message"]
    assert first.found("heron") == ["a.md"]
    hybrid = first.post("search/hybrid", query="heron")
    assert [match["path"] for match in hybrid["matches"]] == ["a.md"]


@pytest.fixture
def plain(cluster: Cluster) -> Iterator[str]:
    with plain_role(cluster.url) as url:
        yield url


@pytest.mark.slow
def test_without_pgvector_the_start_says_what_to_do_and_all_gateways_search_by_meaning(
    cluster: Cluster, embeddings: list[dict[str, list[str]]], plain: str
) -> None:
    superuser, cluster.url = cluster.url, plain
    leader, other = cluster.pair()
    leader.write("a.md", "a heron by the sea")
    other.write("b.md", "a kingfisher on the river")
    for gateway in (leader, other):
        gateway.until_near("heron sea", "a.md")
        gateway.until_near("kingfisher river", "b.md")
    detail = leader.client.get("/api/v1/memory/health").json()["components"]["vector_store"]["detail"]
    assert "CREATE EXTENSION vector" in detail
    other.post("write", operation="delete", document={"path": "a.md"})
    leader.until_near("heron sea", "b.md")
    for gateway in (leader, other):
        gateway.service.process.terminate()
        assert gateway.service.process.stderr is not None
        assert "a superuser can run: CREATE EXTENSION vector" in gateway.service.process.stderr.read()
    with psycopg.connect(superuser, autocommit=True) as database:
        database.execute("create extension vector")
    again = cluster.gateway("a")
    again.until_near("kingfisher river", "b.md")
    detail = again.client.get("/api/v1/memory/health").json()["components"]["vector_store"]["detail"]
    assert "CREATE EXTENSION" not in detail
