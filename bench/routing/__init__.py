"""`routing`: how much is lost to learning who is best, in simulated worlds, against the usual policies.

Nothing is served here: the product's own pure functions (`learned`, `standing`, `rank`) choose and learn in process, as
do their peers. Regret is the sum over the tasks of (best agent's value - chosen agent's value), with the true values.
"""

from bench.routing.report import TITLE, run

__all__ = ["TITLE", "run"]
