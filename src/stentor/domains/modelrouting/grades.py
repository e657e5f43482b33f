"""Grading an answer of `auto`: the grade takes the place of the 1 that an ungraded answer counts as, once."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx, locks
from stentor.core.errors import Conflict, Forbidden, NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning.model import apply_grade
from stentor.domains.modelrouting import store
from stentor.domains.modelrouting.learning import KEPT_DAYS
from stentor.domains.modelrouting.model import Answer
from stentor.domains.modelrouting.records import Records

PREFIXES = ("chatcmpl-", "cmpl-", "resp_")
"""What OpenAI's routes put before the id of an answer."""
UNGRADED = 1.0


class Answers:
    def __init__(self, db: Database, runlog: RunLog, records: Records) -> None:
        self._db = db
        self._runlog = runlog
        self._records = records

    async def of(self, principal: Principal, answer_id: str) -> tuple[Answer, dict[str, Any]]:
        """An answer, and the decision that led to it as it stands in the run log. Raises NotFound."""

        def read(tx: Tx) -> tuple[Answer, dict[str, Any]]:
            answer = _seen(tx, principal, answer_id)
            return answer, store.metadata(tx, principal.tenant, answer.decision_id) or {}

        return await self._db.read(read)

    async def grade(self, principal: Principal, answer_id: str, value: float, comment: str | None) -> Answer:
        """Say what an answer was worth, in [0,1]. The same grade by the same key again answers as before.

        Raises NotFound, Forbidden, and Conflict for an answer that has another grade.
        """

        def work(tx: Tx) -> Answer:
            answer = _seen(tx, principal, answer_id)
            # An agent's key that judged what others asked for could have them sent to a model of its own.
            if principal.role != "admin" and answer.key_name != principal.name:
                raise Forbidden(f"The key {principal.name!r} has the role agent, so it grades answers to itself only.")
            if answer.grade is not None:
                if (answer.grade, answer.comment, answer.graded_by) == (value, comment, principal.name):
                    return answer
                raise Conflict(
                    f"The answer was graded {answer.grade:g} by {answer.graded_by!r}; an answer is graded once."
                )
            by = {"grade": value, "comment": comment, "graded_by": principal.name, "graded_at": tx.now}
            done = msgspec.structs.replace(answer, **by)
            store.grade(tx, principal.tenant, done)
            self._apply(tx, principal.tenant, done, value)
            return done

        return await self._db.write(work)

    def _apply(self, tx: Tx, tenant: str, answer: Answer, value: float) -> None:
        meta = {"grade": value, "by": answer.graded_by, "model": answer.model, "kind": answer.kind}
        if answer.comment is not None:
            meta["comment"] = answer.comment
        drafts = [EventDraft("answer_graded", "modelrouting", f"Graded {value:g}.", meta)]
        tx.lock(locks.model_lock(tenant, answer.model))
        known = store.find(tx, tenant, answer.model, answer.kind) if answer.learned else None
        if known is not None:
            weight = apply_grade(known, sample=answer.sample, was=UNGRADED, grade=value, now=tx.now)
            store.put(tx, tenant, weight)
            tx.after_commit(lambda: self._records.put(tenant, weight))
            rewards, outcomes = weight.counted_rewards
            known_now = {"model": answer.model, "kind": answer.kind, "rewards": rewards, "outcomes": outcomes}
            message = f"{answer.model} has a grade instead of a success at {answer.kind}."
            drafts.append(EventDraft("learning_updated", "modelrouting", message, known_now))
        self._runlog.append(tx, tenant, drafts, parent=answer.answer_id)


def _seen(tx: Tx, principal: Principal, answer_id: str) -> Answer:
    """Raises NotFound, the same for an answer that the caller does not see as for none."""
    plain = answer_id
    for prefix in PREFIXES:
        plain = plain.removeprefix(prefix)
    answer = store.answer(tx, principal.tenant, plain)
    if answer is None or (principal.is_bound_agent and answer.key_name != principal.name):
        raise NotFound(
            f"No answer of the model auto has this id. Answers that ended can be graded for {KEPT_DAYS} days."
        )
    return answer
