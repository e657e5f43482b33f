"""How the checkpoints of LangGraph are stored in a thread's session. The public class is in `langgraph`.

A session has the values `c/NAMESPACE/ID`, a checkpoint without the values of its channels,
`b/NAMESPACE/CHANNEL/VERSION`, one value of a channel, and `w/NAMESPACE/ID/TASK/INDEX`, a write of a task, with
`/value` after it the value of a long one.
Why: docs/decisions/0057-langgraph.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from stentor_worker.integrations.langgraph_values import Threads, make_key

CHUNK = 20
"""Checkpoints of a list whose values are read together."""
MAX_INLINE = 256
"""Bytes of a write that are kept beside its channel. A longer one is a value of its own: where the channel gets the
same value, the service stores it once."""
WRITE_KEY = "w/NAMESPACE/ID/TASK/INDEX"
Record = dict[str, Any]
"""A checkpoint as it is stored: `checkpoint` without the values of channels, `metadata`, `parent`, `namespace`."""


class RecordStore(BaseCheckpointSaver[str]):
    """Reads and removes what a checkpointer stores."""

    def __init__(self, threads: Threads, serde: SerializerProtocol | None) -> None:
        super().__init__(serde=serde)
        self._threads = threads

    def _pack(self, value: Any) -> bytes:
        kind, content = self.serde.dumps_typed(value)
        return b"%s\n%s" % (kind.encode(), content)

    def _unpack(self, packed: bytes) -> Any:
        kind, _, content = packed.partition(b"\n")
        return self.serde.loads_typed((kind.decode(), content))

    def _pack_write(self, key: str, value: Any, task_id: str, channel: str, task_path: str) -> dict[str, bytes]:
        packed = self._pack(value)
        if len(packed) <= MAX_INLINE:
            return {key: self._pack([task_id, channel, task_path, packed])}
        return {f"{key}/value": packed, key: self._pack([task_id, channel, task_path, b""])}

    def _find(self, thread: str, namespace: str, checkpoint_id: str) -> list[Record]:
        """Return one checkpoint, or none."""
        found = self._threads.read(thread, [make_key("c", namespace, checkpoint_id)])
        return [self._unpack(packed) for packed in found.values()]

    def _records(
        self, thread: str, namespace: str | None = None, before: str | None = None, page: int = 100
    ) -> Iterator[Record]:
        """Yield the checkpoints of a namespace, the newest first, or of all namespaces by their keys."""
        prefix = "c/" if namespace is None else make_key("c", namespace, "")
        end = None if namespace is None or before is None else make_key("c", namespace, before)
        for _, packed in self._threads.scan(thread, prefix, end, page):
            yield self._unpack(packed)

    def _ancestors(self, thread: str, namespace: str, parent: str | None) -> Iterator[Record]:
        """Yield a checkpoint and its ancestors. An id sorts after that of its parent, unless it was made by hand."""
        if parent is None:
            return
        # "before" is exclusive, and no id lies between `parent` and this: so the parent comes first.
        for record in self._records(thread, namespace, f"{parent}0", page=CHUNK):
            if identify(record) == parent:
                yield record
                parent = record["parent"]
            if parent is None:
                return
        # Ids made by hand are in no order: the rest of the chain is looked up one by one.
        while parent is not None and (found := self._find(thread, namespace, parent)):
            yield found[0]
            parent = found[0]["parent"]

    def _tuples(
        self, thread: str, records: Iterable[Record], chunk: int = 1, channels: Collection[str] | None = None
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints with the values of their channels, or of some, and their writes."""
        rest = iter(records)
        values: dict[str, bytes] = {}
        while some := list(islice(rest, chunk)):
            keys = [_value_keys(record, channels) for record in some]
            wanted = dict.fromkeys(key for of_record in keys for key in of_record.values())
            known = {key: values[key] for key in wanted if key in values}
            # Values that the last chunk had too are not read again; the rest is dropped.
            values = known | self._threads.read(thread, [key for key in wanted if key not in known])
            writes = self._read_writes(thread, some)
            for record, of_record in zip(some, keys, strict=True):
                state = {name: self._unpack(values[key]) for name, key in of_record.items() if key in values}
                pending = writes.get(make_key("w", record["namespace"], identify(record)), [])
                yield _tuple(thread, record, state, pending)

    def _read_writes(self, thread: str, records: Sequence[Record]) -> dict[str, list[tuple[str, str, Any]]]:
        """Return the writes of checkpoints, by how their keys begin, in the order in which a graph applies them."""
        stored: dict[str, bytes] = {}
        for namespace in dict.fromkeys(record["namespace"] for record in records):
            ids = sorted(identify(record) for record in records if record["namespace"] == namespace)
            first, last = (make_key("w", namespace, checkpoint_id) for checkpoint_id in (ids[0], ids[-1]))
            if first == last:
                stored |= dict(self._threads.scan(thread, f"{first}/", page=1_000))
                continue
            # "0" is the character after "/", so this ends behind the last write of the checkpoint `last`.
            for key, packed in self._threads.scan(thread, make_key("w", namespace, ""), f"{last}0", 1_000):
                if key < first:
                    break
                stored[key] = packed
        # Longer keys are the long values, which their writes fetch.
        heads = {key: self._unpack(packed) for key, packed in stored.items() if key.count("/") == WRITE_KEY.count("/")}
        packed_values: dict[str, Any] = {key: head[3] or stored.get(f"{key}/value") for key, head in heads.items()}
        # With only some of its writes a task would count as done; without any it runs again.
        incomplete = {key.rpartition("/")[0] for key, packed in packed_values.items() if packed is None}
        writes: dict[str, list[tuple[str, str, int, str, Any]]] = {}
        for key, (task_id, channel, task_path, _) in heads.items():
            of_task, _, index = key.rpartition("/")
            if of_task not in incomplete:
                value = self._unpack(packed_values[key])
                of_checkpoint = of_task.rpartition("/")[0]
                writes.setdefault(of_checkpoint, []).append((task_path, task_id, int(index), channel, value))
        return {
            key: [(task_id, channel, value) for _, task_id, _, channel, value in sorted(found, key=lambda one: one[:3])]
            for key, found in writes.items()
        }

    def _drop(self, thread: str, records: Sequence[Record], kept: Iterable[Record]) -> None:
        """Remove checkpoints with their writes, then the values that no other one has."""
        staying = {make_key("c", record["namespace"], identify(record)): record for record in kept}
        going = {make_key("c", record["namespace"], identify(record)): record for record in records}
        going = {key: record for key, record in going.items() if key not in staying}
        self._threads.remove(thread, going, (f"w{key[1:]}/" for key in going))
        # Values are shared by the checkpoints in which a channel did not change.
        used = {key for record in staying.values() for key in _value_keys(record).values()}
        unused = {key for record in going.values() for key in _value_keys(record).values()} - used
        self._threads.remove(thread, unused)

    def _needed(self, thread: str, record: Record) -> Iterator[Record]:
        """Yield a checkpoint, and the ancestors from whose writes its channels of the type DeltaChannel are built."""
        yield record
        missing = self._without_value(thread, record, record["metadata"].get("counters_since_delta_snapshot") or ())
        for ancestor in self._ancestors(thread, record["namespace"], record["parent"]):
            if not missing:
                return
            yield ancestor
            missing = self._without_value(thread, ancestor, missing)

    def _without_value(self, thread: str, record: Record, channels: Collection[str]) -> list[str]:
        keys = _value_keys(record, channels)
        stored = self._threads.read(thread, keys.values()) if keys else {}
        return [channel for channel in channels if keys.get(channel) not in stored]


def identify(record: Record) -> str:
    """Return the id of a checkpoint."""
    return str(record["checkpoint"]["id"])


def make_config(thread: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    """Return the configuration that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _value_keys(record: Record, channels: Collection[str] | None = None) -> dict[str, str]:
    """Return the key of the value of each channel, or of some channels."""
    return {
        channel: make_key("b", record["namespace"], channel, str(version))
        for channel, version in record["checkpoint"]["channel_versions"].items()
        if channels is None or channel in channels
    }


def _tuple(thread: str, record: Record, state: dict[str, Any], writes: list[tuple[str, str, Any]]) -> CheckpointTuple:
    namespace, parent = record["namespace"], record["parent"]
    return CheckpointTuple(
        config=make_config(thread, namespace, identify(record)),
        checkpoint={**record["checkpoint"], "channel_values": state},
        metadata=record["metadata"],
        parent_config=None if parent is None else make_config(thread, namespace, parent),
        pending_writes=writes,
    )
