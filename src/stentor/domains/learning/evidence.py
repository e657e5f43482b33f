"""How much the outcomes of an agent at one task type say about its next one: pure.

An outcome has a reward in [0,1]: 0 for a failure, else what the success was worth. The last 50 count in full, until the
agent's results change abruptly. From then on the outcomes before the change, of every agent at that task type, count
together as at most `KEPT`: whatever changed may have changed for the others too. How the constants were found is in
docs/decisions/0036-routing-that-learns.md.
"""

from __future__ import annotations

import math

MAX_OUTCOMES = 50
"""Outcomes that are remembered, newest last."""
MAX_OLD_WEIGHT = 12.0
"""What all outcomes from before a change count as, at most."""
CHANGE_THRESHOLD = 12.0
"""Twice the log likelihood ratio from which on a drop of the mean counts as a change."""
MIN_SEGMENT = 4
"""Outcomes that there must be on each side of a change."""
VARIANCE_PRIOR = 0.5
"""Variance that must be missing before rewards count as steady: about two outcomes' worth."""
NO_CHANGE = -1
"""No change is known: every remembered outcome counts in full."""

_LETTERS = b"F" + b"S" * 255
"""The letter of each encoded reward."""


def encode_reward(reward: float) -> str:
    """Two hexadecimal digits for a reward in [0,1]; a success is never 0, so that it can be told from a failure."""
    return f"{round(reward * 255):02x}" if reward <= 0 else f"{max(1, round(reward * 255)):02x}"


def decode_rewards(rewards: str) -> list[float]:
    """Rewards in [0,1], oldest first."""
    return [byte / 255 for byte in bytes.fromhex(rewards)]


def rewards_from_letters(recent: str) -> str:
    """Rewards of outcomes that are known as S and F only, as an earlier version kept them."""
    return "".join("ff" if letter == "S" else "00" for letter in recent)


def is_consistent(rewards: str, recent: str) -> bool:
    """Whether both tell of the same outcomes: what is worth something is a success. A grade can make one worth 0."""
    told = bytes.fromhex(rewards).translate(_LETTERS).decode()
    if told == recent:
        return True
    return len(told) == len(recent) and all(one == "F" or other == "S" for one, other in zip(told, recent, strict=True))


def append_reward(rewards: str, reward: float) -> str:
    return (rewards + encode_reward(reward))[-2 * MAX_OUTCOMES :]


def replace_reward(rewards: str, age: int, reward: float) -> str | None:
    """With the reward of the outcome that `age` others came after; None when it is not remembered any more."""
    start = len(rewards) - 2 * (age + 1)
    if age < 0 or start < 0:
        return None
    return rewards[:start] + encode_reward(reward) + rewards[start + 2 :]


def sum_rewards(rewards: str, since_change: int) -> tuple[float, float]:
    """Sum of the rewards and number of outcomes, those from before the last change scaled down to `KEPT`."""
    values = bytes.fromhex(rewards)
    if since_change == NO_CHANGE or since_change >= len(values):
        return sum(values) / 255, float(len(values))
    split = len(values) - since_change
    share = min(1.0, MAX_OLD_WEIGHT / split)
    return (sum(values[split:]) + share * sum(values[:split])) / 255, since_change + share * split


def relative_variation(rewards: str) -> float:
    """How much the rewards vary, as a share of what successes and failures alone would with the same mean.

    1 where nothing is graded; near 0 where an agent is worth the same each time, so that few outcomes say enough.
    """
    encoded = bytes.fromhex(rewards)
    if encoded.count(0) + encoded.count(255) == len(encoded):
        return 1.0
    values = decode_rewards(rewards)
    total = sum(values)
    scatter = sum(value * value for value in values) - total * total / max(1, len(values))
    most = total - total * total / max(1, len(values))
    return min(1.0, (VARIANCE_PRIOR + scatter) / (VARIANCE_PRIOR + most))


def find_drop(rewards: str, since_change: int) -> int | None:
    """How many outcomes ago the results dropped, or None: a likelihood ratio test over every split of those since the
    last change. A rise needs no test, because an agent that is better than expected is chosen anyway.
    """
    values = bytes.fromhex(rewards)
    if since_change != NO_CHANGE:
        values = values[max(0, len(values) - since_change) :]
    number, total = len(values), sum(values) / 255
    if number < 2 * MIN_SEGMENT:
        return None
    whole = _likelihood(total, number)
    best, found, newer = CHANGE_THRESHOLD, None, 0.0
    for length in range(1, number - MIN_SEGMENT + 1):
        newer += values[number - length] / 255
        older = total - newer
        if length < MIN_SEGMENT or newer / length >= older / (number - length):
            continue
        ratio = 2 * (_likelihood(newer, length) + _likelihood(older, number - length) - whole)
        if ratio > best:
            best, found = ratio, length
    return found


def _likelihood(successes: float, number: int) -> float:
    """Log likelihood of a share at its own maximum; graded outcomes count as parts of a success."""
    share = successes / number
    if share <= 0 or share >= 1:
        return 0.0
    return successes * math.log(share) + (number - successes) * math.log(1 - share)
