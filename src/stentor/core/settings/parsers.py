"""What a setting is made of: its description, and how each type of value is read. A ValueError says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
TRUE, FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclass(frozen=True)
class SettingInfo:
    env: str
    doc: str
    parse: Callable[[str], Any]
    secret: bool = False


def text(value: str) -> str:
    return value


def boolean(value: str) -> bool:
    if value.lower() in TRUE | FALSE:
        return value.lower() in TRUE
    raise ValueError("must be true or false")


def number(low: float, high: float, kind: Callable[[str], T]) -> Callable[[str], T]:
    def parse(value: str) -> T:
        try:
            parsed = kind(value)
        except ValueError:
            raise ValueError(f"must be a number from {low:g} to {high:g}") from None
        if not low <= parsed <= high:  # type: ignore[operator]
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return parsed

    return parse


def optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """None for a blank value."""
    return lambda value: parse(value) if value else None


def optional_path(value: str) -> Path | None:
    return Path(value) if value else None


def non_blank(value: str) -> str:
    if not value:
        raise ValueError("must not be blank")
    return value


def host_list(value: str) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in value.split(",") if part.strip())


def text_list(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def setting(env: str, default: T, doc: str, parse: Callable[[str], T], *, secret: bool = False) -> T:
    meta = {"meta": SettingInfo(env, doc, parse, secret)}
    return field(default=default, metadata=meta)
