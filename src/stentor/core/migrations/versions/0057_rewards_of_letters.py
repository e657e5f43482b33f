"""The rewards of records that have fewer than outcomes: versions before 0014 stored only the letters of outcomes.

Routing reads only the rewards, so it would take such an agent for one without results.
"""

from alembic import op

revision = "0057"
down_revision = "0056"


def upgrade() -> None:
    op.execute(
        "update hebbian_weights set rewards = replace(replace(recent, 'F', '00'), 'S', 'ff') "
        "where length(rewards) <> 2 * length(recent)"
    )
