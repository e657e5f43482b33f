"""The vault plugin's REST API over a folder: files, folders, frontmatter, search, tags, bad input."""

from __future__ import annotations

import gzip
import socket
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.patience import until
from tests.surfaces.vault.conftest import Vault


def assert_error(response: httpx.Response, code: int) -> None:
    assert response.status_code == code // 100, response.text
    assert response.json()["errorCode"] == code
    assert response.json()["message"]


def wait_for_search_result(vault: Vault, query: str, names: list[str]) -> None:
    until(lambda: search_filenames(vault, query) == names, lambda: search_filenames(vault, query))


def search_filenames(vault: Vault, query: str) -> list[str]:
    response = vault.http.post("/search/simple/", params={"query": query})
    assert response.status_code == 200, response.text
    return [hit["filename"] for hit in response.json()]


def test_root_reports_versions_and_whether_the_key_is_valid(vault: Vault) -> None:
    for headers, authenticated in ((None, True), ({"Authorization": "Bearer no"}, False)):
        body = vault.http.get("/", headers=headers).json()
        assert (body["status"], body["authenticated"]) == ("OK", authenticated)
        assert set(body["versions"]) == {"obsidian", "self"}


@pytest.mark.requirement("vault.key")
@pytest.mark.parametrize("header", [{"Authorization": ""}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}])
def test_requests_without_the_key_return_401(vault: Vault, header: dict[str, str]) -> None:
    vault.put("a.md", "secret")
    for method, path in (
        ("GET", "/vault/a.md"),
        ("PUT", "/vault/b.md"),
        ("GET", "/vault/"),
        ("GET", "/nothing"),
        ("GET", "/tags/"),
    ):
        response = vault.http.request(method, path, headers=header)
        assert_error(response, 40101)
        assert "secret" not in response.text
        assert "a vault, which has a key of its own" in response.text
    assert [path.name for path in vault.root.iterdir()] == ["a.md"]


@pytest.mark.requirement("vault.key")
def test_a_request_with_two_different_keys_is_refused(vault: Vault) -> None:
    right, wrong = vault.http.headers["authorization"], "Bearer wrong"
    for values in ([right, wrong], [wrong, right]):
        headers = [("Authorization", value) for value in values]
        assert_error(httpx.get(f"{vault.http.base_url}/vault/", headers=headers), 40101)


def test_key_file_is_readable_by_its_owner_only(vault: Vault) -> None:
    assert stat.S_IMODE(vault.key_file.stat().st_mode) == 0o600
    assert len(vault.key_file.read_text().strip()) > 40


@pytest.mark.parametrize(
    "content", [b"# Hi\r\n", "ä 日本語".encode(), b"", b"\xef\xbb\xbf---\na: 1\n---\n", b"\x89PNG\0\xff"]
)
def test_get_returns_exactly_the_bytes_of_put(vault: Vault, content: bytes) -> None:
    assert vault.put("a%20b/%C3%A4%23%25.md", content).status_code == 204
    assert (vault.root / "a b" / "ä#%.md").read_bytes() == content
    response = vault.http.get("/vault/a%20b/%C3%A4%23%25.md")
    assert (response.status_code, response.content) == (200, content)


def test_accept_header_selects_text_json_or_document_map(vault: Vault) -> None:
    text = "---\ntags: [one]\nkey: 1\n---\n# A\n\n#two/three `#no`\n\n## B\n\ntext ^block1\n\n# C\n"
    vault.put("n.md", text)
    text_response = vault.http.get("/vault/n.md")
    assert text_response.headers["content-type"] == "text/markdown; charset=utf-8"
    note = vault.http.get("/vault/n.md", headers={"Accept": "application/vnd.olrapi.note+json"}).json()
    assert (note["path"], note["content"]) == ("n.md", text)
    assert note["frontmatter"] == {"tags": ["one"], "key": 1}
    assert note["tags"] == ["one", "two/three"]
    assert note["stat"]["size"] == len(text)
    assert abs(note["stat"]["mtime"] - time.time() * 1000) < 60_000
    document_map = vault.http.get("/vault/n.md", headers={"Accept": "application/vnd.olrapi.document-map+json"}).json()
    assert document_map == {
        "headings": {"A": {"B": {}}, "C": {}},
        "blocks": ["block1"],
        "frontmatterFields": ["tags", "key"],
        "version": note["version"],
    }
    assert text_response.headers["etag"] == f'"{note["version"]}"'


def test_folder_listing_has_one_level_and_omits_empty_folders(vault: Vault) -> None:
    for path in ("b.md", "a/x.md", "a/deep/y.md"):
        vault.put(path, "x")
    (vault.root / "empty" / "er").mkdir(parents=True)
    assert vault.http.get("/vault/").json() == {"files": ["a/", "b.md"]}
    for folder in ("a/", "a"):
        assert vault.http.get(f"/vault/{folder}").json() == {"files": ["deep/", "x.md"]}
    for unknown in ("none/", "empty/", "none"):
        assert_error(vault.http.get(f"/vault/{unknown}"), 40400)


def test_appended_text_starts_on_a_new_line(vault: Vault) -> None:
    text = {"Content-Type": "text/markdown"}
    for content in ("one", "two\n", "three"):
        assert vault.http.post("/vault/new/a.md", content=content, headers=text).status_code == 204
    assert (vault.root / "new" / "a.md").read_text() == "one\ntwo\nthree"
    assert_error(vault.http.post("/vault/new/a.md", content="{}", headers={"Content-Type": "application/json"}), 40010)


def test_lines_appended_by_32_concurrent_clients_are_all_kept(vault: Vault) -> None:
    def append(i: int) -> int:
        headers = {"Content-Type": "text/plain"}
        return vault.http.post("/vault/log.md", content=f"line {i}", headers=headers).status_code

    with ThreadPoolExecutor(32) as pool:
        assert set(pool.map(append, range(96))) == {204}
    assert sorted((vault.root / "log.md").read_text().splitlines()) == sorted(f"line {i}" for i in range(96))


def test_deleted_note_moves_to_the_trash_unless_permanent(vault: Vault) -> None:
    for name in ("a.md", "b.md"):
        vault.put(name, name)
    assert vault.http.delete("/vault/a.md").status_code == 204
    assert vault.http.delete("/vault/b.md", params={"permanent": "true"}).status_code == 204
    assert [path.name for path in (vault.root / ".trash").iterdir()] == ["a.md"]
    assert_error(vault.http.delete("/vault/a.md"), 40400)
    assert_error(vault.http.get("/vault/a.md"), 40400)


def test_move_and_copy_overwrite_only_with_allow_overwrite(vault: Vault) -> None:
    vault.put("a.md", "a")
    vault.put("b.md", "b")
    moved = vault.http.request("MOVE", "/vault/a.md", headers={"Destination": "sub/c%20d.md"})
    assert (moved.status_code, moved.headers["Content-Location"]) == (204, "sub/c%20d.md")
    assert (vault.root / "sub" / "c d.md").read_text() == "a"
    assert_error(vault.http.request("MOVE", "/vault/sub/c%20d.md", headers={"Destination": "b.md"}), 40920)
    assert_error(vault.http.request("COPY", "/vault/sub/c%20d.md", headers={"Destination": "b.md"}), 40920)
    headers = {"Destination": "b.md", "Allow-Overwrite": "true"}
    assert vault.http.request("COPY", "/vault/sub/c%20d.md", headers=headers).status_code == 204
    assert (vault.root / "b.md").read_text() == "a"
    assert_error(vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "../out.md"}), 40021)
    assert_error(vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "/etc/x.md"}), 40021)
    assert_error(vault.http.request("MOVE", "/vault/b.md"), 40020)
    moved = vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "sub/deep/"})
    assert moved.headers["Content-Location"] == "sub/deep/b.md"


PATCH = {
    "Markdown-Patch-Version": "2",
    "Operation": "replace",
    "Target-Type": "frontmatter",
    "Create-Target-If-Missing": "true",
    "Content-Type": "application/json",
}


def test_frontmatter_patch_keeps_all_other_bytes(vault: Vault) -> None:
    original = b"---\r\nkeep: 0123 # mine\r\ntags: [a]\r\n---\r\nbody\r\n"
    vault.put("n.md", original)
    response = vault.http.patch("/vault/n.md", content='["a","b c"]', headers={**PATCH, "Target": "tags"})
    expected = original.replace(b"tags: [a]", b"tags:\r\n  - a\r\n  - b c")
    assert (response.status_code, response.content) == (200, expected)
    assert (vault.root / "n.md").read_bytes() == expected
    response = vault.http.patch("/vault/n.md", content="5", headers={**PATCH, "Target": "new%20%C3%A4"})
    assert "new ä: 5" in response.text
    empty = {
        "targetType": "frontmatter",
        "target": "empty",
        "operation": "replace",
        "value": "",
        "createTargetIfMissing": True,
    }
    response = vault.http.patch("/vault/n.md", json=empty)
    assert response.status_code == 200
    assert 'empty: ""' in response.text


def test_patch_appends_and_prepends_to_lists_and_texts(vault: Vault) -> None:
    vault.put("n.md", "---\ntags: [a]\ntitle: One\n---\n")
    for operation, target, value in (
        ("append", "tags", '["b"]'),
        ("prepend", "tags", '"z"'),
        ("append", "title", '" two"'),
    ):
        headers = {**PATCH, "Operation": operation, "Target": target, "Markdown-Patch-Version": "1"}
        assert vault.http.patch("/vault/n.md", content=value, headers=headers).status_code == 200
    note = vault.http.get("/vault/n.md", headers={"Accept": "application/vnd.olrapi.note+json"}).json()
    assert note["frontmatter"] == {"tags": ["z", "a", "b"], "title": "One two"}


def test_invalid_patch_returns_its_error_code(vault: Vault) -> None:
    vault.put("n.md", "---\na: 1\n---\n")
    vault.put("bad.md", "---\na: [\n---\n")

    def send_patch(path: str = "n.md", content: str = "1", **headers: str) -> httpx.Response:
        patch_headers = {**PATCH, "Target": "a", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return vault.http.patch(
            f"/vault/{path}", content=content, headers={k: v for k, v in patch_headers.items() if v}
        )

    assert_error(send_patch(Markdown_Patch_Version=""), 40084)
    assert_error(send_patch(Operation="change"), 40057)
    assert_error(send_patch(Target_Type="page"), 40054)
    assert_error(send_patch(Target=""), 40055)
    assert_error(send_patch(content="{"), 40015)
    assert_error(send_patch("none.md"), 40400)
    assert_error(send_patch(Target="none", Create_Target_If_Missing="false"), 40400)
    assert_error(send_patch("bad.md"), 40005)
    assert_error(send_patch(Operation="append", content='"x"'), 40080)
    assert_error(send_patch(If_Match='"stale"'), 41200)
    assert_error(send_patch(Target_Type="heading"), 40058)
    assert_error(send_patch(Markdown_Patch_Version="3"), 40082)
    assert_error(send_patch(If_Match="a b"), 40024)
    assert_error(send_patch(Trim_Target_Whitespace="true"), 40084)
    assert_error(send_patch(Within="1x"), 40023)
    assert_error(vault.http.patch("/vault/n.md", content="x"), 40081)
    assert (vault.root / "n.md").read_text() == "---\na: 1\n---\n"


@pytest.mark.requirement("vault.simple-search")
def test_search_needs_every_word_in_text_or_name(indexed_vault: Vault) -> None:
    vault = indexed_vault
    vault.put("Harbour.md", "ships")
    vault.put("b.md", "The harbour has ships; the HARBOUR sleeps.")
    vault.put("c.md", "ships alone")
    hits = vault.http.post("/search/simple/", params={"query": "harbour ships", "contextLength": 5}).json()
    assert [hit["filename"] for hit in hits] == ["Harbour.md", "b.md"]
    assert {"start": 0, "end": 7, "source": "filename"} in [match["match"] for match in hits[0]["matches"]]
    first_match = hits[1]["matches"][0]
    assert first_match == {"match": {"start": 4, "end": 11, "source": "content"}, "context": "The harbour has "}
    assert search_filenames(vault, "nowhere") == []
    assert_error(vault.http.post("/search/simple/"), 40090)
    assert_error(vault.http.post("/search/simple/", params={"query": " "}), 40090)


def test_matches_of_a_hit_are_in_text_order(indexed_vault: Vault) -> None:
    vault = indexed_vault
    vault.put("dir/One two.md", "two ONE\n" + "x" * 300 + " one")
    [hit] = vault.http.post("/search/simple/", params={"query": "one two"}).json()
    assert set(hit) == {"filename", "score", "matches"}
    positions = [(match["match"]["start"], match["match"]["end"], match["match"]["source"]) for match in hit["matches"]]
    assert positions == [
        (0, 3, "filename"),
        (4, 7, "filename"),
        (0, 3, "content"),
        (4, 7, "content"),
        (309, 312, "content"),
    ]
    assert [len(match["context"]) for match in hit["matches"]] == [7, 7, 103, 107, 103]
    for context_length, length in (("0", 3), ("nonsense", 103), ("-5", 103)):
        [hit] = vault.http.post("/search/simple/", params={"query": "one two", "contextLength": context_length}).json()
        assert len(hit["matches"][2]["context"]) == length


@pytest.mark.requirement("vault.match-limit")
def test_the_match_limit_shortens_the_matches_of_a_note_and_not_its_score(indexed_vault: Vault) -> None:
    indexed_vault.put("One.md", "one, two, one")
    hits = [
        indexed_vault.http.post("/search/simple/", params={"query": "two one"} | limit).json()[0]
        for limit in ({"matchLimit": "1"}, {"matchLimit": "0"}, {"matchLimit": "x"}, {})
    ]
    assert [[match["match"]["start"] for match in hit["matches"]] for hit in hits] == [
        [0, 0],
        [0],
        *[[0, 0, 5, 10]] * 2,
    ]
    assert len({hit["score"] for hit in hits}) == 1


@pytest.mark.requirement("vault.simple-search")
def test_search_ranks_notes_with_more_matches_first(indexed_vault: Vault) -> None:
    vault = indexed_vault
    for name, text in (("a.md", "word"), ("b.md", "word word word"), ("c.md", "word word"), ("word.md", "x")):
        vault.put(name, text)
    vault.put("word.txt", "word word word word, but no note")
    hits = vault.http.post("/search/simple/", params={"query": "WORD"}).json()
    assert [hit["filename"] for hit in hits] == ["word.md", "b.md", "c.md", "a.md"]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_search_index_follows_edits_by_other_programs(vault: Vault) -> None:
    (vault.root / "deep").mkdir()
    (vault.root / "deep" / "n.md").write_text("quixotic")
    wait_for_search_result(vault, "quixotic", ["deep/n.md"])
    (vault.root / "deep" / "n.md").unlink()
    wait_for_search_result(vault, "quixotic", [])


def test_tag_counts_include_parent_tags(indexed_vault: Vault) -> None:
    vault = indexed_vault
    vault.put("a.md", "---\ntags: [x/y]\n---\n#z")
    vault.put("b.md", "#x and #x/y again #x/y")
    tags = {tag["name"]: tag["count"] for tag in vault.http.get("/tags/").json()["tags"]}
    assert {name: tags[name] for name in ("x", "x/y", "z")} == {"x": 2, "x/y": 2, "z": 1}


def test_names_that_windows_cannot_have_are_read_and_changed_but_not_made(vault: Vault) -> None:
    (vault.root / "Q: folder?").mkdir()
    (vault.root / "Q: folder?" / "Why?.md").write_text("because")
    url = "/vault/Q%3A%20folder%3F/Why%3F.md"
    assert vault.http.get(url).text == "because"
    assert "Why?.md" in vault.http.get("/vault/Q%3A%20folder%3F/").json()["files"]
    assert vault.http.post(url, content="so", headers={"Content-Type": "text/markdown"}).status_code == 204
    assert vault.http.get(url).text.split() == ["because", "so"]
    assert vault.http.put("/vault/Q%3A%20folder%3F/new.md", content="x").status_code == 204
    assert vault.http.put("/vault/new%3F.md", content="x").status_code == 400
    for verb in ("MOVE", "COPY"):
        answer = vault.http.request(verb, url, headers={"Destination": "other%3F.md"})
        assert answer.status_code == 400, answer.text
    assert sorted(path.name for path in vault.root.rglob("*.md")) == ["Why?.md", "new.md"]
    assert vault.http.delete(url).status_code == 204


TRAVERSALS = [
    "..%2Fout.md",
    "%2e%2e/out.md",
    "a/%2e%2e/%2e%2e/out.md",
    "..%5Cout.md",
    "%00.md",
    "a%0A.md",
    ".obsidian/app.json",
    "%252e%252e%2Fout.md",
    "a%2Fb.md",
    "CON.md",
    "%ff.md",
    "%2Fetc/passwd",
]


def send_raw_request(vault: Vault, method: str, path: str) -> bytes:
    """Send the path unchanged; an HTTP client would normalize it."""
    port = vault.http.base_url.port
    assert port is not None
    key = vault.http.headers["Authorization"]
    with socket.create_connection(("127.0.0.1", port), timeout=200) as connection:
        lines = [f"{method} /vault/{path} HTTP/1.1", "Host: x", f"Authorization: {key}", "Content-Length: 1"]
        connection.sendall("\r\n".join([*lines, "Connection: close", "", "x"]).encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("path", [*TRAVERSALS, "../out.md", "a/../../out.md"])
def test_no_path_encoding_leaves_the_vault(vault: Vault, path: str) -> None:
    for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
        response = send_raw_request(vault, method, path)
        assert response.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404")), (method, response)
        assert b'"errorCode"' in response
    assert not (vault.root.parent / "out.md").exists()
    assert list(vault.root.iterdir()) == []


def test_symlink_out_of_the_vault_is_not_found(vault: Vault) -> None:
    (vault.root / "key.md").symlink_to(vault.key_file)
    assert_error(vault.http.get("/vault/key.md"), 40400)
    assert search_filenames(vault, vault.key_file.read_text().strip()) == []


def test_file_above_100_mb_is_413_and_not_read_into_memory(vault: Vault) -> None:
    vault.put("a.md", "small")
    with (vault.root / "film.mp4").open("wb") as film:
        film.truncate((100 << 20) + 1)
    answers = (
        vault.http.get("/vault/film.mp4"),
        vault.http.put("/vault/film.mp4", content="x", headers={"If-Match": "*"}),
        vault.http.delete("/vault/film.mp4", headers={"If-Match": "*"}),
        vault.http.post("/vault/film.mp4", content="x", headers={"Content-Type": "text/markdown"}),
        vault.http.request("COPY", "/vault/film.mp4", headers={"Destination": "b.mp4"}),
    )
    for answer in answers:
        assert_error(answer, 41300)
    assert (vault.root / "film.mp4").stat().st_size == (100 << 20) + 1
    assert vault.http.get("/vault/a.md").text == "small"
    assert sorted(path.name for path in vault.root.iterdir()) == ["a.md", "film.mp4"]


ONTO_FILM = {"Destination": "film.mp4", "Allow-Overwrite": "true"}


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda vault: vault.put("film.mp4", "small"), ["a.md", "film.mp4"]),
        (lambda vault: vault.http.delete("/vault/film.mp4"), ["a.md"]),
        (lambda vault: vault.http.delete("/vault/film.mp4?permanent=true"), ["a.md"]),
        (lambda vault: vault.http.request("MOVE", "/vault/a.md", headers=ONTO_FILM), ["film.mp4"]),
        (lambda vault: vault.http.request("COPY", "/vault/a.md", headers=ONTO_FILM), ["a.md", "film.mp4"]),
        (
            lambda vault: vault.http.request("MOVE", "/vault/film.mp4", headers={"Destination": "b.mp4"}),
            ["a.md", "b.mp4"],
        ),
    ],
    ids=["put", "delete", "delete-permanently", "move-onto", "copy-onto", "move"],
)
def test_change_without_conditions_does_not_read_a_file_above_100_mb(
    vault: Vault, change: Callable[[Vault], httpx.Response], left: list[str]
) -> None:
    vault.put("a.md", "small")
    with (vault.root / "film.mp4").open("wb") as film:
        film.truncate((100 << 20) + 1)
    assert change(vault).status_code == 204
    assert sorted(path.name for path in vault.root.iterdir() if path.name != ".trash") == left
    if "film.mp4" in left:
        assert vault.http.get("/vault/film.mp4").text == "small"


def test_a_compressed_body_is_415_and_not_stored(vault: Vault) -> None:
    body, encoded = gzip.compress(b"# Title"), {"Content-Encoding": "gzip"}
    assert_error(vault.http.put("/vault/n.md", content=body, headers=encoded), 41500)
    assert_error(vault.http.post("/vault/n.md", content=body, headers=encoded), 41500)
    assert vault.http.get("/vault/n.md").status_code == 404
    plain = vault.http.put("/vault/n.md", content="# Title", headers={"Content-Encoding": "identity"})
    assert plain.status_code == 204


@pytest.mark.requirement("memory.read-only-notes")
def test_a_read_only_file_keeps_its_content_and_has_its_own_code(vault: Vault) -> None:
    vault.put("a.md", "kept")
    vault.put("b.md", "other")
    (vault.root / "a.md").chmod(0o444)
    answers = (
        vault.put("a.md", "x"),
        vault.http.post("/vault/a.md", content="x", headers={"Content-Type": "text/markdown"}),
        vault.http.delete("/vault/a.md"),
        vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "a.md", "Allow-Overwrite": "true"}),
        vault.http.request("COPY", "/vault/b.md", headers={"Destination": "a.md", "Allow-Overwrite": "true"}),
    )
    for answer in answers:
        assert_error(answer, 40930)
    assert vault.http.get("/vault/a.md").text == "kept"
    assert vault.http.get("/vault/b.md").text == "other"


def test_unsupported_requests_return_their_error_codes(vault: Vault) -> None:
    assert_error(vault.http.put("/vault/folder/", content="x"), 40510)
    assert_error(vault.http.put("/vault/", content="x"), 40510)
    assert_error(vault.http.request("OPTIONS", "/vault/a.md"), 40500)
    assert_error(vault.http.get("/active/"), 40400)
    assert_error(vault.put("big.md", b"x" * (20 * 1024 * 1024 + 1)), 41300)
    vault.put("image.png", b"\xff\0")
    assert_error(vault.http.patch("/vault/image.png", content="1", headers={**PATCH, "Target": "a"}), 40081)
    assert sorted(path.name for path in vault.root.iterdir()) == ["image.png"]
