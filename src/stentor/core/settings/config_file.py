"""The configuration file `stentor.toml`: any setting by its area and name, such as `port` in `[server]`.

`apply_config_file` makes its values environment variables of the process, unless they are set already, so that
everything that reads the environment uses them. `[environment]` takes variables by their own names, such as
SERVICE_API_KEY_CI. The template that `stentor init` writes comes from the descriptions of the settings.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from stentor.core.errors import StartRefused
from stentor.core.settings import Settings, parsers, setting_infos
from stentor.core.settings.parsers import SettingInfo

VARIABLE = "SERVICE_CONFIG_FILE"
"""Environment variable with the path of the file; empty means none."""
DEFAULT_PATH = Path("stentor.toml")
ENVIRONMENT_TABLE = "environment"
ENVIRONMENT_PREFIXES = ("SERVICE_API_KEY_", "SERVICE_MEMORY_ACCESS_")
_PREFIX = "SERVICE_"
_SIMILARITY = 0.85
"""Least similarity (difflib, 0 to 1) of two names of which one is taken for a mistake in the other."""
TEMPLATE_SETTINGS = (
    "storage.data_dir",
    "storage.database_url",
    "server.host",
    "server.port",
    "server.rate_limit",
    "tls.enabled",
    "tls.cert",
    "tls.key",
    "dashboard.port",
    "memory.vault_dir",
    "llm.openai_key",
    "llm.budgets",
    "sandbox.command_agents",
)
"""The settings that people change most; `stentor init` writes them."""
TEMPLATE_EXAMPLES = {
    "storage.database_url": "postgresql://stentor:PASSWORD@localhost/stentor",
    "tls.cert": "/etc/stentor/fullchain.pem",
    "tls.key": "/etc/stentor/privkey.pem",
    "memory.vault_dir": "/home/me/Vault",
    "llm.openai_key": "sk-...",
    "llm.budgets": "key:*:usd/month=20",
}
"""Values that the template shows for settings without a default."""


def apply_config_file(environ: MutableMapping[str, str]) -> Path | None:
    """Set the variables of the configuration file that are not set yet, and return its path, or None without a file.

    The file is SERVICE_CONFIG_FILE, else `stentor.toml` in the working directory. Raises StartRefused for a file that
    is named but cannot be read, and for one with errors.
    """
    path = find_config_file(environ)
    if path is None:
        return None
    for variable, value in read_config_file(path).items():
        environ.setdefault(variable, value)
    # Absolute, because a process that this one starts may have another working directory.
    environ[VARIABLE] = str(path)
    return path


def find_config_file(environ: Mapping[str, str]) -> Path | None:
    """Return the absolute path of the configuration file; None if no file is used."""
    if VARIABLE in environ:
        return Path(environ[VARIABLE]).absolute() if environ[VARIABLE] else None
    return DEFAULT_PATH.absolute() if DEFAULT_PATH.is_file() else None


def read_config_file(path: Path) -> dict[str, str]:
    """Return the environment variables that the file amounts to. Raises StartRefused, which names file and setting."""
    try:
        # Editors on Windows begin a file with a byte order mark.
        document = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise StartRefused(f"{path} cannot be read: {error.strerror}. Check {VARIABLE}.") from None
    except UnicodeDecodeError:
        raise StartRefused(f"{path} is not valid TOML: its text is not UTF-8. Save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise StartRefused(f"{path} is not valid TOML: {error}.") from None
    try:
        return dict(_variables(document))
    except ValueError as error:
        raise StartRefused(f"{path}: {error}") from None


def name_origin(info: SettingInfo, environ: Mapping[str, str]) -> str:
    """Return what people edit to change a setting: its key in the configuration file, or its variable."""
    names = _names_in_file(environ)
    return f"{find_config_file(environ)}: `{names[info.env]}`" if info.env in names else info.env


def explain_variables(message: str, environ: Mapping[str, str]) -> str:
    """Return a sentence with the keys in the configuration file of the variables that `message` names, or ''."""
    names = _names_in_file(environ)
    keys = [
        f"{variable} as `{names[variable]}`"
        for variable in re.findall(r"\b[A-Z][A-Z_]+\b", message)
        if variable in names
    ]
    return f"{find_config_file(environ)} sets {', '.join(dict.fromkeys(keys))}." if keys else ""


def _names_in_file(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the keys in the configuration file by their variables, without those that the environment overrides."""
    path = find_config_file(environ)
    try:
        values = {} if path is None else read_config_file(path)
    except StartRefused:
        values = {}
    # The file was already copied into the environment, so the values are compared.
    known = setting_infos().items()
    return {info.env: name for name, info in known if info.env in values and values[info.env] == environ.get(info.env)}


def find_misspelled_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that Stentor does not read and whose name is nearly that of a setting.

    Only for these: other programs, such as Kubernetes, set variables that begin with SERVICE_ too.
    """
    known = {info.env for info in setting_infos().values()} | {VARIABLE}
    keys = [env.removeprefix(_PREFIX) for env in known if env.startswith(_PREFIX)]
    sentences = []
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX) or variable in known or variable.startswith(ENVIRONMENT_PREFIXES):
            continue
        key = variable.removeprefix(_PREFIX)
        longer = sorted(known_key for known_key in keys if known_key.startswith(f"{key}_"))
        # Without the prefix, which would make all names similar.
        if similar := difflib.get_close_matches(key, keys, 1, _SIMILARITY) or longer[:3]:
            names = " or ".join(_PREFIX + known_key for known_key in similar)
            sentences.append(f"{variable} is set, but no setting has this name; did you mean {names}?")
    return sentences


def _variables(document: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    infos = setting_infos()
    areas = [*dict.fromkeys(name.partition(".")[0] for name in infos), ENVIRONMENT_TABLE]
    for area, table in document.items():
        if not isinstance(table, dict):
            raise ValueError(f"`{area}` must be in a table, such as `[server]`{_suggest(area, infos)}")
        if area not in areas:
            similar = [f"`[{known}]`" for known in difflib.get_close_matches(area, areas, 1)]
            hint = f"did you mean {similar[0]}?" if similar else f"the tables are {', '.join(areas)}."
            raise ValueError(f"unknown table `[{area}]`; {hint}")
        for key, value in table.items():
            name = f"{area}.{key}"
            if area == ENVIRONMENT_TABLE:
                variable = _require_known_variable(key)
            elif name in infos:
                variable = infos[name].env
            else:
                raise ValueError(f"unknown setting `{name}`{_suggest(name, infos)}")
            # The values of a line list may contain commas.
            separator = "\n" if name in infos and infos[name].parse is parsers.line_list else ","
            yield variable, _value_text(name, value, separator)


def _require_known_variable(variable: str) -> str:
    if not variable.startswith(ENVIRONMENT_PREFIXES) and variable not in {i.env for i in setting_infos().values()}:
        raise ValueError(f"`{variable}` in `[{ENVIRONMENT_TABLE}]` is not a variable that Stentor reads.")
    return variable


def _find_similar_in_table(name: str, infos: Mapping[str, SettingInfo]) -> list[str]:
    """Return the setting of the same table with the most similar name, ignoring the table's prefix, which all share."""
    area, _, key = name.rpartition(".")
    keys = [known.removeprefix(f"{area}.") for known in infos if known.startswith(f"{area}.")]
    return [f"{area}.{known}" for known in difflib.get_close_matches(key, keys, 1)]


def _suggest(name: str, infos: Mapping[str, SettingInfo]) -> str:
    by_key = [known for known in infos if known.rpartition(".")[2] == name.rpartition(".")[2]]
    similar = by_key or _find_similar_in_table(name, infos) or difflib.get_close_matches(name, infos, 3)
    if not similar:
        return "; `stentor config` lists all."
    return f"; did you mean {' or '.join(f'`{known}`' for known in similar)}?"


def _value_text(name: str, value: object, separator: str) -> str:
    """Return a value as its environment variable holds it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return separator.join(value)
    raise ValueError(f"`{name}` must be a text, a number, true or false, or a list of texts.")


def render_template() -> str:
    """Return the text of a new configuration file: the usual settings, commented out, each with its description."""
    infos, defaults = setting_infos(), Settings()
    lines = [
        "# Settings of Stentor. Remove the `#` before a line to change it.",
        "# Environment variables and command-line options win over this file.",
        "# `stentor config` lists all settings with their values; each can be set here as `name = value` in its table.",
    ]
    area = ""
    for name in TEMPLATE_SETTINGS:
        info = infos[name]
        if name.partition(".")[0] != area:
            area = name.partition(".")[0]
            lines += ["", f"[{area}]"]
        value = TEMPLATE_EXAMPLES.get(name, defaults.get(name))
        key = name.partition(".")[2]
        lines += ["", f"# {info.doc}" + (f" Environment: {info.env}."), f"# {key} = {_toml_value(value)}"]
    return "\n".join(lines) + "\n"


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
