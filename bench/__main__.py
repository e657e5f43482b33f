"""`python -m bench [NAME ...]`: measures, then prints a table per bench (or `--json`, `--markdown`)."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import atp, budget, commit, decide, routing, scale, start, webhooks
from bench.dashboard import lists, pages
from bench.figures import HEADINGS, Area, Figure, markdown, number, plain
from bench.llm import chats
from bench.memory import bus, vault
from bench.security import cage, governance, provenance, receipts
from bench.sizes import Scale, say
from bench.tasks import latency, processes, steps, throughput, waits

BENCHES: dict[str, tuple[str, Callable[[Scale], list[Figure]]]] = {
    "throughput": (throughput.TITLE, throughput.run),
    "submit": (latency.SUBMIT, latency.submit),
    "idle": (latency.IDLE, latency.idle),
    "decide": (decide.TITLE, decide.run),
    "routing": (routing.TITLE, routing.run),
    "start": (start.TITLE, start.run),
    "lists": (lists.TITLE, lists.run),
    "budget": (budget.TITLE, budget.run),
    "steps": (steps.TITLE, steps.run),
    "waits": (waits.TITLE, waits.run),
    "commit": (commit.TITLE, commit.run),
    "memory": (bus.TITLE, bus.run),
    "receipts": (receipts.TITLE, receipts.run),
    "provenance": (provenance.TITLE, provenance.run),
    "atp": (atp.TITLE, atp.run),
    "vault": (vault.TITLE, vault.run),
    "cage": (cage.TITLE, cage.run),
    "webhooks": (webhooks.TITLE, webhooks.run),
    "governance": (governance.TITLE, governance.run),
    "llm": (chats.TITLE, chats.run),
    "pages": (pages.TITLE, pages.run),
    "processes": (processes.TITLE, processes.run),
    "scale": (scale.TITLE, scale.run),
}


def main() -> None:
    options = _options()
    folder = options.cache or options.folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    sizes = Scale(options.quick, options.cache, options.folder, options.rounds, table=options.table)
    sizes = replace(sizes, rows=options.rows or sizes.pick(1_000_000, 20_000))
    areas: list[Area] = []
    try:
        areas.extend(_measure(name, sizes) for name in options.benches or BENCHES)
    finally:
        _show(areas, _machine(sizes), options)  # what was measured before a failure is not lost


def _show(areas: list[Area], machine: str, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"machine": machine, "figures": plain(areas)}, indent=2))
    elif options.markdown:
        print(f"{machine}\n\n{markdown(areas)}", end="")
    else:
        _print(machine, areas)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Stentor; see bench/README.md.")
    parser.add_argument("benches", nargs="*", metavar="NAME", help=f"{', '.join(BENCHES)}; all when none is named")
    parser.add_argument("--quick", action="store_true", help="small sizes, under a minute: to see that it works")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of what is measured in rounds (5)")
    parser.add_argument("--rows", type=int, help="tasks in the database of `lists` (1,000,000)")
    parser.add_argument("--table", type=Path, help="CSV or JSONL of prompts and models that `routing` replays")
    parser.add_argument("--cache", type=Path, help="folder that keeps the database of `lists` for the next run")
    parser.add_argument("--folder", type=Path, help="where databases are made; the disk is part of what is measured")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="one JSON object")
    shape.add_argument("--markdown", action="store_true", help="tables for the README")
    options = parser.parse_args()
    if unknown := set(options.benches) - set(BENCHES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    return options


def _measure(name: str, sizes: Scale) -> Area:
    title, run = BENCHES[name]
    say(f"{name}: {title} ...")
    started = time.perf_counter()
    figures = run(sizes)
    say(f"{name}: {time.perf_counter() - started:.0f} s")
    return Area(name, title, figures)


def _machine(sizes: Scale) -> str:
    """Where it was measured, as far as the figures depend on it; no names."""
    parts = [
        f"{os.cpu_count()} cores ({platform.machine()})",
        platform.system(),
        f"Python {platform.python_version()}",
        f"SQLite {sqlite3.sqlite_version}",
        f"fdatasync of 4 kB {number(sizes.fdatasync_ms())} ms (median)",
        "quick sizes" if sizes.quick else "full sizes",
    ]
    return ", ".join(parts) + "."


def _print(machine: str, areas: list[Area]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(machine)
    for area in areas:
        table = Table(title=f"{area.name}: {area.title}", title_justify="left")
        for n, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="right" if n in (1, 2, 3) else "left", overflow="fold")
        for figure in area.figures:
            table.add_row(*(cell.replace("[", "\\[") for cell in figure.cells()))
        console.print(table)


if __name__ == "__main__":
    main()
