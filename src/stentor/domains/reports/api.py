"""The shape of a report in answers. Source: second contract, "Dashboard service"."""

from __future__ import annotations

from stentor.web.wire import ResponseModel, Timestamp


class ReportOut(ResponseModel):
    """What the note says; `modified_at` is the file's."""

    path: str
    title: str
    task_id: str | None
    agent_name: str | None
    created_at: str | None
    modified_at: Timestamp
    summary: str | None
