"""Parts of notes over HTTP: both formats of PATCH, and GET, PUT and POST with the part in the path."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest

from tests.surfaces.vault.conftest import Vault
from tests.surfaces.vault.test_server import refused

NOTE = """---
rank: 1
---
# One

Text. ^one

## Sub 1:1

Deep.

# Two::Three/Four

| A | B |
| - | - |
| 1 | 2 |

^table
"""
MAP = {"Accept": "application/vnd.olrapi.document-map+json"}
TEXT = {"Content-Type": "text/markdown"}
JSON = {"Content-Type": "application/json"}
OLD = {"Markdown-Patch-Version": "1", **TEXT, "Target-Type": "heading", "Target": "One::Sub%201:1"}


@pytest.fixture(autouse=True)
def note(vault: Vault) -> None:
    vault.put("n.md", NOTE)


def order(vault: Vault, **fields: Any) -> httpx.Response:
    return vault.http.patch("/vault/n.md", json={"targetType": "heading", "operation": "append"} | fields)


def text(vault: Vault) -> str:
    return (vault.root / "n.md").read_bytes().decode()


@pytest.mark.requirement("vault.patch-instruction")
def test_an_instruction_answers_the_patched_note_and_its_version(vault: Vault) -> None:
    answer = order(vault, target=["One", "Sub 1:1"], content="# New")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/markdown; charset=utf-8")
    assert answer.text == text(vault) == NOTE.replace("Deep.\n", "Deep.\n\n### New\n")
    assert answer.headers["etag"] == vault.http.get("/vault/n.md").headers["etag"]
    assert "deprecation" not in answer.headers
    headers = {"Content-Type": "application/vnd.olrapi.patch-instruction+json"}
    body = {"targetType": "block", "target": "table", "operation": "append", "value": [["3", "4"]]}
    assert vault.http.patch("/vault/n.md", content=json.dumps(body), headers=headers).status_code == 200
    assert "| 1 | 2 |\n| 3 | 4 |\n" in text(vault)


def test_warnings_come_in_a_header_that_is_percent_encoded(vault: Vault) -> None:
    answer = order(vault, target=["One"], content="###### Größe")
    [warning] = json.loads(unquote(answer.headers["Markdown-Patch-Warnings"]))
    assert warning["code"] == "heading-depth-overflow"
    assert "Größe" in warning["message"]


@pytest.mark.requirement("vault.patch-instruction")
def test_an_instruction_that_cannot_be_done_says_why_and_changes_nothing(vault: Vault) -> None:
    refused(order(vault, target=["None"], content="x"), 40400)
    refused(order(vault, target="One", content="x"), 40081)
    refused(order(vault, target=["One"]), 40081)
    refused(order(vault, target=["One"], content="x", ifMatch="stale"), 41200)
    refused(order(vault, target=["One"], content="Text.", rejectIfContentPreexists=True), 40900)
    refused(order(vault, targetType="block", target="one", value=[["x"]]), 40080)
    refused(vault.http.patch("/vault/n.md", content="{", headers=JSON), 40015)
    refused(vault.http.patch("/vault/n.md", content="[]", headers=JSON), 40081)
    refused(vault.http.patch("/vault/n.md", content="text", headers=TEXT), 40081)
    refused(vault.http.patch("/vault/folder/", json={}), 40510)
    refused(
        vault.http.patch("/vault/none.md", json={"targetType": "block", "target": "a", "operation": "delete"}), 40400
    )
    assert text(vault) == NOTE
    vault.put("n.md", "---\na: [\n---\n# One\n")
    refused(order(vault, target=["One"], content="x"), 40005)


@pytest.mark.requirement("vault.conditions")
def test_the_version_of_the_map_and_the_etag_guard_a_patch(vault: Vault) -> None:
    version = vault.http.get("/vault/n.md", headers=MAP).json()["version"]
    assert order(vault, target=["One"], content="a", ifMatch=version).status_code == 200
    body = {"targetType": "heading", "target": ["One"], "operation": "append", "content": "b"}
    for stale in (f'"{version}"', f'W/"{version}"', version):
        refused(vault.http.patch("/vault/n.md", json=body, headers={"If-Match": stale}), 41200)
    now = vault.http.get("/vault/n.md").headers["etag"]
    for fresh in ('"{}"', "{}", '"x", , "{}"', "*"):
        headers = {"If-Match": fresh.replace("{}", now.strip('"'))}
        answer = vault.http.patch("/vault/n.md", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        now = answer.headers["etag"]


@pytest.mark.requirement("vault.conditions")
def test_writes_of_whole_files_hold_to_the_same_conditions(vault: Vault) -> None:
    none = {"If-None-Match": "*"}
    refused(vault.http.put("/vault/n.md", content="x", headers=none), 41200)
    made = vault.http.put("/vault/new.md", content="x", headers=none)
    assert made.status_code == 204
    refused(vault.http.put("/vault/none.md", content="x", headers={"If-Match": "*"}), 41200)
    refused(vault.http.delete("/vault/new.md", headers={"If-Match": '"stale"'}), 41200)
    refused(vault.http.put("/vault/new.md", content="x", headers={"If-Match": ""}), 40024)
    refused(vault.http.request("MOVE", "/vault/new.md", headers={"If-Match": '"no"', "Destination": "m.md"}), 41200)
    assert vault.http.delete("/vault/new.md", headers={"If-Match": made.headers["etag"]}).status_code == 204


def test_what_the_caller_has_is_not_sent_again(vault: Vault) -> None:
    tag = vault.http.get("/vault/n.md").headers["etag"]
    answer = vault.http.get("/vault/n.md", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert vault.http.get("/vault/n.md", headers={"If-None-Match": '"other"'}).status_code == 200
    head = vault.http.head("/vault/n.md")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)


@pytest.mark.requirement("vault.parts-by-path")
@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("heading/One", "\nText. ^one\n\n# Sub 1:1\n\nDeep.\n"),
        ("heading/One/Sub%201:1", "\nDeep.\n"),
        ("heading/Two::Three%2FFour", "\n| A | B |\n| - | - |\n| 1 | 2 |\n\n^table\n"),
        ("block/one", "Text."),
        ("frontmatter/rank", "1"),
    ],
)
def test_a_part_is_read_by_its_path(vault: Vault, path: str, found: str) -> None:
    answer = vault.http.get(f"/vault/n.md/{path}")
    assert (answer.status_code, answer.text) == (200, found)
    assert answer.headers["content-location"] == "n.md"
    assert answer.headers["etag"] == vault.http.get("/vault/n.md").headers["etag"]
    kind = "application/json" if path.startswith("front") else "text/markdown; charset=utf-8"
    assert answer.headers["content-type"] == kind


def test_a_part_is_read_with_its_heading_or_its_name_alone(vault: Vault) -> None:
    whole = {"Target-Scope": "markerAndContent"}
    assert vault.http.get("/vault/n.md/heading/One/Sub%201:1", headers=whole).text == "# Sub 1:1\n\nDeep.\n"
    assert vault.http.get("/vault/n.md/block/one", headers=whole).text == "Text. ^one"
    name = {"Target-Scope": "marker"}
    assert vault.http.get("/vault/n.md/heading/One/Sub%201:1", headers=name).text == "Sub 1:1"
    assert vault.http.get("/vault/n.md/block/one", headers=name).text == "one"
    assert vault.http.get("/vault/n.md/frontmatter/rank", headers=name).json() == "rank"
    refused(vault.http.get("/vault/n.md/block/one", headers={"Target-Scope": "parent"}), 40059)


def test_a_part_that_is_not_there_or_no_part_is_refused(vault: Vault) -> None:
    for path in ("heading/None", "block/none", "frontmatter/none"):
        refused(vault.http.get(f"/vault/n.md/{path}"), 40400)
        refused(vault.http.get(f"/vault/none.md/{path}"), 40400)
        refused(vault.http.put(f"/vault/none.md/{path}", content="x", headers=TEXT), 40400)
        refused(vault.http.patch(f"/vault/none.md/{path}", headers={"Operation": "delete"}), 40400)
    refused(vault.http.get("/vault/n.md/page/x"), 40054)
    refused(vault.http.get("/vault/n.md/heading/"), 40055)
    refused(vault.http.delete("/vault/n.md/heading/One"), 40500)
    refused(vault.http.get("/vault/n.md", headers={"Target-Type": "heading", "Target": "One"}), 40083)
    refused(vault.http.get("/vault/n.md/heading/One", headers={"Target-Type": "heading", "Target": "One"}), 42200)
    assert not (vault.root / "none.md").exists()


@pytest.mark.requirement("vault.parts-by-path")
def test_a_part_is_replaced_by_put_and_added_to_by_post(vault: Vault) -> None:
    answer = vault.http.put("/vault/n.md/heading/One/Sub%201:1", content="New.", headers=TEXT)
    assert (answer.status_code, answer.headers["content-location"]) == (200, "n.md")
    assert "## Sub 1:1\n\nNew.\n\n# Two" in answer.text
    assert "New.\n\nMore.\n" in vault.http.post("/vault/n.md/heading/One/Sub%201:1", content="More.", headers=TEXT).text
    rows = json.dumps([["x", "y"]])
    assert "| 1 | 2 |\n| x | y |" in vault.http.post("/vault/n.md/block/table", content=rows, headers=JSON).text
    assert "rank:\n  - a\n" in vault.http.put("/vault/n.md/frontmatter/rank", content='["a"]', headers=JSON).text
    assert "new: text\n" in vault.http.put("/vault/n.md/frontmatter/new", content="text", headers=TEXT).text
    assert "# Made\nx\n" in vault.http.put("/vault/n.md/heading/Made", content="x", headers=TEXT).text
    refused(vault.http.post("/vault/n.md/heading/None", content="x", headers=TEXT), 40400)
    refused(vault.http.put("/vault/n.md/heading/One", content='"x"', headers=JSON), 40081)
    refused(vault.http.put("/vault/n.md/heading/One", content="x", headers={"Content-Type": "image/png"}), 40012)
    for old in ("Target-Scope", "Target-Delimiter", "Trim-Target-Whitespace"):
        refused(vault.http.put("/vault/n.md/heading/One", content="x", headers={**TEXT, old: "marker"}), 40083)


@pytest.mark.requirement("vault.parts-by-path")
def test_a_field_with_its_name_is_written_back_as_it_was_read(vault: Vault) -> None:
    whole = {"Target-Scope": "markerAndContent"}
    path = "/vault/n.md/frontmatter/rank"
    before = text(vault)
    read = vault.http.get(path, headers=whole)
    assert read.json() == {"rank": vault.http.get(path).json()}
    headers = {**whole, **JSON, "Operation": "replace"}
    assert vault.http.patch(path, content=read.content, headers=headers).status_code == 200
    assert text(vault) == before
    fields: dict[str, Any] = {
        "targetType": "frontmatter",
        "target": "rank",
        "operation": "replace",
        "scope": "markerAndContent",
    }
    assert order(vault, **fields, value={"grade": [1]}).status_code == 200
    assert vault.http.get("/vault/n.md/frontmatter/grade").json() == [1]
    refused(vault.http.get(path), 40400)
    wrong: list[Any] = ["X", 5, [1], {}]
    for value in wrong:
        refused(order(vault, **fields | {"target": "grade"}, value=value), 40081)


@pytest.mark.requirement("vault.patch-raw")
def test_raw_content_needs_no_json(vault: Vault) -> None:
    path = "/vault/n.md/heading/One/Sub%201:1"
    answer = vault.http.patch(path, content="a\n\nb", headers={**TEXT, "Operation": "prepend"})
    assert (answer.status_code, answer.headers["content-location"]) == (200, "n.md")
    assert "## Sub 1:1\n\na\n\nb\n\nDeep.\n" in answer.text
    headers = {"Operation": "replace", "Target-Scope": "marker", "Content-Type": "text/plain"}
    assert "## Other\n" in vault.http.patch(path, content="Other", headers=headers).text
    path = "/vault/n.md/heading/One/Other"
    destination = quote(json.dumps({"parent": None, "place": "last"}))
    headers = {"Operation": "replace", "Target-Scope": "parent", "Destination": destination}
    assert vault.http.patch(path, headers=headers).text.endswith("^table\n# Other\n\na\n\nb\n\nDeep.\n")
    headers = {"Operation": "delete", "Within": "-1"}
    assert "Deep" not in vault.http.patch("/vault/n.md/heading/Other", headers=headers).text
    headers = {"Operation": "append", "Target-Type": "heading", "Target": quote('["One"]'), **TEXT}
    assert (
        "\nx\n" in vault.http.patch("/vault/n.md", content="x", headers={**headers, "Markdown-Patch-Version": "2"}).text
    )
    refused(vault.http.patch("/vault/n.md", content="x", headers=headers), 40084)


@pytest.mark.requirement("vault.patch-raw")
def test_raw_content_that_makes_no_sense_is_refused(vault: Vault) -> None:
    def sent(content: str | None = None, **headers: str) -> httpx.Response:
        chosen = {name.replace("_", "-"): value for name, value in ({"Operation": "append"} | headers).items() if value}
        return vault.http.patch("/vault/n.md/heading/One", content=content, headers=chosen)

    refused(sent("x", Operation="", Content_Type="text/markdown"), 40056)
    refused(sent("x", Operation="rename", Content_Type="text/markdown"), 40057)
    refused(sent("x", Target_Scope="all", Content_Type="text/markdown"), 40059)
    refused(sent("x", Content_Type="image/png"), 40012)
    refused(sent("x", Within="1x", Content_Type="text/markdown"), 40023)
    refused(sent("{", Content_Type="application/json"), 40015)
    refused(sent(Operation="replace"), 40081)
    refused(sent(Operation="replace", Target_Scope="parent", Destination="no json"), 40022)
    refused(sent("x", Target_Delimiter="::", Content_Type="text/markdown"), 40084)
    refused(sent("x", Target="a", Target_Type="block", Content_Type="text/markdown"), 42200)
    refused(sent("{}", Content_Type="application/vnd.olrapi.patch-instruction+json"), 42200)
    refused(sent("x", Markdown_Patch_Version="1", Content_Type="text/markdown"), 40082)
    assert text(vault) == NOTE


@pytest.mark.requirement("vault.patch-format-1")
def test_format_1_takes_texts_as_they_are(vault: Vault) -> None:
    answer = vault.http.patch("/vault/n.md", content="New.\n", headers={**OLD, "Operation": "append"})
    assert (answer.status_code, answer.headers["deprecation"]) == (200, 'true; sunset-version="6.0"')
    assert answer.text == text(vault) == NOTE.replace("Deep.\n\n", "Deep.\n\nNew.\n\n")
    answer = vault.http.patch("/vault/n.md", content="First.\n", headers={**OLD, "Operation": "prepend"})
    assert "## Sub 1:1\nFirst.\n\nDeep." in answer.text
    answer = vault.http.patch("/vault/n.md", content="All.", headers={**OLD, "Operation": "replace"})
    assert "## Sub 1:1\nAll.\n\n# Two" in answer.text
    trimmed = {**OLD, "Operation": "append", "Trim-Target-Whitespace": "true"}
    assert "All. More\n# Two" in vault.http.patch("/vault/n.md", content=" More\n", headers=trimmed).text
    headers = {**OLD, "Operation": "append", "Target": "One%7CSub%201:1", "Target-Delimiter": "|"}
    assert vault.http.patch("/vault/n.md", content="x", headers=headers).status_code == 200
    whole = {**OLD, "Operation": "replace", "Target-Scope": "markerAndContent"}
    assert "Text. ^one\n\n## Gone\n" in vault.http.patch("/vault/n.md", content="## Gone\n", headers=whole).text


def test_format_1_makes_what_is_missing_only_when_told(vault: Vault) -> None:
    missing = {**OLD, "Operation": "append", "Target": "One::New::Deep"}
    refused(vault.http.patch("/vault/n.md", content="x", headers=missing), 40080)
    made = vault.http.patch("/vault/n.md", content="x\n", headers={**missing, "Create-Target-If-Missing": "true"})
    assert "Deep.\n\n## New\n### Deep\nx\n# Two" in made.text
    block = {**OLD, "Operation": "append", "Target-Type": "block", "Target": "fresh"}
    refused(vault.http.patch("/vault/n.md", content="x", headers=block), 40080)
    made = vault.http.patch("/vault/n.md", content="x", headers={**block, "Create-Target-If-Missing": "true"})
    assert made.text.endswith("x\n\n^fresh")


def test_format_1_edits_blocks_rows_and_fields(vault: Vault) -> None:
    old = {name: OLD[name] for name in ("Markdown-Patch-Version",)}
    block = {**old, "Target-Type": "block", "Target": "one", "Operation": "append", **TEXT}
    assert "Text. And. ^one\n" in vault.http.patch("/vault/n.md", content=" And.", headers=block).text
    refused(
        vault.http.patch("/vault/n.md", content="And.", headers={**block, "Reject-If-Content-Preexists": "true"}), 40080
    )
    refused(
        vault.http.patch("/vault/n.md", content="And.", headers={**block, "Apply-If-Content-Preexists": "false"}), 40080
    )
    rows = {**old, "Target-Type": "block", "Target": "table", **JSON}
    for operation, value, found in (
        ("append", [["a", "b"]], "| 1 | 2 |\n| a | b |\n\n^table"),
        ("prepend", ["c", "d"], "| - | - |\n| c | d |\n| 1 | 2 |"),
        ("replace", [["e", "f"]], "| - | - |\n| e | f |\n\n^table"),
    ):
        answer = vault.http.patch("/vault/n.md", json=value, headers={**rows, "Operation": operation})
        assert found in answer.text
    refused(vault.http.patch("/vault/n.md", json=[["x"]], headers={**rows, "Operation": "append"}), 40080)
    refused(
        vault.http.patch("/vault/n.md", json=[["x"]], headers={**rows, "Operation": "append", "Target": "one"}), 40080
    )
    field = {**old, "Target-Type": "frontmatter", "Target": "rank", "Operation": "replace", **JSON}
    assert "rank:\n  - 1\n  - 2\n" in vault.http.patch("/vault/n.md", json=[1, 2], headers=field).text


def test_format_1_names_the_header_that_is_wrong(vault: Vault) -> None:
    def sent(**headers: str) -> httpx.Response:
        chosen = OLD | {"Operation": "append"} | {name.replace("_", "-"): value for name, value in headers.items()}
        return vault.http.patch("/vault/n.md", content="x", headers={k: v for k, v in chosen.items() if v})

    refused(sent(Target_Type=""), 40053)
    refused(sent(Target_Type="page"), 40054)
    refused(sent(Operation=""), 40056)
    refused(sent(Operation="delete"), 40057)
    refused(sent(Target_Scope="parent"), 40059)
    refused(sent(Target="%ff"), 40058)
    refused(sent(Content_Type="image/png"), 40012)
    refused(sent(Target="None"), 40080)
    refused(sent(Target_Type="frontmatter", Target_Scope="marker"), 40059)
    assert text(vault) == NOTE


def test_format_1_reads_and_writes_parts_by_headers_and_has_its_own_map(vault: Vault) -> None:
    old = {name: OLD[name] for name in ("Markdown-Patch-Version", "Target-Type", "Target")}
    answer = vault.http.get("/vault/n.md", headers=old)
    assert (answer.text, answer.headers["deprecation"]) == ("\nDeep.\n\n", 'true; sunset-version="6.0"')
    refused(vault.http.get("/vault/n.md", headers={**old, "Target": "None"}), 40400)
    version = {"Markdown-Patch-Version": "1"}
    path = "/vault/n.md/heading/One/Sub%201:1"
    assert vault.http.get(path, headers=version).text == "\nDeep.\n\n"
    added = vault.http.post(path, content="More.\n", headers={**version, **TEXT})
    assert (added.text, added.headers["deprecation"]) == (
        NOTE.replace("Deep.\n", "Deep.\n\nMore.\n"),
        answer.headers["deprecation"],
    )
    mapped = vault.http.get("/vault/n.md", headers={**MAP, "Markdown-Patch-Version": "1"}).json()
    headings = ["One", "One::Sub 1:1", "Two::Three/Four"]
    assert mapped == {"headings": headings, "blocks": ["one", "table"], "frontmatterFields": ["rank"]}
    assert "## Sub 1:1\nNew.\n\n# Two" in vault.http.put("/vault/n.md", content="New.", headers={**old, **TEXT}).text
    refused(vault.http.put("/vault/n.md", content="x", headers={"Target-Type": "heading", "Target": "One"}), 40083)
    refused(vault.http.get("/vault/n.md", headers={**MAP, "Markdown-Patch-Version": "7"}), 40082)


def test_a_file_with_encoded_slashes_is_nowhere_and_one_out_of_the_vault_is_refused(vault: Vault) -> None:
    vault.put("a/b.md", "x")
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        refused(vault.http.request(method, "/vault/a%2Fb.md", json={}), 40400)
        refused(vault.http.request(method, "/vault/..%2F..%2Fx.md", json={}), 40021)


def test_a_name_that_is_taken_by_a_folder_is_refused(vault: Vault) -> None:
    vault.put("a/b.md", "x")
    for method in ("PUT", "POST"):
        answer = vault.http.request(method, "/vault/a", content="x", headers=TEXT)
        assert answer.status_code in (400, 404, 405, 409), answer.text
        answer = vault.http.request(method, "/vault/a/b.md/c.md", content="x", headers=TEXT)
        assert answer.status_code in (400, 404, 405, 409), answer.text


def test_edits_of_many_clients_at_the_same_note_are_all_there(vault: Vault) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def edit(i: int) -> int:
        return order(vault, target=["One"], content=f"line {i}").status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(edit, range(24))) == {200}
    assert all(f"\nline {i}\n" in text(vault) for i in range(24))


def test_a_note_too_large_to_be_taken_apart_is_told_so(vault: Vault) -> None:
    vault.put("n.md", "x" * 1_000_001)
    refused(order(vault, target=None, content="x"), 41300)
    refused(vault.http.get("/vault/n.md", headers=MAP), 41300)
    refused(vault.http.get("/vault/n.md/heading/One"), 41300)
