"""What the pages on models in docs/ show works as it stands there."""

from __future__ import annotations

import asyncio
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from stentor.core.settings import setting_infos
from stentor.domains.llm.providers import KNOWN_PROVIDERS
from tests.domains.llm.conftest import Gate
from tests.domains.llm.test_live import listening
from tests.domains.llm.upstream import ANSWER

DOCS = Path(__file__).parents[3] / "docs"
PAGE = "".join((DOCS / f"{name}.md").read_text() for name in ("llm", "model-agents", "model-calls"))

GROUP = re.findall(r'SERVICE_LLM_GROUPS="(auto=.*?)"', PAGE)[0]


async def test_the_examples_of_the_openai_client_run(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_BUILTIN_AGENTS="1", SERVICE_LLM_GROUPS=GROUP)
    code = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))
    async with listening(world) as client:
        here = code.replace("http://127.0.0.1:8080", str(client.base_url).rstrip("/"))
        here = here.replace("<a key of Stentor>", "admin-key-7c1e")
        printed = io.StringIO()
        with redirect_stdout(printed):
            await asyncio.to_thread(exec, here, {})
    said, chosen, summary = printed.getvalue().splitlines()
    assert (said, summary) == (ANSWER, "The sea is salty. Rivers carry salt into it.")
    model, kind, why = chosen.split(" ", 2)
    assert model in GROUP
    assert kind == "code/short"
    assert why.startswith(f"{model} was chosen among 2 candidates")


def test_every_setting_and_known_provider_of_the_gateway_is_named() -> None:
    names = [meta.env for meta in setting_infos().values() if meta.env.startswith("SERVICE_LLM_")]
    assert [name for name in names if name not in PAGE] == []
    assert [name for name in KNOWN_PROVIDERS if f"`{name}`" not in PAGE] == []
