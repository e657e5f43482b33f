"""Parts of notes over HTTP: both PATCH formats, and GET, PUT and POST with the part in the path."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest

from tests.surfaces.vault.conftest import Vault
from tests.surfaces.vault.test_server import assert_error

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
ACCEPT_MAP = {"Accept": "application/vnd.olrapi.document-map+json"}
TEXT = {"Content-Type": "text/markdown"}
JSON = {"Content-Type": "application/json"}
FORMAT_1_HEADERS = {"Markdown-Patch-Version": "1", **TEXT, "Target-Type": "heading", "Target": "One::Sub%201:1"}


@pytest.fixture(autouse=True)
def note(vault: Vault) -> None:
    vault.put("n.md", NOTE)


def send_instruction(vault: Vault, **fields: Any) -> httpx.Response:
    return vault.http.patch("/vault/n.md", json={"targetType": "heading", "operation": "append"} | fields)


def read_note(vault: Vault) -> str:
    return (vault.root / "n.md").read_bytes().decode()


@pytest.mark.requirement("vault.patch-instruction")
def test_patch_instruction_returns_the_patched_note_and_its_etag(vault: Vault) -> None:
    response = send_instruction(vault, target=["One", "Sub 1:1"], content="# New")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/markdown; charset=utf-8")
    assert response.text == read_note(vault) == NOTE.replace("Deep.\n", "Deep.\n\n### New\n")
    assert response.headers["etag"] == vault.http.get("/vault/n.md").headers["etag"]
    assert "deprecation" not in response.headers
    headers = {"Content-Type": "application/vnd.olrapi.patch-instruction+json"}
    body = {"targetType": "block", "target": "table", "operation": "append", "value": [["3", "4"]]}
    assert vault.http.patch("/vault/n.md", content=json.dumps(body), headers=headers).status_code == 200
    assert "| 1 | 2 |\n| 3 | 4 |\n" in read_note(vault)


def test_patch_warnings_are_in_a_percent_encoded_header(vault: Vault) -> None:
    response = send_instruction(vault, target=["One"], content="###### Größe")
    [warning] = json.loads(unquote(response.headers["Markdown-Patch-Warnings"]))
    assert warning["code"] == "heading-depth-overflow"
    assert "Größe" in warning["message"]


def test_many_long_warnings_are_a_header_that_clients_accept(vault: Vault) -> None:
    response = send_instruction(vault, target=["One"], content=f"###### {'😀' * 1000}\n" * 60)
    header = response.headers["Markdown-Patch-Warnings"]
    assert len(header) < 8000
    assert json.loads(unquote(header))[-1]["message"] == "And 51 more warnings."


@pytest.mark.requirement("vault.patch-instruction")
def test_failed_instruction_returns_its_error_and_changes_nothing(vault: Vault) -> None:
    assert_error(send_instruction(vault, target=["None"], content="x"), 40400)
    assert_error(send_instruction(vault, target="One", content="x"), 40081)
    assert_error(send_instruction(vault, target=["One"]), 40081)
    assert_error(send_instruction(vault, target=["One"], content="x", ifMatch="stale"), 41200)
    assert_error(send_instruction(vault, target=["One"], content="Text.", rejectIfContentPreexists=True), 40900)
    assert_error(send_instruction(vault, targetType="block", target="one", value=[["x"]]), 40080)
    assert_error(vault.http.patch("/vault/n.md", content="{", headers=JSON), 40015)
    assert_error(vault.http.patch("/vault/n.md", content="[]", headers=JSON), 40081)
    assert_error(vault.http.patch("/vault/n.md", content="text", headers=TEXT), 40081)
    assert_error(vault.http.patch("/vault/folder/", json={}), 40510)
    assert_error(
        vault.http.patch("/vault/none.md", json={"targetType": "block", "target": "a", "operation": "delete"}), 40400
    )
    assert read_note(vault) == NOTE
    vault.put("n.md", "---\na: [\n---\n# One\n")
    assert_error(send_instruction(vault, target=["One"], content="x"), 40005)


@pytest.mark.requirement("vault.conditions")
def test_patch_checks_the_map_version_and_the_etag(vault: Vault) -> None:
    version = vault.http.get("/vault/n.md", headers=ACCEPT_MAP).json()["version"]
    assert send_instruction(vault, target=["One"], content="a", ifMatch=version).status_code == 200
    body = {"targetType": "heading", "target": ["One"], "operation": "append", "content": "b"}
    for stale_etag in (f'"{version}"', f'W/"{version}"', version):
        assert_error(vault.http.patch("/vault/n.md", json=body, headers={"If-Match": stale_etag}), 41200)
    current_etag = vault.http.get("/vault/n.md").headers["etag"]
    for condition in ('"{}"', "{}", '"x", , "{}"', "*"):
        headers = {"If-Match": condition.replace("{}", current_etag.strip('"'))}
        response = vault.http.patch("/vault/n.md", json=body, headers=headers)
        assert response.status_code == 200, response.text
        current_etag = response.headers["etag"]


@pytest.mark.requirement("vault.conditions")
def test_writes_of_whole_files_check_the_conditional_headers(vault: Vault) -> None:
    only_if_new = {"If-None-Match": "*"}
    assert_error(vault.http.put("/vault/n.md", content="x", headers=only_if_new), 41200)
    created = vault.http.put("/vault/new.md", content="x", headers=only_if_new)
    assert created.status_code == 204
    assert_error(vault.http.put("/vault/none.md", content="x", headers={"If-Match": "*"}), 41200)
    assert_error(vault.http.delete("/vault/new.md", headers={"If-Match": '"stale"'}), 41200)
    assert_error(vault.http.put("/vault/new.md", content="x", headers={"If-Match": ""}), 40024)
    assert_error(
        vault.http.request("MOVE", "/vault/new.md", headers={"If-Match": '"no"', "Destination": "m.md"}), 41200
    )
    assert vault.http.delete("/vault/new.md", headers={"If-Match": created.headers["etag"]}).status_code == 204


def test_unchanged_note_returns_304_without_a_body(vault: Vault) -> None:
    etag = vault.http.get("/vault/n.md").headers["etag"]
    response = vault.http.get("/vault/n.md", headers={"If-None-Match": etag})
    assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
    assert vault.http.get("/vault/n.md", headers={"If-None-Match": '"other"'}).status_code == 200
    head = vault.http.head("/vault/n.md")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", etag)


@pytest.mark.requirement("vault.parts-by-path")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("heading/One", "\nText. ^one\n\n# Sub 1:1\n\nDeep.\n"),
        ("heading/One/Sub%201:1", "\nDeep.\n"),
        ("heading/Two::Three%2FFour", "\n| A | B |\n| - | - |\n| 1 | 2 |\n\n^table\n"),
        ("block/one", "Text."),
        ("frontmatter/rank", "1"),
    ],
)
def test_part_of_a_note_is_read_by_its_path(vault: Vault, path: str, expected: str) -> None:
    response = vault.http.get(f"/vault/n.md/{path}")
    assert (response.status_code, response.text) == (200, expected)
    assert response.headers["content-location"] == "n.md"
    assert response.headers["etag"] == vault.http.get("/vault/n.md").headers["etag"]
    kind = "application/json" if path.startswith("front") else "text/markdown; charset=utf-8"
    assert response.headers["content-type"] == kind


def test_target_scope_selects_the_marker_or_the_whole_part(vault: Vault) -> None:
    whole_part = {"Target-Scope": "markerAndContent"}
    assert vault.http.get("/vault/n.md/heading/One/Sub%201:1", headers=whole_part).text == "# Sub 1:1\n\nDeep.\n"
    assert vault.http.get("/vault/n.md/block/one", headers=whole_part).text == "Text. ^one"
    marker = {"Target-Scope": "marker"}
    assert vault.http.get("/vault/n.md/heading/One/Sub%201:1", headers=marker).text == "Sub 1:1"
    assert vault.http.get("/vault/n.md/block/one", headers=marker).text == "one"
    assert vault.http.get("/vault/n.md/frontmatter/rank", headers=marker).json() == "rank"
    assert_error(vault.http.get("/vault/n.md/block/one", headers={"Target-Scope": "parent"}), 40059)


def test_missing_or_invalid_part_returns_an_error(vault: Vault) -> None:
    for path in ("heading/None", "block/none", "frontmatter/none"):
        assert_error(vault.http.get(f"/vault/n.md/{path}"), 40400)
        assert_error(vault.http.get(f"/vault/none.md/{path}"), 40400)
        assert_error(vault.http.put(f"/vault/none.md/{path}", content="x", headers=TEXT), 40400)
        assert_error(vault.http.patch(f"/vault/none.md/{path}", headers={"Operation": "delete"}), 40400)
    assert_error(vault.http.get("/vault/n.md/page/x"), 40054)
    assert_error(vault.http.get("/vault/n.md/heading/"), 40055)
    for path in ("frontmatter/rank/x", "block/one/x"):
        assert_error(vault.http.get(f"/vault/n.md/{path}"), 40058)
        assert_error(vault.http.put(f"/vault/n.md/{path}", json="x"), 40058)
    assert read_note(vault) == NOTE
    assert_error(vault.http.delete("/vault/n.md/heading/One"), 40500)
    assert_error(vault.http.get("/vault/n.md", headers={"Target-Type": "heading", "Target": "One"}), 40083)
    assert_error(vault.http.get("/vault/n.md/heading/One", headers={"Target-Type": "heading", "Target": "One"}), 42200)
    assert not (vault.root / "none.md").exists()


@pytest.mark.requirement("vault.parts-by-path")
def test_put_replaces_a_part_and_post_appends_to_it(vault: Vault) -> None:
    response = vault.http.put("/vault/n.md/heading/One/Sub%201:1", content="New.", headers=TEXT)
    assert (response.status_code, response.headers["content-location"]) == (200, "n.md")
    assert "## Sub 1:1\n\nNew.\n\n# Two" in response.text
    assert "New.\n\nMore.\n" in vault.http.post("/vault/n.md/heading/One/Sub%201:1", content="More.", headers=TEXT).text
    rows = json.dumps([["x", "y"]])
    assert "| 1 | 2 |\n| x | y |" in vault.http.post("/vault/n.md/block/table", content=rows, headers=JSON).text
    assert "rank:\n  - a\n" in vault.http.put("/vault/n.md/frontmatter/rank", content='["a"]', headers=JSON).text
    assert "new: text\n" in vault.http.put("/vault/n.md/frontmatter/new", content="text", headers=TEXT).text
    assert "# Made\nx\n" in vault.http.put("/vault/n.md/heading/Made", content="x", headers=TEXT).text
    assert_error(vault.http.post("/vault/n.md/heading/None", content="x", headers=TEXT), 40400)
    assert_error(vault.http.put("/vault/n.md/heading/One", content='"x"', headers=JSON), 40081)
    assert_error(vault.http.put("/vault/n.md/heading/One", content="x", headers={"Content-Type": "image/png"}), 40012)
    for header in ("Target-Scope", "Target-Delimiter", "Trim-Target-Whitespace"):
        assert_error(vault.http.put("/vault/n.md/heading/One", content="x", headers={**TEXT, header: "marker"}), 40083)


@pytest.mark.requirement("vault.parts-by-path")
def test_frontmatter_field_with_its_name_is_read_and_written_back(vault: Vault) -> None:
    whole_part = {"Target-Scope": "markerAndContent"}
    path = "/vault/n.md/frontmatter/rank"
    before = read_note(vault)
    read = vault.http.get(path, headers=whole_part)
    assert read.json() == {"rank": vault.http.get(path).json()}
    headers = {**whole_part, **JSON, "Operation": "replace"}
    assert vault.http.patch(path, content=read.content, headers=headers).status_code == 200
    assert read_note(vault) == before
    fields: dict[str, Any] = {
        "targetType": "frontmatter",
        "target": "rank",
        "operation": "replace",
        "scope": "markerAndContent",
    }
    assert send_instruction(vault, **fields, value={"grade": [1]}).status_code == 200
    assert vault.http.get("/vault/n.md/frontmatter/grade").json() == [1]
    assert_error(vault.http.get(path), 40400)
    invalid_values: list[Any] = ["X", 5, [1], {}]
    for value in invalid_values:
        assert_error(send_instruction(vault, **fields | {"target": "grade"}, value=value), 40081)


@pytest.mark.requirement("vault.patch-raw")
def test_patch_accepts_raw_content_with_headers(vault: Vault) -> None:
    path = "/vault/n.md/heading/One/Sub%201:1"
    response = vault.http.patch(path, content="a\n\nb", headers={**TEXT, "Operation": "prepend"})
    assert (response.status_code, response.headers["content-location"]) == (200, "n.md")
    assert "## Sub 1:1\n\na\n\nb\n\nDeep.\n" in response.text
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
    assert_error(vault.http.patch("/vault/n.md", content="x", headers=headers), 40084)


@pytest.mark.requirement("vault.patch-raw")
def test_raw_patch_with_invalid_headers_is_rejected(vault: Vault) -> None:
    def send_patch(content: str | None = None, **headers: str) -> httpx.Response:
        patch_headers = {
            name.replace("_", "-"): value for name, value in ({"Operation": "append"} | headers).items() if value
        }
        return vault.http.patch("/vault/n.md/heading/One", content=content, headers=patch_headers)

    assert_error(send_patch("x", Operation="", Content_Type="text/markdown"), 40056)
    assert_error(send_patch("x", Operation="rename", Content_Type="text/markdown"), 40057)
    assert_error(send_patch("x", Target_Scope="all", Content_Type="text/markdown"), 40059)
    assert_error(send_patch("x", Content_Type="image/png"), 40012)
    assert_error(send_patch("x", Within="1x", Content_Type="text/markdown"), 40023)
    assert_error(send_patch("{", Content_Type="application/json"), 40015)
    assert_error(send_patch(Operation="replace"), 40081)
    assert_error(send_patch(Operation="replace", Target_Scope="parent", Destination="no json"), 40022)
    assert_error(send_patch("x", Target_Delimiter="::", Content_Type="text/markdown"), 40084)
    assert_error(send_patch("x", Target="a", Target_Type="block", Content_Type="text/markdown"), 42200)
    assert_error(send_patch("{}", Content_Type="application/vnd.olrapi.patch-instruction+json"), 42200)
    assert_error(send_patch("x", Markdown_Patch_Version="1", Content_Type="text/markdown"), 40082)
    assert read_note(vault) == NOTE


@pytest.mark.requirement("vault.patch-format-1")
def test_patch_format_1_inserts_content_unchanged(vault: Vault) -> None:
    response = vault.http.patch("/vault/n.md", content="New.\n", headers={**FORMAT_1_HEADERS, "Operation": "append"})
    assert (response.status_code, response.headers["deprecation"]) == (200, 'true; sunset-version="6.0"')
    assert response.text == read_note(vault) == NOTE.replace("Deep.\n\n", "Deep.\n\nNew.\n\n")
    response = vault.http.patch("/vault/n.md", content="First.\n", headers={**FORMAT_1_HEADERS, "Operation": "prepend"})
    assert "## Sub 1:1\nFirst.\n\nDeep." in response.text
    response = vault.http.patch("/vault/n.md", content="All.", headers={**FORMAT_1_HEADERS, "Operation": "replace"})
    assert "## Sub 1:1\nAll.\n\n# Two" in response.text
    trimmed = {**FORMAT_1_HEADERS, "Operation": "append", "Trim-Target-Whitespace": "true"}
    assert "All. More\n# Two" in vault.http.patch("/vault/n.md", content=" More\n", headers=trimmed).text
    headers = {**FORMAT_1_HEADERS, "Operation": "append", "Target": "One%7CSub%201:1", "Target-Delimiter": "%7C"}
    assert vault.http.get("/vault/n.md", headers=headers).status_code == 200
    assert vault.http.patch("/vault/n.md", content="x", headers=headers).status_code == 200
    whole_part = {**FORMAT_1_HEADERS, "Operation": "replace", "Target-Scope": "markerAndContent"}
    assert "Text. ^one\n\n## Gone\n" in vault.http.patch("/vault/n.md", content="## Gone\n", headers=whole_part).text


def test_patch_format_1_creates_a_missing_target_only_on_request(vault: Vault) -> None:
    missing = {**FORMAT_1_HEADERS, "Operation": "append", "Target": "One::New::Deep"}
    assert_error(vault.http.patch("/vault/n.md", content="x", headers=missing), 40080)
    response = vault.http.patch("/vault/n.md", content="x\n", headers={**missing, "Create-Target-If-Missing": "true"})
    assert "Deep.\n\n## New\n### Deep\nx\n# Two" in response.text
    block = {**FORMAT_1_HEADERS, "Operation": "append", "Target-Type": "block", "Target": "fresh"}
    assert_error(vault.http.patch("/vault/n.md", content="x", headers=block), 40080)
    response = vault.http.patch("/vault/n.md", content="x", headers={**block, "Create-Target-If-Missing": "true"})
    assert response.text.endswith("x\n\n^fresh")


def test_patch_format_1_edits_blocks_table_rows_and_fields(vault: Vault) -> None:
    format_1 = {name: FORMAT_1_HEADERS[name] for name in ("Markdown-Patch-Version",)}
    block = {**format_1, "Target-Type": "block", "Target": "one", "Operation": "append", **TEXT}
    assert "Text. And. ^one\n" in vault.http.patch("/vault/n.md", content=" And.", headers=block).text
    assert_error(
        vault.http.patch("/vault/n.md", content="And.", headers={**block, "Reject-If-Content-Preexists": "true"}), 40080
    )
    assert_error(
        vault.http.patch("/vault/n.md", content="And.", headers={**block, "Apply-If-Content-Preexists": "false"}), 40080
    )
    rows = {**format_1, "Target-Type": "block", "Target": "table", **JSON}
    for operation, value, expected in (
        ("append", [["a", "b"]], "| 1 | 2 |\n| a | b |\n\n^table"),
        ("prepend", ["c", "d"], "| - | - |\n| c | d |\n| 1 | 2 |"),
        ("replace", [["e", "f"]], "| - | - |\n| e | f |\n\n^table"),
    ):
        response = vault.http.patch("/vault/n.md", json=value, headers={**rows, "Operation": operation})
        assert expected in response.text
    assert_error(vault.http.patch("/vault/n.md", json=[["x"]], headers={**rows, "Operation": "append"}), 40080)
    assert_error(
        vault.http.patch("/vault/n.md", json=[["x"]], headers={**rows, "Operation": "append", "Target": "one"}), 40080
    )
    field = {**format_1, "Target-Type": "frontmatter", "Target": "rank", "Operation": "replace", **JSON}
    assert "rank:\n  - 1\n  - 2\n" in vault.http.patch("/vault/n.md", json=[1, 2], headers=field).text


def test_patch_format_1_rejects_each_invalid_header(vault: Vault) -> None:
    def send_patch(**headers: str) -> httpx.Response:
        patch_headers = (
            FORMAT_1_HEADERS
            | {"Operation": "append"}
            | {name.replace("_", "-"): value for name, value in headers.items()}
        )
        return vault.http.patch("/vault/n.md", content="x", headers={k: v for k, v in patch_headers.items() if v})

    assert_error(send_patch(Target_Type=""), 40053)
    assert_error(send_patch(Target_Type="page"), 40054)
    assert_error(send_patch(Operation=""), 40056)
    assert_error(send_patch(Operation="delete"), 40057)
    assert_error(send_patch(Target_Scope="parent"), 40059)
    assert_error(send_patch(Target="%ff"), 40058)
    assert_error(send_patch(Content_Type="image/png"), 40012)
    assert_error(send_patch(Target="None"), 40080)
    assert_error(send_patch(Target_Type="frontmatter", Target_Scope="marker"), 40059)
    assert read_note(vault) == NOTE


def test_format_1_reads_and_writes_parts_by_headers_and_path(vault: Vault) -> None:
    heading_target = {name: FORMAT_1_HEADERS[name] for name in ("Markdown-Patch-Version", "Target-Type", "Target")}
    response = vault.http.get("/vault/n.md", headers=heading_target)
    assert (response.text, response.headers["deprecation"]) == ("\nDeep.\n\n", 'true; sunset-version="6.0"')
    assert_error(vault.http.get("/vault/n.md", headers={**heading_target, "Target": "None"}), 40400)
    version = {"Markdown-Patch-Version": "1"}
    path = "/vault/n.md/heading/One/Sub%201:1"
    assert vault.http.get(path, headers=version).text == "\nDeep.\n\n"
    added = vault.http.post(path, content="More.\n", headers={**version, **TEXT})
    assert (added.text, added.headers["deprecation"]) == (
        NOTE.replace("Deep.\n", "Deep.\n\nMore.\n"),
        response.headers["deprecation"],
    )
    document_map = vault.http.get("/vault/n.md", headers={**ACCEPT_MAP, "Markdown-Patch-Version": "1"}).json()
    headings = ["One", "One::Sub 1:1", "Two::Three/Four"]
    assert document_map == {"headings": headings, "blocks": ["one", "table"], "frontmatterFields": ["rank"]}
    assert (
        "## Sub 1:1\nNew.\n\n# Two"
        in vault.http.put("/vault/n.md", content="New.", headers={**heading_target, **TEXT}).text
    )
    assert_error(vault.http.put("/vault/n.md", content="x", headers={"Target-Type": "heading", "Target": "One"}), 40083)
    assert_error(vault.http.get("/vault/n.md", headers={**ACCEPT_MAP, "Markdown-Patch-Version": "7"}), 40082)


def test_encoded_slashes_in_a_path_are_not_found_or_rejected(vault: Vault) -> None:
    vault.put("a/b.md", "x")
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        assert_error(vault.http.request(method, "/vault/a%2Fb.md", json={}), 40400)
        assert_error(vault.http.request(method, "/vault/..%2F..%2Fx.md", json={}), 40021)


def test_write_to_a_folder_or_below_a_note_is_rejected(vault: Vault) -> None:
    vault.put("a/b.md", "x")
    for method in ("PUT", "POST"):
        response = vault.http.request(method, "/vault/a", content="x", headers=TEXT)
        assert response.status_code in (400, 404, 405, 409), response.text
        response = vault.http.request(method, "/vault/a/b.md/c.md", content="x", headers=TEXT)
        assert response.status_code in (400, 404, 405, 409), response.text


def test_concurrent_edits_of_one_note_are_all_kept(vault: Vault) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def edit(i: int) -> int:
        return send_instruction(vault, target=["One"], content=f"line {i}").status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(edit, range(24))) == {200}
    assert all(f"\nline {i}\n" in read_note(vault) for i in range(24))


def test_note_above_the_parsing_limit_returns_413(vault: Vault) -> None:
    vault.put("n.md", "x" * 1_000_001)
    assert_error(send_instruction(vault, target=None, content="x"), 41300)
    assert_error(vault.http.get("/vault/n.md", headers=ACCEPT_MAP), 41300)
    assert_error(vault.http.get("/vault/n.md/heading/One"), 41300)
