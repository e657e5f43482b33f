"""The provable run log: leaves and tiles of the Merkle tree, signed checkpoints, and events without a number yet.

`leaf` is in hex, and null for events that were recorded before there was a tree. A tile holds up to 256 hashes of 32
bytes: at level 0 those of leaves, at each further level those of full tiles of the level below.
"""

from alembic import op

revision = "0008"
down_revision = "0007"

STATEMENTS = """
create table events_waiting (
    event_id text primary key,
    leaf text
){bare};

create table provenance_leaves (
    number {number} primary key check (number >= 0),
    event_id text not null unique,
    hash text not null
);

create table provenance_tiles (
    level integer not null check (level >= 0),
    position bigint not null check (position >= 0),
    hashes {bytes} not null,
    primary key (level, position)
);

create table provenance_checkpoints (
    size bigint primary key check (size >= 0),
    root text not null,
    note text not null,
    made_at bigint not null
);

create index events_led_to on events (parent_id)
    where parent_id is not null and (task_id is null or event_type = 'prompt_received');

insert into events_waiting (event_id) select event_id from events
"""
TYPES = {
    # One B-tree instead of two or three per table: these rows are written as often as events.
    "sqlite": {"bytes": "blob", "number": "integer", "bare": " without rowid"},
    "postgresql": {"bytes": "bytea", "number": "bigint", "bare": ""},
}


def upgrade() -> None:
    for statement in STATEMENTS.format(**TYPES[op.get_bind().dialect.name]).split(";"):
        op.execute(statement)
