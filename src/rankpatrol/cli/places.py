"""Paths on the command line."""

from pathlib import Path
from typing import Any

import click

from rankpatrol.core.errors import UsageProblem


class Place(click.ParamType):  # type: ignore[type-arg]  # generic in its newest version alone
    """A path as it was typed. Whether it is there and may be read, the command itself finds out: that is no wrong usage."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """An empty word is what an unset variable leaves behind, and would name the current folder."""
        if not str(value):
            raise UsageProblem("an empty word is no path", help="Is the variable set that the command line takes it from?")
        return Path(value)
