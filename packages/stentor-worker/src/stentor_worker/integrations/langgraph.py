"""A checkpointer of LangGraph that keeps its threads in sessions of Stentor: `pip install stentor-worker[langgraph]`.

    graph = builder.compile(checkpointer=StentorCheckpointer("http://127.0.0.1:8080", key))

The state of a graph then survives the program, and is read on any machine. Source: docs/langgraph.md.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from stentor_worker.http.client import Client
from stentor_worker.integrations.langgraph_records import CHUNK, Record, RecordStore, identify, make_config
from stentor_worker.integrations.langgraph_values import CheckpointError, Threads, make_key

__all__ = ["CheckpointError", "StentorCheckpointer"]

MAX_THREADS = 16
"""Requests at once of a checkpointer whose asynchronous methods are used."""
T = TypeVar("T")


class StentorCheckpointer(RecordStore):
    """Keeps the checkpoints of each thread in a session, whose id is `prefix` and the thread's id.

    `url` and `key` are those of the service; the key needs the permissions `read` and `write`. `ca_file` has the
    certificates that it trusts, in PEM. While the service does not answer, a request is tried `tries` times: 8 are
    13 seconds. Raises CheckpointError, whose text says what to do. Safe to use from many threads.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        prefix: str = "langgraph/",
        tries: int = 8,
        ca_file: str | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        self._client = Client(url, key, threading.Event(), ca_file)
        # A separate pool: in the event loop's own, a write would wait until blocking nodes have ended.
        self._executor = ThreadPoolExecutor(MAX_THREADS, "stentor-checkpoints")
        super().__init__(Threads(self._client, prefix, tries), serde)

    def close(self) -> None:
        """Close the connections, after the requests that are under way."""
        self._executor.shutdown()
        self._client.close()

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """Return a version that no other branch of the thread has: a value is stored by its channel and version."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and the values of the channels that changed."""
        thread, namespace = _thread(config), _namespace(config)
        channels = checkpoint["channel_values"]
        values = {
            make_key("b", namespace, channel, str(version)): self._pack(channels[channel])
            for channel, version in new_versions.items()
            if channel in channels
        }
        record = {
            "checkpoint": {field: value for field, value in checkpoint.items() if field != "channel_values"},
            "metadata": get_checkpoint_metadata(config, metadata),
            "parent": get_checkpoint_id(config),
            "namespace": namespace,
        }
        # Stored last, so that an existing checkpoint always has its values, however many requests they take.
        values[make_key("c", namespace, checkpoint["id"])] = self._pack(record)
        self._threads.set(thread, values)
        return make_config(thread, namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote. Errors and interrupts replace earlier ones of the task, other writes do not."""
        once: dict[str, bytes] = {}
        again: dict[str, bytes] = {}
        checkpoint_id = config["configurable"]["checkpoint_id"]
        for place, (channel, value) in enumerate(writes):
            # Errors and interrupts have fixed negative numbers.
            index = WRITES_IDX_MAP.get(channel, place)
            key = make_key("w", _namespace(config), checkpoint_id, task_id, str(index))
            values = once if index >= 0 else again
            values |= self._pack_write(key, value, task_id, channel, task_path)
        # Long values first, so that the writes of a task appear together, however many requests they take.
        self._threads.set(_thread(config), _long_first(once), if_absent=True)
        self._threads.set(_thread(config), _long_first(again))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, without an id the newest: three requests, however long the thread is."""
        thread, namespace, wanted = _thread(config), _namespace(config), get_checkpoint_id(config)
        if wanted is None:
            records: Iterable[Record] = islice(self._records(thread, namespace, page=1), 1)
        else:
            records = self._find(thread, namespace, wanted)
        return next(self._tuples(thread, records), None)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - as LangGraph calls it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the newest first, of all threads if `config` is None.

        `filter` names metadata that they must have. The service cannot search it: all checkpoints are read for it.
        """
        found = self._list(config, filter or {}, None if before is None else get_checkpoint_id(before), limit)
        return islice(found, limit)

    def _list(
        self, config: RunnableConfig | None, wanted: Mapping[str, Any], before: str | None, limit: int | None
    ) -> Iterator[CheckpointTuple]:
        for thread in self._threads if config is None else [_thread(config)]:
            records = self._select(thread, config, before, None if wanted or limit is None else limit)
            matching = (
                record
                for record in records
                if all(record["metadata"].get(name) == value for name, value in wanted.items())
            )
            yield from self._tuples(thread, matching, CHUNK if limit is None else max(1, min(limit, CHUNK)))

    def _select(
        self, thread: str, config: RunnableConfig | None, before: str | None, limit: int | None
    ) -> Iterator[Record]:
        """Yield the records of a thread that a configuration means, the newest first."""
        configurable = {} if config is None else config["configurable"]
        namespace, checkpoint_id = configurable.get("checkpoint_ns"), configurable.get("checkpoint_id")
        records: Iterable[Record]
        if namespace is not None and checkpoint_id is None:
            yield from self._records(thread, namespace, before, page=100 if limit is None else max(1, min(limit, 100)))
            return
        if namespace is None or checkpoint_id is None:
            records = sorted(self._records(thread), key=identify, reverse=True)
        else:
            records = self._find(thread, namespace, checkpoint_id)
        for record in records:
            if (before is None or identify(record) < before) and checkpoint_id in (None, identify(record)):
                yield record

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        """Return what the ancestors of a checkpoint wrote to some channels, back to a stored value of each."""
        writes: dict[str, list[Any]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        target = self.get_tuple(config) if channels else None
        if target is not None:
            parent = target.parent_config and get_checkpoint_id(target.parent_config)
            chain = self._ancestors(_thread(config), _namespace(config), parent)
            for found in self._tuples(_thread(config), chain, CHUNK, writes.keys()):
                for write in reversed(found.pending_writes or []):
                    if write[1] in writes and write[1] not in seeds:
                        writes[write[1]].append(write)
                seeds = found.checkpoint["channel_values"] | seeds
                if seeds.keys() >= writes.keys():
                    break
        seeded = {channel: {"seed": seeds[channel]} if channel in seeds else {} for channel in channels}
        return {channel: {"writes": writes[channel][::-1], **seeded[channel]} for channel in channels}

    def delete_thread(self, thread_id: str) -> None:
        """Delete the session of a thread, or with a key without the permission `delete` empty it."""
        self._threads.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of some runs, in all threads: it reads every checkpoint."""
        for thread in self._threads if run_ids else ():
            records = list(self._records(thread))
            kept = [record for record in records if record["metadata"].get("run_id") not in run_ids]
            self._drop(thread, records, kept)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread. The service stores long values once for both."""
        for kind in ("b/", "w/", "c/"):  # an existing checkpoint has its values
            values = self._threads.scan(source_thread_id, kind)
            while batch := dict(islice(values, 100)):
                self._threads.set(target_thread_id, batch)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints but the newest of each namespace, or with the strategy `delete` all.

        Ancestors that a DeltaChannel of the newest needs stay. Not while a graph runs in the thread.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy: must be keep_latest or delete, not {strategy!r}")
        for thread in thread_ids:
            if strategy == "delete":
                self._threads.delete(thread)
                continue
            records = list(self._records(thread))
            newest = {record["namespace"]: record for record in sorted(records, key=identify)}
            kept = [needed for record in newest.values() for needed in self._needed(thread, record)]
            self._drop(thread, records, kept)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do as `get_tuple`, in a thread; so do the others."""
        return await self._in_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - as LangGraph calls it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await self._in_thread(next, found, None)) is not None:
            yield one

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._in_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        return await self._in_thread(partial(self.get_delta_channel_history, config=config, channels=channels))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._in_thread(partial(self.prune, thread_ids, strategy=strategy))

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


def _long_first(values: Mapping[str, bytes]) -> dict[str, bytes]:
    return dict(sorted(values.items(), key=lambda item: not item[0].endswith("/value")))


def _thread(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _namespace(config: RunnableConfig) -> str:
    return str(config["configurable"].get("checkpoint_ns", ""))
