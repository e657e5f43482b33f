"""The readers of tables of prompts and models, and the replay."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from bench.routing import replay, tables
from bench.routing.tables import Row, Table, TableError
from bench.sizes import Scale

ROUTERBENCH = [
    {
        "sample_id": f"mmlu.{number}",
        "prompt": f"question {number}",
        "eval_name": "mmlu",
        "weak/a": number % 2,
        "strong/b": 1.0,
        "weak/a|model_response": "['A']",
        "strong/b|model_response": "['B']",
        "weak/a|total_cost": 0.0001,
        "strong/b|total_cost": 0.01,
        "oracle_model_to_route_to": "weak/a",
    }
    for number in range(4)
]


def a_csv(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def a_jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "table.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


@pytest.mark.parametrize("write", [a_csv, a_jsonl])
def test_the_long_form_has_a_row_for_each_prompt_and_model(tmp_path: Path, write: Any) -> None:
    rows = [
        {"prompt": "one", "model": "a", "correct": True, "cost": 0.5},
        {"prompt": "one", "model": "b", "correct": False, "cost": ""},
        {"prompt": "two", "model": "b", "correct": 0.25, "cost": 0.1},
        {"prompt": "two", "model": "a", "correct": "1", "cost": 0.2},
        {"prompt": "three", "model": "a", "correct": 1, "cost": 0.2},
    ]
    table = tables.read(write(tmp_path, rows))
    assert table.models == ["a", "b"]
    assert table.rows == [
        Row("one", {"a": 1.0, "b": 0.0}, {"a": 0.5}),
        Row("two", {"b": 0.25, "a": 1.0}, {"b": 0.1, "a": 0.2}),
    ], "the third was not answered by both"


@pytest.mark.parametrize("write", [a_csv, a_jsonl])
def test_routerbenchs_form_has_a_score_and_a_cost_for_each_model(tmp_path: Path, write: Any) -> None:
    table = tables.read(write(tmp_path, ROUTERBENCH))
    assert table.models == ["strong/b", "weak/a"]
    assert table.rows[1] == Row("question 1", {"weak/a": 1.0, "strong/b": 1.0}, {"weak/a": 0.0001, "strong/b": 0.01})


@pytest.mark.parametrize("write", [a_csv, a_jsonl])
def test_routellms_form_has_a_column_for_each_model_and_no_costs(tmp_path: Path, write: Any) -> None:
    rows = [
        {"": n, "prompt": f"sum {n}", "answer": "4", "mistralai/Mixtral": n == 1, "gpt-4": True, "note": "x"}
        for n in range(3)
    ]
    table = tables.read(write(tmp_path, rows))
    assert table.models == ["gpt-4", "mistralai/Mixtral"]
    assert [row.correct["mistralai/Mixtral"] for row in table.rows] == [0.0, 1.0, 0.0]
    assert all(row.cost == {} for row in table.rows)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"question": "x", "model": "a"}], "no column 'prompt'"),
        ([{"prompt": "x", "model": "a", "right": 1}], "none of correct"),
        ([{"prompt": "x", "model": "a", "correct": "perhaps"}], "row 1: 'perhaps'"),
        ([{"prompt": "x", "model": "a", "correct": 7}], "row 1: 7"),
        ([{"prompt": "x", "model": "a", "correct": 1}], "two models"),
        ([{"prompt": "x", "a": "Paris"}], "no column that is true"),
    ],
)
def test_what_is_no_table_is_refused_with_the_reason(tmp_path: Path, rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(TableError, match=words):
        tables.read(a_jsonl(tmp_path, rows))


@pytest.mark.parametrize(("text", "words"), [("", "no rows"), ("{\n", "line 1: no JSON"), ("[1]\n", "no JSON object")])
def test_a_file_of_something_else_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text(text)
    with pytest.raises(TableError, match=words):
        tables.read(path)


def test_what_was_lost_is_counted_against_each_prompts_best_and_the_best_single_model() -> None:
    rows = [Row("one", {"a": 1.0, "b": 0.0}), Row("two", {"a": 0.0, "b": 1.0}), Row("three", {"a": 1.0, "b": 1.0})]
    table = Table("made", ["a", "b"], rows * 10)
    played = replay.replay(table, replay.Fixed(table, lambda model: 0 if model == "b" else 1), "quality")
    assert (round(played.accuracy, 3), played.cost) == (0.667, 0)
    assert (round(played.regret), round(played.to_single)) == (333, 0)


def test_costs_count_by_how_much_is_preferred_and_unknown_ones_do_not() -> None:
    row = Row("one", {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 0.001, "b": 0.003})
    assert [replay.value(row, model, "quality") for model in "abc"] == [1, 1, 1]
    assert [round(replay.value(row, model, "cheap"), 3) for model in "abc"] == [1, 0.85, 1]


def test_ours_learns_which_model_is_better_at_which_kind() -> None:
    table = tables.synthetic(1, 1_500)
    ours = replay.replay(table, replay.Ours(table, "quality", kinds=True), "quality")
    without = replay.replay(table, replay.Ours(table, "quality", kinds=False), "quality")
    assert ours.to_single < 0, "better than any one model for all prompts"
    assert ours.regret < 0.8 * without.regret


def test_a_table_of_ones_own_is_all_that_is_played(tmp_path: Path) -> None:
    from bench.routing import run

    figures = run(Scale(quick=True, table=a_csv(tmp_path, ROUTERBENCH)))
    assert len(figures) == 3 * 7
    assert all("table.csv, 4 prompts, 2 models" in figure.method for figure in figures)
