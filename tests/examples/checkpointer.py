"""Runs LangGraph's conformance tests with a service: python checkpointer.py URL KEY. It runs among the frameworks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from langgraph.checkpoint.conformance import checkpointer_test, validate

from stentor_worker.integrations.langgraph import StentorCheckpointer


@checkpointer_test(name="stentor")
async def checkpointer() -> AsyncIterator[StentorCheckpointer]:
    saver = StentorCheckpointer(*sys.argv[1:], prefix="conformance/")
    yield saver
    saver.close()


report = asyncio.run(validate(checkpointer))
sys.stdout.writelines(f"{name} {result.failures or 'passed'}\n" for name, result in report.results.items())
sys.exit(0 if report.passed_all() else 1)
