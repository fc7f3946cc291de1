"""Settings as options of a command, and `rankpatrol config show`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.words import say, say_json
from rankpatrol.config.resolve import Origin, Sources, resolve, strangers, values
from rankpatrol.config.settings import SETTINGS, Setting
from rankpatrol.core.errors import UsageProblem

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
config_option = click.option(
    "--config",
    type=GivenPath(dir_okay=True),
    metavar="FILE",
    help="A TOML file of settings, above the user's and the system's.  [default: these alone]",
)


class _Word(click.ParamType):  # type: ignore[type-arg]  # generic in its newest version alone
    """One word of the command line, read by its setting's kind."""

    def __init__(self, setting: Setting) -> None:
        self.name, self._setting = setting.how.words, setting

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self._setting.how.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._setting.how.from_text(value)
        except UsageProblem as problem:
            self.fail(f"{problem}. {problem.help}", param, ctx)


def setting_options(*names: str) -> Callable[[Decorated], Decorated]:
    """Options for these settings; each is None where the command line is silent, and resolve() then asks the other places."""

    def decorate(function: Decorated) -> Decorated:
        for setting in reversed([setting for setting in SETTINGS if setting.name in names]):
            function = _option(setting)(function)
        return function

    return decorate


def settled(config: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """The values that hold here, by their names in Python; `given` is the command line's. Raises UsageProblem, BadInput, NoPermission."""
    if unknown := strangers(os.environ):
        said = ", ".join(f"{name} (did you mean {meant}?)" for name, meant in unknown.items())
        raise UsageProblem(f"no setting is called {said}", help="Put it right, or unset it: what was meant by it would not be done.")
    return values(resolve(Sources.here(config), {name.replace("_", "-"): value for name, value in given.items()}))


def _option(setting: Setting) -> Callable[[Decorated], Decorated]:
    default = setting.shown(setting.default).strip('"').removeprefix("not set: ")
    text = f"{setting.help}  [default: {default}]"
    if isinstance(setting.default, bool):
        return click.option(f"--{setting.name}/--no-{setting.name}", default=None, help=text)
    return click.option(f"--{setting.name}", type=_Word(setting), help=text)


@click.group()
def config() -> None:
    """Look at the settings."""


@config.command("show", short_help="Print the settings that hold here.")
@click.option("--origin", is_flag=True, help="Say where each value comes from, and what it overrules.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(config: Path | None, *, origin: bool, as_json: bool) -> None:
    """Print the settings that hold here, as a file that --config would take."""
    sources = Sources.here(config)
    resolved = resolve(sources, {})
    if as_json:
        say_json(_document(resolved, sources), indent=2)
        return
    for setting in SETTINGS:
        held = resolved[setting.name]
        say(_line(setting, held) + (f"  # {_said(held)}" if origin else ""))
    for name, meant in strangers(os.environ).items():
        say(f"# {name} is no setting: {meant} is", err=True)


def _line(setting: Setting, held: Origin) -> str:
    shown = setting.shown(held.value)
    return f"# {setting.name} is {shown}" if held.value is None else f"{setting.name} = {shown}"


def _said(held: Origin) -> str:
    return held.layer + (f", above {', '.join(held.overruled)}" if held.overruled else "")


def _document(resolved: dict[str, Origin], sources: Sources) -> dict[str, Any]:
    rows = {}
    for setting in SETTINGS:
        held = resolved[setting.name]
        plain = str(held.value) if isinstance(held.value, Path) else held.value
        row = {"value": plain, "shown": setting.shown(held.value), "origin": held.layer, "overruled": list(held.overruled)}
        rows[setting.name] = {**row, "variable": setting.variable, "help": setting.help}
    files = [str(path) for path in (sources.system, sources.user, sources.config) if path is not None]
    return {"settings": rows, "files": files, "strangers": strangers(os.environ)}
