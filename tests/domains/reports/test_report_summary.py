"""The summary of a report is its first paragraph, wherever its headings stand."""

from __future__ import annotations

import pytest

from stentor.domains.reports.service import parse_report
from stentor_vault.notes.model import Stat
from tests.requirements import requirement


@requirement("dashboard.report-summary")
@pytest.mark.parametrize(
    "text",
    [
        "# Title\nThe first paragraph.\n\nThe second one.\n",
        "# Title\n\n## Part\nThe first\nparagraph.\n\nThe second one.\n",
        "# Title\r\n\r\nThe first paragraph.\r\n## Part\r\nMore.\r\n",
        "The first paragraph.\n# Title\nThe second one.\n",
        "---\ntask_id: a\n---\n# Title\nThe first paragraph.\n",
    ],
)
def test_the_first_paragraph_counts_also_directly_below_a_heading(text: str) -> None:
    assert parse_report(Stat("Reports/a.md", len(text), 1, 1), text).summary == "The first paragraph."


def test_a_report_of_headings_alone_has_no_summary() -> None:
    assert parse_report(Stat("Reports/a.md", 1, 1, 1), "# Title\n\n## Part\n").summary is None
