"""Where each setting comes from: defaults < system file < user file < --config FILE < environment < command line."""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankpatrol.config.settings import BY_NAME, SETTINGS, Setting
from rankpatrol.core.errors import BadInput, NoPermission, UsageProblem
from rankpatrol.core.records import Record

SYSTEM_FILE = Path("/etc/rankpatrol/config.toml")
_LARGEST_BYTES = 1 << 20
# What parent, shim and probe tell each other, and where `pause` keeps its switch: no settings.
_BETWEEN_OURSELVES = frozenset(
    f"RANKPATROL_{name}"
    for name in ("RUN_DIR", "RESUME_FROM", "MARKS_FD", "PROBE_PARENT", "PROBE_SOCKET", "STACKS_FD", "STATE_DIR", "USER_PYTHONPATH")
)


class Origin(Record, frozen=True, kw_only=True):
    """One setting's value, and which layer gave it. `overruled`: the layers below that had a value too, nearest first."""

    value: Any
    layer: str
    overruled: tuple[str, ...] = ()


class Layer(Record, frozen=True):
    """The values of one place, by setting."""

    name: str
    values: dict[str, Any]


class Sources(Record, frozen=True, kw_only=True):
    """Where to look. `config` is the file that --config names."""

    system: Path | None = SYSTEM_FILE
    user: Path | None = None
    config: Path | None = None
    environment: Mapping[str, str] = {}

    @classmethod
    def here(cls, config: Path | None = None) -> "Sources":
        """The files of this user on this machine, and this process's environment."""
        return cls(system=SYSTEM_FILE, user=user_file(os.environ), config=config, environment=dict(os.environ))


def user_file(environment: Mapping[str, str]) -> Path | None:
    """This user's file (XDG base directories), or None for a user without a home of its own."""
    base = environment.get("XDG_CONFIG_HOME")
    try:
        path = (Path(base) if base else Path.home() / ".config") / "rankpatrol" / "config.toml"
        path.exists()
    except (RuntimeError, PermissionError):
        return None  # sudo -u may leave HOME as it was: a home that is closed to us holds nothing of ours
    return path


def resolve(sources: Sources, given: Mapping[str, Any]) -> dict[str, Origin]:
    """Every setting's value and origin; `given` is the command line's, None where it was silent. Raises BadInput, NoPermission."""
    layers = [
        Layer("default", {setting.name: setting.default for setting in SETTINGS}),
        *(_file_layer(name, path) for name, path in (("system file", sources.system), ("user file", sources.user)) if path is not None),
        *([_file_layer("--config", sources.config, must_exist=True)] if sources.config is not None else []),
        Layer("environment", _from_environment(sources.environment)),
        Layer("command line", {name: value for name, value in given.items() if value is not None}),
    ]
    return {setting.name: _origin(setting, layers) for setting in SETTINGS}


def values(resolved: Mapping[str, Origin]) -> dict[str, Any]:
    """The values alone, by their names in Python."""
    return {BY_NAME[name].key: origin.value for name, origin in resolved.items()}


def strangers(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like settings and are near one, but are none; by name, with the one that was meant."""
    known = {setting.variable for setting in SETTINGS}
    names = (name for name in environment if name.startswith("RANKPATROL_") and name not in {*known, *_BETWEEN_OURSELVES})
    near = ((name, difflib.get_close_matches(name, known, n=1, cutoff=0.8)) for name in names)
    return {name: meant[0] for name, meant in near if meant}


def _origin(setting: Setting, layers: list[Layer]) -> Origin:
    held = [layer for layer in reversed(layers) if setting.name in layer.values]
    return Origin(value=held[0].values[setting.name], layer=held[0].name, overruled=tuple(layer.name for layer in held[1:-1]))


def _file_layer(name: str, path: Path, *, must_exist: bool = False) -> Layer:
    content = _content(path, must_exist=must_exist)
    return Layer(f"{name} {path}", {key: _checked(key, value, path) for key, value in content.items()})


def _content(path: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES).decode()
        return tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        if not must_exist:
            return {}
        raise BadInput(
            f"{path}: no such file", help="--config names a TOML file of settings; `rankpatrol config show` prints one."
        ) from None
    except PermissionError:
        # It may hold `policy = "observe"`: to go on without it could do what somebody has ruled out.
        raise NoPermission(f"{path} may not be read", help="Nothing was started. Give yourself the right to read it.") from None
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}", help="Nothing was started.") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadInput(
            f"{path} is not TOML: {problem}", help='Each line is `key = value`, with text in quotes: patience = "3m"'
        ) from problem


def _checked(key: str, value: Any, path: Path) -> Any:
    setting = BY_NAME.get(key)
    if setting is None:
        raise _unknown(key, value, path)
    try:
        return setting.how.from_toml(value)
    except UsageProblem as problem:
        raise BadInput(f"{path}: {key}: {problem}", help=problem.help) from problem


def _unknown(key: str, value: Any, path: Path) -> BadInput:
    if isinstance(value, dict):
        return BadInput(
            f"{path}: [{key}]: there are no sections", help="Write the settings at the top, one a line: `rankpatrol config show`."
        )
    near = difflib.get_close_matches(key.replace("_", "-"), BY_NAME, n=1, cutoff=0.5)
    meant = f"Did you mean {near[0]}? " if near else ""
    return BadInput(f"{path}: {key!r} is no setting", help=f"{meant}There are: {', '.join(BY_NAME)}.")


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """An empty variable is not set, as everywhere in a shell."""
    found = {}
    for setting in SETTINGS:
        text = environment.get(setting.variable, "")
        if text:
            try:
                found[setting.name] = setting.how.from_text(text)
            except UsageProblem as problem:
                raise BadInput(f"{setting.variable}: {problem}", help=problem.help) from problem
    return found
