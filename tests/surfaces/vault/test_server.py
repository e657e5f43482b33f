"""The vault plugin's REST API over a folder: files, folders, frontmatter, search, tags, bad input."""

from __future__ import annotations

import socket
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.patience import until
from tests.surfaces.vault.conftest import Vault


def refused(answer: httpx.Response, code: int) -> None:
    assert answer.status_code == code // 100, answer.text
    assert answer.json()["errorCode"] == code
    assert answer.json()["message"]


def until_found(vault: Vault, query: str, names: list[str]) -> None:
    until(lambda: found_by(vault, query) == names, lambda: found_by(vault, query))


def found_by(vault: Vault, query: str) -> list[str]:
    answer = vault.http.post("/search/simple/", params={"query": query})
    assert answer.status_code == 200, answer.text
    return [hit["filename"] for hit in answer.json()]


def test_the_root_says_who_it_is_with_and_without_a_key(vault: Vault) -> None:
    for headers, known in ((None, True), ({"Authorization": "Bearer no"}, False)):
        body = vault.http.get("/", headers=headers).json()
        assert (body["status"], body["authenticated"]) == ("OK", known)
        assert set(body["versions"]) == {"obsidian", "self"}


@pytest.mark.requirement("vault.key")
@pytest.mark.parametrize("header", [{"Authorization": ""}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}])
def test_without_its_key_nothing_is_answered(vault: Vault, header: dict[str, str]) -> None:
    vault.put("a.md", "secret")
    for method, path in (
        ("GET", "/vault/a.md"),
        ("PUT", "/vault/b.md"),
        ("GET", "/vault/"),
        ("GET", "/nothing"),
        ("GET", "/tags/"),
    ):
        answer = vault.http.request(method, path, headers=header)
        refused(answer, 40101)
        assert "secret" not in answer.text
    assert [path.name for path in vault.root.iterdir()] == ["a.md"]


def test_its_key_is_made_once_and_for_its_owner_alone(vault: Vault) -> None:
    assert stat.S_IMODE(vault.key_file.stat().st_mode) == 0o600
    assert len(vault.key_file.read_text().strip()) > 40


@pytest.mark.parametrize(
    "content", [b"# Hi\r\n", "ä 日本語".encode(), b"", b"\xef\xbb\xbf---\na: 1\n---\n", b"\x89PNG\0\xff"]
)
def test_bytes_come_back_as_they_were_put(vault: Vault, content: bytes) -> None:
    assert vault.put("a%20b/%C3%A4%23%25.md", content).status_code == 204
    assert (vault.root / "a b" / "ä#%.md").read_bytes() == content
    answer = vault.http.get("/vault/a%20b/%C3%A4%23%25.md")
    assert (answer.status_code, answer.content) == (200, content)


def test_a_note_is_text_or_json_or_its_map_as_the_caller_accepts(vault: Vault) -> None:
    text = "---\ntags: [one]\nkey: 1\n---\n# A\n\n#two/three `#no`\n\n## B\n\ntext ^block1\n\n# C\n"
    vault.put("n.md", text)
    plain = vault.http.get("/vault/n.md")
    assert plain.headers["content-type"] == "text/markdown; charset=utf-8"
    note = vault.http.get("/vault/n.md", headers={"Accept": "application/vnd.olrapi.note+json"}).json()
    assert (note["path"], note["content"]) == ("n.md", text)
    assert note["frontmatter"] == {"tags": ["one"], "key": 1}
    assert note["tags"] == ["one", "two/three"]
    assert note["stat"]["size"] == len(text)
    assert abs(note["stat"]["mtime"] - time.time() * 1000) < 60_000
    mapped = vault.http.get("/vault/n.md", headers={"Accept": "application/vnd.olrapi.document-map+json"}).json()
    assert mapped == {
        "headings": {"A": {"B": {}}, "C": {}},
        "blocks": ["block1"],
        "frontmatterFields": ["tags", "key"],
        "version": note["version"],
    }
    assert plain.headers["etag"] == f'"{note["version"]}"'


def test_a_folder_lists_one_level_and_empty_folders_are_invisible(vault: Vault) -> None:
    for path in ("b.md", "a/x.md", "a/deep/y.md"):
        vault.put(path, "x")
    (vault.root / "empty" / "er").mkdir(parents=True)
    assert vault.http.get("/vault/").json() == {"files": ["a/", "b.md"]}
    for folder in ("a/", "a"):
        assert vault.http.get(f"/vault/{folder}").json() == {"files": ["deep/", "x.md"]}
    for unknown in ("none/", "empty/", "none"):
        refused(vault.http.get(f"/vault/{unknown}"), 40400)


def test_what_is_appended_begins_in_a_line_of_its_own(vault: Vault) -> None:
    text = {"Content-Type": "text/markdown"}
    for content in ("one", "two\n", "three"):
        assert vault.http.post("/vault/new/a.md", content=content, headers=text).status_code == 204
    assert (vault.root / "new" / "a.md").read_text() == "one\ntwo\nthree"
    refused(vault.http.post("/vault/new/a.md", content="{}", headers={"Content-Type": "application/json"}), 40010)


def test_of_32_clients_that_append_no_line_is_lost(vault: Vault) -> None:
    def append(i: int) -> int:
        headers = {"Content-Type": "text/plain"}
        return vault.http.post("/vault/log.md", content=f"line {i}", headers=headers).status_code

    with ThreadPoolExecutor(32) as pool:
        assert set(pool.map(append, range(96))) == {204}
    assert sorted((vault.root / "log.md").read_text().splitlines()) == sorted(f"line {i}" for i in range(96))


def test_a_deleted_note_lies_in_the_trash_unless_it_is_for_good(vault: Vault) -> None:
    for name in ("a.md", "b.md"):
        vault.put(name, name)
    assert vault.http.delete("/vault/a.md").status_code == 204
    assert vault.http.delete("/vault/b.md", params={"permanent": "true"}).status_code == 204
    assert [path.name for path in (vault.root / ".trash").iterdir()] == ["a.md"]
    refused(vault.http.delete("/vault/a.md"), 40400)
    refused(vault.http.get("/vault/a.md"), 40400)


def test_a_note_is_moved_and_copied_and_overwrites_only_when_told(vault: Vault) -> None:
    vault.put("a.md", "a")
    vault.put("b.md", "b")
    moved = vault.http.request("MOVE", "/vault/a.md", headers={"Destination": "sub/c%20d.md"})
    assert (moved.status_code, moved.headers["Content-Location"]) == (204, "sub/c%20d.md")
    assert (vault.root / "sub" / "c d.md").read_text() == "a"
    refused(vault.http.request("MOVE", "/vault/sub/c%20d.md", headers={"Destination": "b.md"}), 40920)
    refused(vault.http.request("COPY", "/vault/sub/c%20d.md", headers={"Destination": "b.md"}), 40920)
    headers = {"Destination": "b.md", "Allow-Overwrite": "true"}
    assert vault.http.request("COPY", "/vault/sub/c%20d.md", headers=headers).status_code == 204
    assert (vault.root / "b.md").read_text() == "a"
    refused(vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "../out.md"}), 40021)
    refused(vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "/etc/x.md"}), 40021)
    refused(vault.http.request("MOVE", "/vault/b.md"), 40020)
    moved = vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "sub/deep/"})
    assert moved.headers["Content-Location"] == "sub/deep/b.md"


PATCH = {
    "Markdown-Patch-Version": "2",
    "Operation": "replace",
    "Target-Type": "frontmatter",
    "Create-Target-If-Missing": "true",
    "Content-Type": "application/json",
}


def test_a_frontmatter_key_is_patched_and_every_other_byte_stays(vault: Vault) -> None:
    raw = b"---\r\nkeep: 0123 # mine\r\ntags: [a]\r\n---\r\nbody\r\n"
    vault.put("n.md", raw)
    answer = vault.http.patch("/vault/n.md", content='["a","b c"]', headers={**PATCH, "Target": "tags"})
    expected = raw.replace(b"tags: [a]", b"tags:\r\n  - a\r\n  - b c")
    assert (answer.status_code, answer.content) == (200, expected)
    assert (vault.root / "n.md").read_bytes() == expected
    answer = vault.http.patch("/vault/n.md", content="5", headers={**PATCH, "Target": "new%20%C3%A4"})
    assert "new ä: 5" in answer.text
    empty = {
        "targetType": "frontmatter",
        "target": "empty",
        "operation": "replace",
        "value": "",
        "createTargetIfMissing": True,
    }
    answer = vault.http.patch("/vault/n.md", json=empty)
    assert answer.status_code == 200
    assert 'empty: ""' in answer.text


def test_values_are_appended_to_lists_and_texts(vault: Vault) -> None:
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


def test_a_patch_that_is_wrong_is_refused_with_its_reason(vault: Vault) -> None:
    vault.put("n.md", "---\na: 1\n---\n")
    vault.put("bad.md", "---\na: [\n---\n")

    def sent(path: str = "n.md", content: str = "1", **headers: str) -> httpx.Response:
        chosen = {**PATCH, "Target": "a", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return vault.http.patch(f"/vault/{path}", content=content, headers={k: v for k, v in chosen.items() if v})

    refused(sent(Markdown_Patch_Version=""), 40084)
    refused(sent(Operation="change"), 40057)
    refused(sent(Target_Type="page"), 40054)
    refused(sent(Target=""), 40055)
    refused(sent(content="{"), 40015)
    refused(sent("none.md"), 40400)
    refused(sent(Target="none", Create_Target_If_Missing="false"), 40400)
    refused(sent("bad.md"), 40005)
    refused(sent(Operation="append", content='"x"'), 40080)
    refused(sent(If_Match='"stale"'), 41200)
    refused(sent(Target_Type="heading"), 40058)
    refused(sent(Markdown_Patch_Version="3"), 40082)
    refused(sent(If_Match="a b"), 40024)
    refused(sent(Trim_Target_Whitespace="true"), 40084)
    refused(sent(Within="1x"), 40023)
    refused(vault.http.patch("/vault/n.md", content="x"), 40081)
    assert (vault.root / "n.md").read_text() == "---\na: 1\n---\n"


@pytest.mark.requirement("vault.simple-search")
def test_a_search_finds_every_word_in_text_or_name_best_first(forgotten: Vault) -> None:
    vault = forgotten
    vault.put("Harbour.md", "ships")
    vault.put("b.md", "The harbour has ships; the HARBOUR sleeps.")
    vault.put("c.md", "ships alone")
    hits = vault.http.post("/search/simple/", params={"query": "harbour ships", "contextLength": 5}).json()
    assert [hit["filename"] for hit in hits] == ["Harbour.md", "b.md"]
    assert {"start": 0, "end": 7, "source": "filename"} in [one["match"] for one in hits[0]["matches"]]
    place = hits[1]["matches"][0]
    assert place == {"match": {"start": 4, "end": 11, "source": "content"}, "context": "The harbour has "}
    assert found_by(vault, "nowhere") == []
    refused(vault.http.post("/search/simple/"), 40090)
    refused(vault.http.post("/search/simple/", params={"query": " "}), 40090)


def test_a_hit_has_its_matches_in_the_order_of_the_text(forgotten: Vault) -> None:
    vault = forgotten
    vault.put("dir/One two.md", "two ONE\n" + "x" * 300 + " one")
    [hit] = vault.http.post("/search/simple/", params={"query": "one two"}).json()
    assert set(hit) == {"filename", "score", "matches"}
    places = [(one["match"]["start"], one["match"]["end"], one["match"]["source"]) for one in hit["matches"]]
    assert places == [
        (0, 3, "filename"),
        (4, 7, "filename"),
        (0, 3, "content"),
        (4, 7, "content"),
        (309, 312, "content"),
    ]
    assert [len(one["context"]) for one in hit["matches"]] == [7, 7, 103, 107, 103]
    for given, length in (("0", 3), ("nonsense", 103), ("-5", 103)):
        [hit] = vault.http.post("/search/simple/", params={"query": "one two", "contextLength": given}).json()
        assert len(hit["matches"][2]["context"]) == length


@pytest.mark.requirement("vault.simple-search")
def test_notes_that_say_it_more_often_come_first(forgotten: Vault) -> None:
    vault = forgotten
    for name, text in (("a.md", "word"), ("b.md", "word word word"), ("c.md", "word word"), ("word.md", "x")):
        vault.put(name, text)
    vault.put("word.txt", "word word word word, but no note")
    hits = vault.http.post("/search/simple/", params={"query": "WORD"}).json()
    assert [hit["filename"] for hit in hits] == ["word.md", "b.md", "c.md", "a.md"]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_a_search_sees_edits_by_other_programs(vault: Vault) -> None:
    (vault.root / "deep").mkdir()
    (vault.root / "deep" / "n.md").write_text("quixotic")
    until_found(vault, "quixotic", ["deep/n.md"])
    (vault.root / "deep" / "n.md").unlink()
    until_found(vault, "quixotic", [])


def test_tags_are_counted_with_those_above_them(forgotten: Vault) -> None:
    vault = forgotten
    vault.put("a.md", "---\ntags: [x/y]\n---\n#z")
    vault.put("b.md", "#x and #x/y again #x/y")
    tags = {tag["name"]: tag["count"] for tag in vault.http.get("/tags/").json()["tags"]}
    assert {name: tags[name] for name in ("x", "x/y", "z")} == {"x": 2, "x/y": 2, "z": 1}


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


def raw(vault: Vault, method: str, path: str) -> bytes:
    """Sent as it is: a client would tidy the path."""
    port = vault.http.base_url.port
    assert port is not None
    key = vault.http.headers["Authorization"]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        lines = [f"{method} /vault/{path} HTTP/1.1", "Host: x", f"Authorization: {key}", "Content-Length: 1"]
        connection.sendall("\r\n".join([*lines, "Connection: close", "", "x"]).encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("path", [*TRAVERSALS, "../out.md", "a/../../out.md"])
def test_no_path_in_any_spelling_leads_out(vault: Vault, path: str) -> None:
    for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
        answer = raw(vault, method, path)
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404")), (method, answer)
        assert b'"errorCode"' in answer
    assert not (vault.root.parent / "out.md").exists()
    assert list(vault.root.iterdir()) == []


def test_a_link_out_of_the_vault_is_not_there(vault: Vault) -> None:
    (vault.root / "key.md").symlink_to(vault.key_file)
    refused(vault.http.get("/vault/key.md"), 40400)
    assert found_by(vault, vault.key_file.read_text().strip()) == []


def test_what_it_does_not_have_is_told_and_nothing_is_a_500(vault: Vault) -> None:
    refused(vault.http.put("/vault/folder/", content="x"), 40510)
    refused(vault.http.put("/vault/", content="x"), 40510)
    refused(vault.http.request("OPTIONS", "/vault/a.md"), 40500)
    refused(vault.http.get("/active/"), 40400)
    refused(vault.put("big.md", b"x" * (20 * 1024 * 1024 + 1)), 41300)
    vault.put("image.png", b"\xff\0")
    refused(vault.http.patch("/vault/image.png", content="1", headers={**PATCH, "Target": "a"}), 40081)
    assert sorted(path.name for path in vault.root.iterdir()) == ["image.png"]
