"""The scripted server is no invention: the official clients of its three formats read all that it says."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.domains.llm.upstream import ANSWER, SCHEMA, VECTOR, Upstream

ASKED: Any = [{"role": "user", "content": "Why?"}]


async def test_openais_client_reads_it(upstream: Upstream) -> None:
    async with openai.AsyncOpenAI(api_key="x", base_url=upstream.v1, max_retries=0) as client:
        whole = await client.chat.completions.create(model="sea", messages=ASKED)
        assert whole.choices[0].message.content == ANSWER
        stream = await client.chat.completions.create(model="sea", messages=ASKED, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == ANSWER
        made = await client.embeddings.create(model="sea", input=["a"], encoding_format="float")
        assert made.data[0].embedding == VECTOR
        assert [m.id async for m in client.models.list()] == upstream.models


@pytest.mark.slow
async def test_anthropics_client_reads_it(upstream: Upstream) -> None:
    import anthropic  # takes two seconds, which only the process that runs this test shall spend

    async with anthropic.AsyncAnthropic(api_key="x", base_url=upstream.url, max_retries=0) as client:
        whole = await client.messages.create(model="sea", max_tokens=9, messages=ASKED)
        assert whole.content[0].type == "text"
        assert whole.content[0].text == ANSWER
        async with client.messages.stream(model="sea", max_tokens=9, messages=ASKED) as stream:
            assert await stream.get_final_text() == ANSWER
        upstream.tool = {"name": "weather", "args": {"city": "Oslo"}}
        tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
        async with client.messages.stream(model="sea", max_tokens=9, messages=ASKED, tools=tools) as stream:
            final = await stream.get_final_message()
        assert final.content[0].type == "tool_use"
        assert final.content[0].input == {"city": "Oslo"}
        assert [m.id async for m in client.models.list()] == upstream.models


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_googles_client_reads_it(upstream: Upstream) -> None:
    from google import genai
    from google.genai import types

    options = types.HttpOptions(base_url=upstream.url, api_version="v1beta")
    client = genai.Client(api_key="x", http_options=options)
    whole = await client.aio.models.generate_content(model="sea", contents="Why?")
    assert whole.text == ANSWER
    stream = await client.aio.models.generate_content_stream(model="sea", contents="Why?")
    assert "".join([chunk.text or "" async for chunk in stream]) == ANSWER
    upstream.tool = {"name": "weather", "args": {"city": "Oslo"}}
    called = await client.aio.models.generate_content(model="sea", contents="Why?")
    assert called.function_calls is not None
    assert called.function_calls[0].args == {"city": "Oslo"}
    await client.aio.aclose()
