"""`stentor llm grade` and `stentor llm explain`, beside a service and on the folder of a stopped one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tests.cli.populated import stop
from tests.cli.program import Program
from tests.requirements import requirement

Serve = Callable[..., Any]
LOCAL = {"SERVICE_LLM_LOCAL_BASELINE": "1", "SERVICE_LLM_GROUPS": "auto=local/extractive"}


def answered(service: Any) -> dict[str, Any]:
    body = {"model": "auto", "messages": [{"role": "user", "content": "The sea is salty."}]}
    with service.client() as http:
        answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@requirement("modelrouting.cli")
def test_an_answer_is_graded_and_its_choice_explained(serve: Serve) -> None:
    service = serve(**LOCAL)
    program = Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **service.state})
    answer = answered(service)
    done = program("llm", "grade", answer["id"], "0.25", "--comment", "Only repeats it.")
    assert (done.code, done.out) == (
        0,
        "Graded the answer of local/extractive 0.25; learning was updated.\n",
    )
    assert program("llm", "grade", answer["id"], "0.5").code == 3, "it is graded already"
    assert program("llm", "grade", answer["id"], "1.5").code == 2
    assert program("llm", "grade", "nobody", "0.5").code == 3
    explained = program("llm", "explain", answer["id"])
    assert explained.code == 0
    assert explained.out.startswith("local/extractive was the only candidate.\n")
    assert explained.out.endswith("Recomputation from the run log: identical.\n")
    again = answered(service)
    found = program("llm", "explain", again["id"], "--json").json
    assert found["recomputation"]["same"] is True
    assert (found["kind"], found["requested"]) == ("instruction/short", "auto")
    [candidate] = found["decision"]["candidates"]
    assert (candidate["rewards"], candidate["outcomes"]) == (64 / 255, 1.0), "the grade counts, in 255 parts"


@requirement("modelrouting.cli")
def test_explain_exits_1_when_the_record_does_not_lead_to_the_choice(serve: Serve, database: str) -> None:
    service = serve(**LOCAL)
    program = Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **service.state})
    answer = answered(service)
    stop(service)
    program = Program(service.data_dir, service.state)
    if database == "sqlite":
        with closing(sqlite3.connect(program.data_dir / "stentor.db")) as connection, connection:
            where = "event_type = 'model_chosen'"
            [(text,)] = connection.execute(f"select metadata from events where {where}").fetchall()
            metadata = json.loads(text)
            metadata["routing"]["candidates"][0]["blended"] += 0.1
            connection.execute(f"update events set metadata = ? where {where}", (json.dumps(metadata),))
        assert program("llm", "explain", answer["id"]).code == 1
    else:
        assert program("llm", "explain", answer["id"]).code == 0, "the folder of a stopped service is enough"
