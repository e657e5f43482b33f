"""What everything that makes vectors must do: the model on this machine, and a service asked over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import numpy as np
import pytest

from stentor.domains.memory.embedding import local as cpu
from stentor.domains.memory.embedding.embedder import INTERRUPTED, Embedder, EmbeddingUnavailable
from stentor.domains.memory.embedding.local import LocalEmbedder
from stentor.domains.memory.embedding.remote import RemoteEmbedder
from tests.requirements import requirement


class Service(BaseHTTPRequestHandler):
    """Speaks OpenAI's embeddings API: a text is the mean of its words, a word a vector of its own."""

    answers: ClassVar[list[Any]] = []
    """Statuses or bodies to answer first, instead of the right thing."""
    asked: ClassVar[list[dict[str, Any]]] = []
    max_length: ClassVar[int | None] = None
    """Longer texts are refused, together with all of their request."""
    refused_word: ClassVar[str | None] = None
    """Texts with this word are refused."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"key": self.headers.get("Authorization"), "path": self.path, **body})
        planned = self.answers.pop(0) if self.answers else None
        if any(self.refuses(text) for text in body["input"]):
            planned = 413
        rows = [{"index": i, "embedding": word_mean(text).tolist()} for i, text in enumerate(body["input"])]
        answer = planned if planned is not None and not isinstance(planned, int) else {"data": rows[::-1]}
        self.send_response(planned if isinstance(planned, int) else 200)
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def refuses(self, text: str) -> bool:
        too_long = self.max_length is not None and len(text) > self.max_length
        return too_long or (self.refused_word is not None and self.refused_word in text.split())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def word_mean(text: str) -> Any:
    seeds = [int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) for word in text.lower().split() or [""]]
    return np.mean([np.random.default_rng(seed).normal(size=64) for seed in seeds], axis=0)


@pytest.fixture
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    Service.answers, Service.asked, Service.max_length, Service.refused_word = [], [], None, None
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["local", "remote"])
async def embedder(request: pytest.FixtureRequest, service: str, model_cache: Path) -> AsyncIterator[Embedder]:
    made: Embedder = LocalEmbedder(model_cache) if request.param == "local" else RemoteEmbedder(service, "m", "key-1")
    await made.load()
    yield made
    await made.close()


TEXTS = ["alpha beta gamma", "", "ä 日本語 😀 \u2028", "word " * 3000, "alpha beta delta", "x"]


async def test_every_text_has_a_row_of_length_one_in_its_order(embedder: Embedder) -> None:
    vectors = await embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    alone = [(await embedder.embed([text], urgent=True))[0] for text in TEXTS]
    assert all(float(one @ row) > 0.9999 for one, row in zip(alone, vectors, strict=True))


async def test_many_texts_come_in_batches_and_in_order(embedder: Embedder) -> None:
    texts = [f"subject number {i} {'more ' * (i % 7)}" for i in range(150)]
    vectors = await embedder.embed(texts)
    for i in (0, 63, 64, 149):
        nearest = int(np.argmax(vectors @ (await embedder.embed([texts[i]]))[0]))
        assert nearest == i


async def test_like_texts_are_nearer_than_unlike_ones(embedder: Embedder) -> None:
    one, like, unlike = await embedder.embed(["green apples grow here", "green apples grow there", "fast cars race"])
    assert one @ like > one @ unlike + 0.2


async def test_tokens_are_counted_and_grow_with_the_text(embedder: Embedder) -> None:
    counts = [embedder.count(text) for text in ("", "word", "word " * 100, "日本語日本語")]
    assert counts[0] == 0
    assert counts[1] >= 1
    assert counts[2] >= 90
    assert counts[3] >= 6
    assert embedder.max_tokens >= 128


async def test_calls_at_the_same_time_do_not_disturb_each_other(embedder: Embedder) -> None:
    texts = [f"topic {i}" for i in range(12)]
    expected = await embedder.embed(texts)
    found = await asyncio.gather(*(embedder.embed([text], urgent=i % 2 == 0) for i, text in enumerate(texts)))
    assert all(float(one[0] @ row) > 0.9999 for one, row in zip(found, expected, strict=True))


@requirement("memory.no-telemetry")
def test_the_local_model_reports_to_nobody(model_cache: Path, tmp_path: Path) -> None:
    code = f"""
import asyncio, pathlib
from stentor.domains.memory.embedding.local import LocalEmbedder
assert len(asyncio.run(LocalEmbedder(pathlib.Path({str(model_cache)!r})).embed(["a text"]))) == 1
"""
    # It reports nothing where it takes itself to be under test.
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    assert list(tmp_path.iterdir()) == []


async def test_the_local_model_knows_meanings(model_cache: Path) -> None:
    local = LocalEmbedder(model_cache)
    texts = ["How do I deploy the service?", "Putting the server into production", "The kitten sat on the rug"]
    question, like, unlike = await local.embed(texts)
    assert question @ like > 0.4
    assert question @ unlike < 0.2
    assert local.identity.startswith("all-MiniLM-L6-v2/53aa51172d14/")
    await local.close()


@pytest.mark.slow
async def test_eight_bits_are_nearly_as_good_as_thirty_two(model_cache: Path) -> None:
    import onnxruntime
    from tokenizers import Tokenizer

    from stentor.domains.memory.embedding import local as files
    from stentor.domains.memory.embedding import onnx_export

    found = files.find_model_files(None)
    model = onnx_export.build_graph(onnx_export.read_safetensors(found.weights), found.heads)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(found.tokenizer))
    local = LocalEmbedder(model_cache)
    for text in ("A short one.", "Agents do tasks, and each is routed to the best agent. " * 12):
        tokenizer.no_padding()
        ids = np.array([tokenizer.encode(text).ids[:256]])
        exact = session.run(["vectors"], {"ids": ids, "mask": np.ones_like(ids)})[0][0]
        assert float(exact @ (await local.embed([text]))[0]) > 0.98
    await local.close()


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", "avx2", True),
        ("AMD64", "avx512_vnni avx2", False),
        ("x86_64", "avx_vnni", False),
        ("arm64", "", False),
    ],
)
def test_a_cpu_whose_fast_products_overflow_is_known(tmp_path: Path, machine: str, flags: str, saturates: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor: 0\nflags: {flags}\n")
    assert cpu.int8_saturates(machine, tmp_path / "cpuinfo") == saturates
    assert cpu.int8_saturates("x86_64", tmp_path / "missing")


async def test_the_safe_products_give_the_same_vectors(model_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Agents do tasks, and each is routed to the best agent. " * 5
    vectors = []
    for saturates in (False, True):
        monkeypatch.setattr(cpu, "int8_saturates", lambda answer=saturates: answer)
        local = LocalEmbedder(model_cache)
        vectors.append((await local.embed([text]))[0])
        await local.close()
    assert float(vectors[0] @ vectors[1]) > 0.98


async def test_a_stop_does_not_wait_for_the_texts_of_a_cancelled_call(model_cache: Path) -> None:
    local = LocalEmbedder(model_cache)
    await local.load()
    session, begun, may_go_on = local._session, Event(), Event()
    done: list[int] = []

    class Slow:
        def run(self, *given: Any) -> Any:
            begun.set()
            may_go_on.wait()
            done.append(1)
            return session.run(*given)

    local._session = Slow()
    call = asyncio.create_task(local.embed(["alpha"] * 1000))
    await asyncio.to_thread(begun.wait)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    may_go_on.set()
    await local.close()
    assert len(done) <= cpu.MAX_BULK_THREADS


@pytest.mark.slow
async def test_a_damaged_graph_is_made_again(model_cache: Path, tmp_path: Path) -> None:
    for file in model_cache.iterdir():
        (tmp_path / file.name).write_bytes(b"garbage")
    local = LocalEmbedder(tmp_path)
    assert (await local.embed(["x"])).shape == (1, 384)
    await local.close()


@requirement("memory.without-model-degraded")
@pytest.mark.parametrize("missing", ["folder", "weights", "garbage"])
async def test_a_model_that_is_not_there_says_what_to_do(tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "model"
    if missing != "folder":
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{}")
    if missing == "garbage":
        (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}" + b"x" * 100)
    local = LocalEmbedder(tmp_path / "cache", folder)
    with pytest.raises(EmbeddingUnavailable, match=r"SERVICE_EMBEDDING_MODEL|cannot be exported"):
        await local.embed(["x"])
    await local.close()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
async def test_ctrl_c_during_the_preparation_is_no_error_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A terminal sends SIGINT to the exporting process too, a service manager SIGTERM."""
    program = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    run = subprocess.run

    def run_interrupted(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return run([sys.executable, "-c", program], **options)

    monkeypatch.setattr(subprocess, "run", run_interrupted)
    local = LocalEmbedder(tmp_path / "cache")
    with pytest.raises(EmbeddingUnavailable, match=INTERRUPTED):
        await local.embed(["x"])
    await local.close()


async def test_the_service_is_asked_with_key_model_and_batches(service: str) -> None:
    remote = RemoteEmbedder(service + "/", "some-model", "key-1")
    await remote.embed([f"t{i}" for i in range(65)])
    assert [len(call["input"]) for call in Service.asked] == [1, 64, 1]
    assert {(call["key"], call["model"], call["path"]) for call in Service.asked} == {
        ("Bearer key-1", "some-model", "/v1/embeddings")
    }
    await remote.close()


async def test_a_busy_service_is_asked_again_and_a_refusal_is_told_without_the_key(service: str) -> None:
    remote = RemoteEmbedder(service, "m", "key-1")
    Service.answers[:] = [429, 503]
    assert (await remote.embed(["x"])).shape == (1, 64)
    short: Any = {"data": [{"index": 0, "embedding": [1.0]}]}
    planned: list[Any] = [401, [400] * 9, [503] * 3, b"garbage", {"data": []}, {"data": [{"index": 0}]}, [1], short]
    for wrong in planned:
        Service.answers[:] = wrong if isinstance(wrong, list) and len(wrong) > 1 else [wrong]
        with pytest.raises(EmbeddingUnavailable) as error:
            await remote.embed(["x"])
        assert "key-1" not in error.value.message
    await remote.close()


@requirement("memory.without-model-degraded")
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b" " * 40_000_000 + b'{"data": [{"index": 0, "embedding": [1.0]}]}', "returned more than 33554432 bytes"),
        (b"[" * 100_000, "returned a body that is not valid JSON"),
        (b"<html>", "returned a body that is not valid JSON"),
    ],
    ids=["large", "deep", "html"],
)
async def test_a_body_that_cannot_be_read_is_named(service: str, body: bytes, problem: str) -> None:
    remote = RemoteEmbedder(service, "m")
    Service.answers[:] = [body]
    with pytest.raises(EmbeddingUnavailable, match=problem):
        await remote.load()
    await remote.close()


@requirement("memory.refused-text")
async def test_a_text_that_the_service_finds_too_long_is_shortened_and_the_others_are_whole(service: str) -> None:
    remote = RemoteEmbedder(service, "m")
    Service.max_length = 200
    texts = [f"subject number {i}" for i in range(20)]
    texts[13] = "4f1e9c03 " * 50
    vectors = await remote.embed(texts)
    for i, text in enumerate(texts):
        row = word_mean(text if i != 13 else text[: len(text) // 4])
        assert np.allclose(vectors[i], row / np.linalg.norm(row), atol=1e-5), i
    await remote.close()


@requirement("memory.refused-text")
async def test_a_text_that_is_refused_at_any_length_is_embedded_as_an_empty_one(service: str) -> None:
    remote = RemoteEmbedder(service, "m")
    Service.refused_word = "forbidden"
    vectors = await remote.embed(["one", "forbidden " * 20, "two", ""])
    assert np.array_equal(vectors[1], vectors[3])
    assert not np.allclose(vectors[0], vectors[2])
    await remote.close()


async def test_a_service_that_is_down_is_unavailable() -> None:
    remote = RemoteEmbedder("http://127.0.0.1:1/v1", "m")
    with pytest.raises(EmbeddingUnavailable, match="cannot be reached"):
        await remote.load()
    await remote.close()
