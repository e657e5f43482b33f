"""`stentor-worker replay MODULE:WORKER TASK...`: check whether a program still replays its recorded runs."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from stentor_worker.http.client import ServiceError
from stentor_worker.worker import Worker

EXIT_DIFFERS, EXIT_USAGE = 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0 if all runs are the same, 1 if any differs, 2 after an error."""
    parser = argparse.ArgumentParser("stentor-worker")
    commands = parser.add_subparsers(dest="command", required=True)
    replay = commands.add_parser("replay", help="run a handler over what runs recorded; nothing is sent or recorded")
    replay.add_argument("worker", metavar="MODULE:WORKER", help="the worker in your program, such as traveller:worker")
    replay.add_argument("task_ids", metavar="TASK", nargs="+", help="ids of tasks that the worker did")
    given = parser.parse_args(arguments)
    try:
        worker = _load(given.worker)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing a program may raise anything
        return _report(error)
    codes = [_replay(worker, task_id) for task_id in given.task_ids]
    return max(codes)


def _replay(worker: Worker, task_id: str) -> int:
    """Replay one run, print what was found, and return the exit code for it."""
    try:
        result = worker.replay(task_id)
    except Exception as error:  # noqa: BLE001 - the other runs must still be replayed
        return _report(error, f"{task_id}: ")
    stop = "" if result.stopped_at is None else f" It stopped at {result.stopped_at!r}, which has no outcome."
    sys.stdout.write(f"{result.task_id}: {result.difference or f'the same, {result.steps} steps.'}{stop}\n")
    return 0 if result.is_same else EXIT_DIFFERS


def _report(error: BaseException, about: str = "") -> int:
    # Without its type, the text of most exceptions is unclear: "NameError: name 'x' is not defined".
    text = (
        str(error) if isinstance(error, ImportError | ValueError | ServiceError) else f"{type(error).__name__}: {error}"
    )
    sys.stderr.write(f"stentor-worker: {about}{text}\n")
    return EXIT_USAGE


def _load(reference: str) -> Worker:
    """Return the worker of `module:name`. Raises ImportError and ValueError."""
    module_name, colon, name = reference.partition(":")
    if not colon:
        raise ValueError(f"{reference!r} must be MODULE:WORKER, such as traveller:worker.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    Worker._is_for_replay = True
    try:
        worker = getattr(importlib.import_module(module_name), name, None)
    finally:
        Worker._is_for_replay = False
    if not isinstance(worker, Worker):
        raise ValueError(f"{reference} is not a stentor_worker.Worker.")
    return worker


if __name__ == "__main__":
    sys.exit(main())
