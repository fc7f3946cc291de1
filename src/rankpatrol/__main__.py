"""Entry: `rankpatrol`, and `python -m rankpatrol`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run one command. A rank waits for `bind`, so that one takes the short way where its words are plain."""
    if sys.argv[1:2] == ["bind"]:
        from rankpatrol.cli.binding import bind_quickly, read_plainly  # ruff: ignore[PLC0415] - one of the two ways is imported

        if (asked := read_plainly(sys.argv[2:])) is not None:
            sys.exit(bind_quickly(asked))
    from rankpatrol.cli.main import main as any_command  # ruff: ignore[PLC0415] - the same

    any_command()


if __name__ == "__main__":
    main()
