"""Who may move whose standing, as a pure rule."""

from __future__ import annotations

from contextlib import nullcontext
from typing import get_args

import pytest

from stentor.auth.principal import Principal
from stentor.core.errors import Forbidden
from stentor.domains.registry import authorization
from stentor.domains.registry.authorization import AgentAction
from stentor.domains.registry.model import Agent, Runtime, RuntimeKind
from tests.domains.agents import agent
from tests.requirements import requirement

ACTIONS: tuple[AgentAction, ...] = get_args(AgentAction)
PERSON = Principal("admin", "admin", frozenset(("read", "write", "delete", "admin")))
BOT = Principal("bot", "agent", frozenset(("read", "write")))
RUN_HERE: tuple[RuntimeKind, ...] = ("http", "llm", "command")
ADMIN_BOT = Principal("bot", "agent", frozenset(("read", "write", "admin")))


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("key_name", [None, "admin", "bot"])
def test_a_person_moves_every_agent_even_one_that_works_with_the_same_key(
    action: AgentAction, key_name: str | None
) -> None:
    authorization.authorize_change(PERSON, action, agent(key_name=key_name))


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_agents_key_never_moves_its_own_agent(action: AgentAction) -> None:
    with pytest.raises(Forbidden):
        authorization.authorize_change(BOT, action, agent(key_name="bot"), submitted_by=["bot"])


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", [action for action in ACTIONS if action != "suspend"])
def test_the_permission_admin_does_not_let_an_agents_key_move_its_own_agent(action: AgentAction) -> None:
    inside = [agent(key_name=name, runtime=Runtime(kind)) for name in (None, "other") for kind in RUN_HERE]
    for own in (agent(key_name="bot"), agent(key_name=None), *inside):
        with pytest.raises(Forbidden):
            authorization.authorize_change(ADMIN_BOT, action, own, submitted_by=["bot"])


@requirement("registry.own-hand")
def test_an_agents_key_with_admin_may_suspend_its_own_agent() -> None:
    authorization.authorize_change(ADMIN_BOT, "suspend", agent(key_name="bot"))


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_agents_key_with_admin_moves_the_agent_of_another_key(action: AgentAction) -> None:
    authorization.authorize_change(ADMIN_BOT, action, agent(key_name="other"))


@requirement("registry.own-hand")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_agents_key_without_admin_moves_nobody_but_grades_what_it_submitted(action: AgentAction) -> None:
    for whom in (agent(key_name="other"), agent(key_name=None)):
        with pytest.raises(Forbidden):
            authorization.authorize_change(BOT, action, whom, submitted_by=["somebody", None])
        if action == "grade":
            authorization.authorize_change(BOT, action, whom, submitted_by=["somebody", None, "bot"])
        else:
            with pytest.raises(Forbidden):
                authorization.authorize_change(BOT, action, whom, submitted_by=["bot"])


@requirement("registry.own-hand")
def test_the_trust_of_what_is_no_agent_is_moved_by_others_with_admin() -> None:
    authorization.authorize_entity_change(PERSON, "trust", "dana", None)
    authorization.authorize_entity_change(ADMIN_BOT, "trust", "dana", None)
    for principal, entity in ((BOT, "dana"), (ADMIN_BOT, "bot")):
        with pytest.raises(Forbidden):
            authorization.authorize_entity_change(principal, "trust", entity, None)
    with pytest.raises(Forbidden):
        authorization.authorize_entity_change(ADMIN_BOT, "trust", "a-1", agent(key_name="bot"))


@requirement("registry.own-hand")
def test_an_agents_key_registers_nobody_with_more_than_the_defaults() -> None:
    authorization.authorize_registration(PERSON, (1.0, 1.0, 1.0), "auto")
    authorization.authorize_registration(ADMIN_BOT, (0.5, 0.5, 0.1), "monitored")
    authorization.authorize_registration(ADMIN_BOT, (0.5, 0.5, 0.5), "human")
    with pytest.raises(Forbidden):
        authorization.authorize_registration(ADMIN_BOT, (0.5, 0.6, 0.5), "monitored")
    with pytest.raises(Forbidden):
        authorization.authorize_registration(ADMIN_BOT, (0.5, 0.5, 0.5), "auto")


@requirement("registry.own-hand")
@pytest.mark.parametrize(
    ("known", "may"),
    [
        (agent(key_name="bot", status="quarantined"), False),
        (agent(key_name="bot", status="suspended"), False),
        (agent(key_name=None, status="quarantined"), False),
        (agent(key_name=None, status="suspended"), True),
        (agent(key_name="bot", status="suspended", archived_from="suspended"), False),
        (agent(key_name="bot", status="suspended", archived_from="active"), True),
        (agent(key_name="other", status="quarantined"), True),
        (agent(key_name="bot"), True),
    ],
)
def test_an_agents_key_registers_no_other_agent_in_place_of_one_that_it_may_not_bring_back(
    known: Agent, may: bool
) -> None:
    authorization.authorize_registration(PERSON, (0.5,), "monitored", [known])
    with nullcontext() if may else pytest.raises(Forbidden):
        authorization.authorize_registration(ADMIN_BOT, (0.5,), "monitored", [known])


@requirement("registry.own-hand")
def test_a_key_acts_for_its_own_agents_and_with_admin_for_those_without_a_key() -> None:
    own, open_, others = agent(key_name="bot"), agent(key_name=None), agent(key_name="other")
    for who, expected in ((PERSON, (True, True, True)), (ADMIN_BOT, (True, True, False)), (BOT, (True, False, False))):
        assert tuple(authorization.can_act_for(who, one) for one in (own, open_, others)) == expected
