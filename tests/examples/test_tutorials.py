"""The tutorials: their commands run as they stand, in their order, and do what the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.readme.blocks import ROOT, Block, blocks
from tests.readme.checkout import Checkout, running_checkout
from tests.requirements import requirement
from tests.stub import Answer, serving

PAGES = ROOT / "docs" / "tutorials"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """As the first page of the tutorials starts it, and with what it exports."""
    setup, start = blocks(PAGES / "index.md")[0].text.splitlines()
    assert setup == "make setup"
    with running_checkout(tmp_path_factory.mktemp("checkout"), start) as made:
        variables = made.bash(Block("bash", blocks(PAGES / "index.md")[1].text + 'printf \'%s\n%s\' "$PATH" "$KEY"'))
        assert "ok" in variables
        made.environ["PATH"], made.environ["KEY"] = variables.splitlines()[-2:]
        made.environ["SERVICE_URL"] = f"http://127.0.0.1:{made.port}"
        made.environ["SERVICE_CLIENT_KEY"] = made.environ["KEY"]
        yield made


def made_key(checkout: Checkout, block: Block) -> str:
    """The key that the last command of the block shows."""
    return str(json.loads(checkout.bash(Block("bash", block.text.rstrip() + " --json\n")).splitlines()[-1])["key"])


@requirement("documentation.tutorials-run")
def test_a_worker_of_the_tutorial_does_a_task_with_its_own_key(checkout: Checkout) -> None:
    program, register, start, submit = blocks(PAGES / "worker.md")
    (checkout.folder / "slugs.py").write_text(checkout.text(program), "utf-8")
    *before, create = register.text.splitlines()
    checkout.bash(Block("bash", "\n".join(before)))
    command = start.text.replace("PASTE_THE_KEY", made_key(checkout, Block("bash", create)))
    with checkout.running(["bash", "-euc", command.replace("\n.venv", "\nexec .venv")]) as worker:
        assert worker.stdout is not None
        connected = f"connected to http://127.0.0.1:{checkout.port} as slugger; waiting for tasks (slug)"
        assert connected in worker.stdout.readline()
        assert "ahead-of-its-field" in checkout.bash(submit)


@pytest.mark.slow
@requirement("documentation.tutorials-run")
def test_an_agent_that_asks_goes_on_with_the_answer(checkout: Checkout) -> None:
    program, register, start, ask = blocks(ROOT / "docs" / "long-running.md")[:4]
    (checkout.folder / "traveller.py").write_text(checkout.text(program), "utf-8")
    *before, create = register.text.splitlines()
    checkout.bash(Block("bash", "\n".join(before)))
    command = start.text.replace("PASTE_THE_KEY", made_key(checkout, Block("bash", create)))
    submit, decisions, *rest = ask.text.splitlines()
    with checkout.running(["bash", "-euc", command.replace("\n.venv", "\nexec .venv")]):
        checkout.bash(Block("bash", submit))
        until(lambda: "Book Hotel Lisbon" in checkout.bash(Block("bash", decisions)))
        shown = checkout.bash(Block("bash", "\n".join(rest)))
    assert "The task resumes" in shown
    assert '"booked": true' in shown
    assert shown.index("plan") < shown.index("book hotel") < shown.rindex("sleep")


@requirement("documentation.tutorials-run")
def test_an_openai_client_asks_an_agent_with_a_key_of_its_own(checkout: Checkout) -> None:
    create, program, ask = blocks(PAGES / "openai.md")[:3]
    (checkout.folder / "ask.py").write_text(checkout.text(program), "utf-8")
    command = ask.text.replace("PASTE_THE_KEY", made_key(checkout, create)).replace(".venv/agents/bin/python", "python")
    answer = checkout.bash(Block("bash", command))
    assert ("Agents do tasks." in answer, "That is new." in answer) == (True, False)
    assert "Agents do tasks." in checkout.bash(Block("bash", "stentor task list --json"))


@requirement("documentation.tutorials-run")
def test_a_program_with_anthropics_client_asks_an_agent(checkout: Checkout) -> None:
    create, settings, program, ask = blocks(PAGES / "claude-code.md")
    (checkout.folder / "ask_claude.py").write_text(checkout.text(program), "utf-8")
    command = ask.text.replace("PASTE_THE_KEY", made_key(checkout, create)).replace(".venv/agents/bin/python", "python")
    answer = checkout.bash(Block("bash", command))
    assert ("Agents do tasks." in answer, "That is new." in answer) == (True, False)
    base, *_ = settings.text.splitlines()
    assert base == "export ANTHROPIC_BASE_URL=http://127.0.0.1:8080"


@pytest.mark.slow
@requirement("documentation.tutorials-run")
def test_mcp_clients_get_what_the_tutorial_grants(checkout: Checkout) -> None:
    claude, cursor, vault = (checkout.bash(block) for block in blocks(PAGES / "mcp.md"))
    assert claude.startswith("claude mcp add stentor-memory")
    environ = json.loads(cursor)["mcpServers"]["stentor-memory"]["env"]
    assert environ["SERVICE_MCP_NAMESPACES"] == "team"
    assert environ["SERVICE_MCP_CAPABILITIES"] == "memory.read"
    assert "SERVICE_MCP_NAMESPACES=vault" in vault


@requirement("documentation.frameworks")
def test_the_tutorial_of_the_frameworks_names_the_examples() -> None:
    text = (PAGES / "frameworks.md").read_text("utf-8")
    assert {f"{name}.py" for name in re.findall(r"examples/(\w+)\.py", text)} == {
        path.name for path in (ROOT / "examples").glob("*_agent.py") if path.name != "keywords_agent.py"
    }
    shown = next(block.text for block in blocks(PAGES / "frameworks.md") if block.language == "python")
    program = (ROOT / "examples" / "langgraph_agent.py").read_text("utf-8")
    for part in shown.split("...\n"):
        assert part.strip() in program


@requirement("documentation.site")
def test_every_page_of_the_documentation_is_in_the_site() -> None:
    listed = re.findall(r"([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
@requirement("documentation.site")
def test_a_link_of_a_page_leads_to_a_page_of_the_site(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text("utf-8"))  # blocks show output, which may quote links
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)", text)
    broken = [link for link in links if not (page.parent / link).exists()]
    outside = [link for link in links if not (page.parent / link).resolve().is_relative_to(ROOT / "docs")]
    assert not broken + outside


@requirement("execution.worker-agent")
def test_a_worker_with_a_wrong_key_ends_with_the_reason() -> None:
    refusal = {"success": False, "error": "Authentication required", "message": "This service does not know the key."}
    with serving(lambda asked, before: Answer(401, refusal)) as (address, _):
        command = [sys.executable, str(ROOT / "examples" / "keywords_agent.py"), address, "wrong"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"{address} rejected the worker: UNAUTHORIZED: This service does not know the key. Use one of its keys: "
        "data/keys/admin.key has the first, `stentor keys create` makes more."
    ]
