"""Paths on the command line, and what stands in the way of writing there."""

import os
from pathlib import Path
from typing import Any

import click

from rankpatrol.core.errors import NoPermission


class GivenPath(click.Path):
    """A path as it was typed. An empty one is wrong usage; whether it may be read or written is for the command to say (exit code 77)."""

    def __init__(self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True, as_type: type = Path) -> None:
        super().__init__(exists=exists, file_okay=file_okay, dir_okay=dir_okay, readable=False, path_type=as_type)
        self.name = "file" if not dir_okay else "folder" if not file_okay else "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty; was a variable not set?", param, ctx)
        return super().convert(value, param, ctx)


def check_can_write(path: Path, option: str) -> None:
    """Raise NoPermission where a file or folder of this name cannot be made by this user, before work is done that would be lost."""
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NoPermission(
            f"{folder} cannot be written to by this user", help=f"Nothing was done. Name another {option}, in a folder you can write to."
        )
