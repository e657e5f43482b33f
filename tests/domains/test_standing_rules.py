"""Who may move whose standing, as a pure rule."""

from __future__ import annotations

from contextlib import nullcontext
from typing import get_args

import pytest

from stentor.auth.principal import Principal
from stentor.core.errors import Forbidden
from stentor.domains.registry import standing
from stentor.domains.registry.model import Agent, Runtime, RuntimeKind
from stentor.domains.registry.standing import Action
from tests.domains.agents import agent
from tests.requirements import requirement

ACTIONS: tuple[Action, ...] = get_args(Action)
PERSON = Principal("admin", "admin", frozenset(("read", "write", "delete", "admin")))
BOT = Principal("bot", "agent", frozenset(("read", "write")))
RUN_HERE: tuple[RuntimeKind, ...] = ("http", "llm", "command")
ADMIN_BOT = Principal("bot", "agent", frozenset(("read", "write", "admin")))


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("key_name", [None, "admin", "bot"])
def test_a_person_moves_every_agent_even_one_that_works_with_the_same_key(action: Action, key_name: str | None) -> None:
    standing.may_move(PERSON, action, agent(key_name=key_name))


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_agents_key_never_moves_its_own_agent(action: Action) -> None:
    with pytest.raises(Forbidden):
        standing.may_move(BOT, action, agent(key_name="bot"), submitted_by=["bot"])


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", [action for action in ACTIONS if action != "suspend"])
def test_the_permission_admin_does_not_let_an_agents_key_move_its_own_agent(action: Action) -> None:
    inside = [agent(key_name=name, runtime=Runtime(kind)) for name in (None, "other") for kind in RUN_HERE]
    for own in (agent(key_name="bot"), agent(key_name=None), *inside):
        with pytest.raises(Forbidden):
            standing.may_move(ADMIN_BOT, action, own, submitted_by=["bot"])


@requirement("registry.own-hand")
def test_an_agents_key_with_admin_may_suspend_its_own_agent() -> None:
    standing.may_move(ADMIN_BOT, "suspend", agent(key_name="bot"))


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_agents_key_with_admin_moves_the_agent_of_another_key(action: Action) -> None:
    standing.may_move(ADMIN_BOT, action, agent(key_name="other"))


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_agents_key_without_admin_moves_nobody_but_grades_what_it_submitted(action: Action) -> None:
    for whom in (agent(key_name="other"), agent(key_name=None)):
        with pytest.raises(Forbidden):
            standing.may_move(BOT, action, whom, submitted_by=["somebody", None])
        if action == "grade":
            standing.may_move(BOT, action, whom, submitted_by=["somebody", None, "bot"])
        else:
            with pytest.raises(Forbidden):
                standing.may_move(BOT, action, whom, submitted_by=["bot"])


@requirement("registry.own-hand")
def test_the_trust_of_what_is_no_agent_is_moved_by_others_with_admin() -> None:
    standing.may_move_entity(PERSON, "trust", "dana", None)
    standing.may_move_entity(ADMIN_BOT, "trust", "dana", None)
    for principal, entity in ((BOT, "dana"), (ADMIN_BOT, "bot")):
        with pytest.raises(Forbidden):
            standing.may_move_entity(principal, "trust", entity, None)
    with pytest.raises(Forbidden):
        standing.may_move_entity(ADMIN_BOT, "trust", "a-1", agent(key_name="bot"))


@requirement("registry.own-hand")
def test_an_agents_key_registers_nobody_with_more_than_the_defaults() -> None:
    standing.may_register(PERSON, (1.0, 1.0, 1.0), "auto")
    standing.may_register(ADMIN_BOT, (0.5, 0.5, 0.1), "monitored")
    standing.may_register(ADMIN_BOT, (0.5, 0.5, 0.5), "human")
    with pytest.raises(Forbidden):
        standing.may_register(ADMIN_BOT, (0.5, 0.6, 0.5), "monitored")
    with pytest.raises(Forbidden):
        standing.may_register(ADMIN_BOT, (0.5, 0.5, 0.5), "auto")


@requirement("registry.own-hand")
@pytest.mark.parametrize(
    ("known", "may"),
    [
        (agent(key_name="bot", status="quarantined"), False),
        (agent(key_name="bot", status="suspended"), False),
        (agent(key_name=None, status="quarantined"), False),
        (agent(key_name=None, status="suspended"), True),
        (agent(key_name="other", status="quarantined"), True),
        (agent(key_name="bot"), True),
    ],
)
def test_an_agents_key_registers_no_other_agent_in_place_of_one_that_it_may_not_bring_back(
    known: Agent, may: bool
) -> None:
    standing.may_register(PERSON, (0.5,), "monitored", [known])
    with nullcontext() if may else pytest.raises(Forbidden):
        standing.may_register(ADMIN_BOT, (0.5,), "monitored", [known])


@requirement("registry.own-hand")
def test_a_key_acts_for_its_own_agents_and_with_admin_for_those_without_a_key() -> None:
    own, open_, others = agent(key_name="bot"), agent(key_name=None), agent(key_name="other")
    for who, expected in ((PERSON, (True, True, True)), (ADMIN_BOT, (True, True, False)), (BOT, (True, False, False))):
        assert tuple(standing.acts_for(who, one) for one in (own, open_, others)) == expected
