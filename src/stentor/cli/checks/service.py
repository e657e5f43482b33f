"""The running service: who holds the folder, and how it feels."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from stentor.cli.checks.finding import Finding, Situation
from stentor.cli.connection import checked_url, is_loopback
from stentor.cli.output import CommandFailed
from stentor.core.filesystem import read_lock_holder

SECONDS = 5


def owner(situation: Situation) -> Iterator[Finding]:
    folder = situation.settings.data_dir
    holder = read_lock_holder(folder)
    if holder is None:
        yield Finding("ok", "service", f"No service holds {folder}; `stentor serve` starts one.")
    elif holder.gateway is None:
        yield Finding("warning", "service", f"Process {holder.pid} holds {folder} and answers nowhere yet: ask again.")
    else:
        yield Finding("ok", "service", f"Process {holder.pid} holds {folder} since {holder.since}.")
        yield health("service", holder.gateway)


def address(situation: Situation) -> Iterator[Finding]:
    if situation.settings.client_url:
        yield health("SERVICE_URL", situation.settings.client_url)


def health(check: str, where: str) -> Finding:
    """What its detailed health says."""
    try:
        url = checked_url(where)
    except CommandFailed as error:
        return Finding("problem", check, str(error))
    shown = url.copy_with(userinfo=b"")
    try:
        with httpx.Client(base_url=url, timeout=SECONDS, trust_env=not is_loopback(url)) as http:
            answer = http.get("/api/v1/health/detailed")
            components = answer.json()["components"]
            down = [name for name, one in components.items() if one["status"] == "unavailable"]
    except httpx.TransportError as error:
        return Finding("problem", check, f"Nothing answers on {shown} ({type(error).__name__}): is it running there?")
    except (ValueError, KeyError, TypeError, AttributeError):
        return Finding("problem", check, f"What answers on {shown} is not Stentor: check the address.")
    if down:
        return Finding("problem", check, f"{shown} answers, but is not well: {', '.join(down)}. Its log says why.")
    return Finding("ok", check, f"{shown} answers and is well.")
