"""Evidence: what an agent's past outcomes at one task type say about its next one. Pure.

Each outcome has a reward from 0 to 1: 0 for a failure, its performance for a success, the grade for a graded task. The
last 50 count, all alike, until the results of any agent at the task type drop abruptly. Then all outcomes from before
the drop count together as at most `MAX_OLD_WEIGHT`, also those of other agents: whatever changed may affect them too.
The newest `KEPT_GRADES` grades are stored longer than other outcomes (`make_room`).

If some outcomes are graded, the others are estimated from the grades (`scale_ungraded`).

How the constants were chosen: docs/decisions/0036-routing-that-learns.md. The formula is in `routing/ranking.py`.
"""

from __future__ import annotations

import math
from statistics import fmean

MAX_OUTCOMES = 50
"""Number of outcomes that are stored, newest last."""
MAX_OLD_WEIGHT = 12.0
"""All outcomes before a change count together as at most this many."""
CHANGE_THRESHOLD = 12.0
"""A drop of the mean is a change if twice its log likelihood ratio is above this."""
MIN_SEGMENT = 4
"""Minimum number of outcomes on each side of a change."""
VARIANCE_PRIOR = 0.5
"""Prior of the variance, worth about two outcomes, so that a few equal rewards do not count as steady."""
NO_CHANGE = -1
"""Value of `since_change` without a known change: every stored outcome counts in full."""

UNGRADED_WEIGHT = 2.0
"""The estimate of an ungraded success starts from this many grades of 1."""
LATE_GRADE = MAX_OUTCOMES // 2
"""If an outcome has this many later ones of its agent, its grade takes the place of a newer outcome."""
KEPT_GRADES = 4
"""This many of the newest grades stay among the stored outcomes. Where one in twenty is graded, the last 50 outcomes
have two or three grades or none, so a bad agent would often count as good, and a good one as bad.
"""
GOOD_GRADE = 0.5
"""An answer with at least this grade is good; one such grade shows that not only bad answers are graded."""

_FULL_GRADE = bytes((*range(254), 255, 255))
"""Translation table that makes a grade of 1 a full reward."""


def encode_reward(reward: float, *, graded: bool = False) -> str:
    """Encode a reward in [0,1] as two hexadecimal digits: of 255 parts an even number for a grade, else an odd one.

    Only 0 itself becomes 00, the code of a failure and of a grade of 0. A grade of 1 is fe, an ungraded success ff.
    """
    if reward <= 0:
        return "00"
    parts = min(254, max(2, 2 * round(reward * 127.5))) if graded else min(255, 2 * int(reward * 127.5) + 1)
    return f"{parts:02x}"


def decode_rewards(rewards: str, ungraded: float = 1.0) -> bytes:
    """Decode rewards, oldest first, to parts of 255; those of ungraded successes are multiplied by `ungraded`."""
    parts = bytes.fromhex(rewards)
    if ungraded != 1:
        parts = bytes(round(part * ungraded) if part % 2 else part for part in parts)
    return parts.translate(_FULL_GRADE)


def mean_reward(rewards: str) -> float:
    """Return the mean of some rewards, from 0 to 1."""
    return fmean(decode_rewards(rewards)) / 255


def list_grades(rewards: str) -> list[float]:
    """Return the grades above 0."""
    return [value / 254 for value in bytes.fromhex(rewards) if value and not value % 2]


def scale_ungraded(rewards: str, recent: str) -> float:
    """Return the factor, at most 1, by which the mean reward of ungraded successes becomes their expected grade.

    Among a tenth of graded outcomes that are all bad, the other nine tenths are most likely as bad, whatever the agent
    itself reported as their performance.
    """
    parts = bytes.fromhex(rewards)
    ungraded = [part for part in parts if part % 2]
    if not ungraded:
        return 1.0
    # A grade of 0 has the code of a failure, but the letter of a success.
    zeros = recent.count("S") - len(parts) + parts.count(0)
    grades = list_grades(rewards)
    estimate = (UNGRADED_WEIGHT + sum(grades)) / (UNGRADED_WEIGHT + len(grades) + zeros)
    return min(1.0, 255 * estimate / fmean(ungraded))


def append_reward(rewards: str, reward: float) -> str:
    """Append a reward and drop the oldest one beyond `MAX_OUTCOMES`."""
    return (rewards + encode_reward(reward))[-2 * MAX_OUTCOMES :]


def make_room(rewards: str, recent: str, since_change: int) -> tuple[str, str, int]:
    """Make room in a full record whose oldest outcome is one of the newest `KEPT_GRADES` grades.

    The oldest outcome without a grade is dropped instead of it. `recent` has the letters of the outcomes. Returns
    rewards, letters and outcomes since the change, unchanged if simply the oldest outcome is to be dropped.
    """
    parts, letters = bytes.fromhex(rewards), recent[-MAX_OUTCOMES:]
    if len(parts) < MAX_OUTCOMES or len(letters) < len(parts) or not _is_grade(parts[0], letters[0]):
        return rewards, recent, since_change
    ungraded = [n for n in range(len(parts)) if not _is_grade(parts[n], letters[n])]
    if len(parts) - len(ungraded) > KEPT_GRADES:
        return rewards, recent, since_change
    at = ungraded[0]
    if since_change != NO_CHANGE and at >= len(parts) - since_change:
        since_change -= 1
    return rewards[: 2 * at] + rewards[2 * at + 2 :], letters[:at] + letters[at + 1 :], since_change


def _is_grade(part: int, letter: str) -> bool:
    # A grade of 0 has the code of a failure, but the letter of a success.
    return part % 2 == 0 and letter == "S"


def replace_reward(rewards: str, age: int, grade: float) -> str | None:
    """Put a grade for the outcome `age` outcomes ago (0 is the newest); None if it changes nothing.

    If the outcome is no longer stored, or will soon not be, the grade takes the place of the newest ungraded success:
    it says more about the agent than an outcome that nobody has judged, and would be dropped with the outcome.
    """
    if age < 0:
        return None
    parts = bytes.fromhex(rewards)
    at = len(parts) - 1 - age
    # If failures of an outage were removed, the outcome may be at another position.
    if at < 0 or age >= LATE_GRADE or not parts[at] % 2:
        at = next((n for n in range(len(parts) - 1, -1, -1) if parts[n] % 2), -1)
    if at < 0:
        return None
    start = 2 * at
    return rewards[:start] + encode_reward(grade, graded=True) + rewards[start + 2 :]


def sum_rewards(rewards: str, since_change: int, ungraded: float = 1.0) -> tuple[float, float]:
    """Return sum and number of the rewards; those before the last change are scaled down to `MAX_OLD_WEIGHT`.

    The rewards of ungraded successes are multiplied by `ungraded`.
    """
    values = decode_rewards(rewards, ungraded)
    if since_change == NO_CHANGE or since_change >= len(values):
        return sum(values) / 255, float(len(values))
    split = len(values) - since_change
    share = min(1.0, MAX_OLD_WEIGHT / split)
    return (sum(values[split:]) + share * sum(values[:split])) / 255, since_change + share * split


def relative_variation(rewards: str) -> float:
    """Return the variance of the rewards relative to that of ungraded outcomes with the same mean.

    1 if nothing is graded; near 0 if the grades are alike, so that few outcomes say enough.
    """
    parts = decode_rewards(rewards)
    if parts.count(0) + parts.count(255) == len(parts):
        return 1.0
    values = [part / 255 for part in parts]
    total = sum(values)
    squares = total * total / max(1, len(values))
    variation = sum(value * value for value in values) - squares
    # With rewards of 0 and 1 only, the sum of the squares is the sum of the rewards.
    max_variation = total - squares
    return min(1.0, (VARIANCE_PRIOR + variation) / (VARIANCE_PRIOR + max_variation))


def find_drop(rewards: str, since_change: int) -> int | None:
    """Return how many outcomes ago the results dropped, or None.

    A likelihood ratio test over every split of the outcomes since the last change. A rise needs no test, because an
    agent that is better than expected is chosen anyway.
    """
    values = decode_rewards(rewards)
    if since_change != NO_CHANGE:
        values = values[max(0, len(values) - since_change) :]
    number, total = len(values), sum(values) / 255
    if number < 2 * MIN_SEGMENT:
        return None
    likelihood_without_change = _log_likelihood(total, number)
    best_ratio, best_length, newer = CHANGE_THRESHOLD, None, 0.0
    # From the newest outcome back, so that the sum of the newer part only grows. Lengths below MIN_SEGMENT are visited
    # only to compute the sum.
    for length in range(1, number - MIN_SEGMENT + 1):
        newer += values[number - length] / 255
        older = total - newer
        if length < MIN_SEGMENT or newer / length >= older / (number - length):
            continue
        likelihood = _log_likelihood(newer, length) + _log_likelihood(older, number - length)
        ratio = 2 * (likelihood - likelihood_without_change)
        if ratio > best_ratio:
            best_ratio, best_length = ratio, length
    return best_length


def _log_likelihood(successes: float, number: int) -> float:
    """Return the maximum log likelihood of the successes; a graded outcome counts as a fraction of one."""
    share = successes / number
    if share <= 0 or share >= 1:
        return 0.0
    return successes * math.log(share) + (number - successes) * math.log(1 - share)
