"""A librarian on a vault of notes: answers with citations, an assistant over MCP, a merged conflict, an undo.

python examples/showcases/librarian/run.py [FOLDER WITH A COPY OF YOUR NOTES]
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from mcp import Client, StdioServerParameters, stdio_client

sys.path.insert(0, str(Path(__file__).parents[1]))
from showcase import Showcase, running, say

NOTES = Path(__file__).parent / "vault"
QUESTION = "How do we know that the backups work?"
MODEL = "openai/gpt-5-mini"
PATH = "Projects/launch.md"


def scripted(model: str, prompt: str) -> str:
    return "They are restored on a spare machine once a month [1]."


def main() -> None:
    given = [word for word in sys.argv[1:] if not word.startswith("--")]
    with tempfile.TemporaryDirectory() as folder:
        vault = Path(given[0]) if given else Path(shutil.copytree(NOTES, Path(folder) / "vault"))
        settings = {"SERVICE_VAULT_DIR": str(vault), "SERVICE_TASK_NOTES": "0", "SERVICE_TASK_INBOX": "0"}
        with running(scripted, **settings) as service:
            answer(service, QUESTION)
            if given:
                service.show("Your notes:", "/memory")
                return
            asyncio.run(use_mcp(service))
            merge(service, vault)
            undo(service, vault)
            note = urlencode({"path": PATH})
            service.show("The note with its versions, each with who wrote it:", f"/memory/note?{note}")


def answer(service: Showcase, question: str) -> None:
    """Ask the librarian, whose citations a model then puts into words."""
    task = service.ended(service.submit("answer", {"question": question}, "answer", question))
    passages = task["result"]["citations"]
    print(f"{question}\n")
    for number, passage in enumerate(passages, 1):
        say(f"[{number}] {passage['path']}: {textwrap.shorten(passage['passage'], 120, placeholder=' ...')}", "  ")
    cited = "\n".join(f"[{n}] {passage['passage']}" for n, passage in enumerate(passages, 1))
    prompt = f"Answer in one sentence, only from these passages, and cite them by number.\n{cited}\n\n{question}"
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
    reply = service.person.post("/llm/chat", json=body).raise_for_status().json()["data"]
    print()
    say(reply["content"], "  ")
    print()


async def use_mcp(service: Showcase) -> None:
    """Do what an assistant such as Claude Code does: start the MCP server, read a note, and write one."""
    grants = {"PRINCIPAL": "assistant", "NAMESPACES": "vault,team", "CAPABILITIES": "memory.read,memory.write"}
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    environ |= {f"SERVICE_MCP_{name}": value for name, value in grants.items()}
    words = ["-m", "stentor", "mcp", "--data-dir", str(service.data_dir)]
    server = StdioServerParameters(command=sys.executable, args=words, env=environ)
    async with Client(stdio_client(server)) as assistant:
        note = await call(assistant, "read-memory", namespace="vault/Projects", key="launch")
        say(f"Over MCP the assistant reads {note['path']}: {first_line(note['content'])}")
        text = "# Launch\n\nThe price list is still open.\n"
        made = await call(assistant, "write-memory", namespace="team", key="launch-check", content=text)
        print(f"It writes a note of its own for the team: {made['disposition']}.")
        denied = await call(assistant, "read-memory", namespace="private", key="diary")
        print(f"It tries a part of the memory that it was not granted: {denied}.\n")


async def call(client: Client, tool: str, **arguments: str) -> Any:
    """Call a tool and return its result, or the code of its error."""
    result = await client.call_tool(tool, arguments)
    content: Any = result.structured_content
    return content["error"]["code"] if result.is_error else content


def first_line(text: str) -> str:
    return next(line for line in text.splitlines() if line and not line.startswith(("#", "---", "tags")))


def merge(service: Showcase, vault: Path) -> None:
    """Let an agent and a person change the same note at the same time."""
    read = service.person.get("/memory/read/exact", params={"path": PATH}).raise_for_status().json()["document"]
    versions = service.person.get("/memory/versions", params={"path": PATH}).raise_for_status().json()
    file = vault / PATH
    file.write_text(file.read_text().replace("12 May", "19 May"))
    print("A person changes the date in the editor, while an agent closes the open point:")
    document = {**read, "content": read["content"].replace("Open: the price list.", "Done: the price list.")}
    metadata = {"conflict_resolution": "merge", "base_hash": versions["current"]}
    body = {"operation": "write", "document": document, "metadata": metadata}
    written = service.assistant.post("/memory/write", json=body).raise_for_status().json()
    print(f"  merged: {written['merged']}")
    print("".join(f"  | {line}\n" for line in file.read_text().splitlines() if line.startswith(("We", "Done", "Open"))))


def undo(service: Showcase, vault: Path) -> None:
    """Go back to the version before the agent's change, as the button on the note's page does."""
    versions = service.person.get("/memory/versions", params={"path": PATH}).raise_for_status().json()["versions"]
    before = versions[1]["version"]
    params = {"path": PATH}
    old = service.person.get(f"/memory/versions/{before}", params=params).raise_for_status().json()["document"]
    service.person.post("/memory/write", json={"operation": "write", "document": old}).raise_for_status()
    last = (vault / PATH).read_text().strip().splitlines()[-1]
    print(f"The agent was too early; its change is undone: {last}")


if __name__ == "__main__":
    main()
