"""The record of a model keeps the cost of its replies relative to its prices, so that a new price counts at once.

The costs in US dollars that it kept before are dropped: until its next reply a model has the estimated cost.
"""

from alembic import op

revision = "0050"
down_revision = "0049"


def upgrade() -> None:
    op.execute("update model_weights set mean_cost = null")
