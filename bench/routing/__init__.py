"""`routing`: how much is lost to learning who is best, in simulated worlds, against the usual policies.

Nothing is served here: the product's own functions (`rank_candidates`, `apply_outcome`) choose and learn in process, as
do their peers. Regret is the sum over the tasks of (best agent's value - chosen agent's value), with the true values.
The last figures are of models: tables of prompts are replayed (replay.py), of a file with `--table`, which is then all
that is played.
"""

from bench.figures import Figure
from bench.routing import replay, report
from bench.routing.report import TITLE
from bench.sizes import Scale


def run(scale: Scale) -> list[Figure]:
    worlds = [] if scale.table is not None else report.run(scale)
    return [*worlds, *replay.run(scale)]


__all__ = ["TITLE", "run"]
