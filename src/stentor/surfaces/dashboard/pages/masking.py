"""Values of an agent's runtime without what may be a secret in them: pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from stentor.core.security.redaction import MASK, Redactor

_NAMES_SECRET = re.compile(r"(?i)(key|token|secret|passwd|password|authorization|credentials?|cookie|signature)$")
_looks = Redactor()
_OPTIONS = ("model", "max_tokens", "temperature", "top_p", "stop", "seed")


def masked(value: Any, name: str = "") -> Any:
    """The same value, masked under a name that promises a secret, in addresses, and after such an argument."""
    if value is not None and _NAMES_SECRET.search(name):
        return MASK
    if isinstance(value, dict):
        return {key: masked(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        before = ["", *value]
        return [masked(one, _flag(last)) for last, one in zip(before, value, strict=False)]
    return _text(value) if isinstance(value, str) else value


def _flag(argument: Any) -> str:
    """`--api-key` promises that the next argument is one; `--api-key=...` has it in itself."""
    return argument if isinstance(argument, str) and argument.startswith("-") and "=" not in argument else ""


def _text(text: str) -> str:
    if text.lower().startswith(("http://", "https://")):
        head, question, _ = text.partition("?")
        scheme, _, rest = head.partition("://")
        user, at, _ = rest.partition("/")[0].rpartition("@")
        return f"{scheme}://" + rest.removeprefix(f"{user}{at}") + (f"?{MASK}" if question else "")
    name, equals, _ = text.partition("=")
    if equals and _NAMES_SECRET.search(name) and " " not in name:
        return f"{name}={MASK}"
    return _looks.redact(text)


def runtime(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What a page tells of how an agent works: names and values. Arguments, prompts and other options are counted."""
    rows = [("Runtime", str(found["kind"]))]
    options = found.get("options") or {}
    command = found.get("command") or []
    if found.get("name"):
        rows.append(("Built in as", str(found["name"])))
    if found.get("endpoint"):
        rows.append(("Endpoint", origin(str(found["endpoint"]))))
    if command:
        rows.append(("Program", f"{str(command[0]).rsplit('/', 1)[-1]}, {len(command) - 1} arguments"))
    rows += [(name.replace("_", " ").capitalize(), str(options[name])) for name in _OPTIONS if name in options]
    others = sorted(name for name in options if name not in _OPTIONS)
    return rows + ([("Other options", ", ".join(others))] if others else [])


def origin(address: str) -> str:
    """Scheme and host of an address; its path and query may hold a secret."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}"
    except ValueError:
        return MASK
