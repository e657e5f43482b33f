"""Real processes that are killed with SIGKILL, again and again: workers, services, and the PostgreSQL server.

`python -m tests.faults.kills` runs it. The programs are those of `tests.faults.journal`, and `coroutines`; `plain` runs
the former without the SDK. `ledger` is the world outside, in the process of the test. `crew` forks the workers and
kills them, `hooks` kills a service or its database at a commit, `members` starts again what died, `people` answers,
signals and retries, `run` brings these together, and `verdict` says what is wrong at the end. `plants` has flaws that
it must find.
"""
