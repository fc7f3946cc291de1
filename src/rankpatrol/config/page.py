"""docs/settings.md, made of the table: `python -m rankpatrol.config.page > docs/settings.md`. A test holds the two together."""

import sys

from rankpatrol.config.settings import SETTINGS

_HEAD = """\
# Settings

Each may stand in a file, in the environment or on the command line of `rankpatrol run`. The later one wins:

defaults < `/etc/rankpatrol/config.toml` < `$XDG_CONFIG_HOME/rankpatrol/config.toml` (`~/.config/…`) < `--config FILE` < environment
< command line

Files are TOML, without sections; durations carry their unit; a key that is no setting is refused. `rankpatrol config show --origin` says
what holds here and who said so.

| key | environment | what can be written | default | what it does |
|---|---|---|---|---|
"""


def settings_page() -> str:
    """The page."""
    rows = (
        f"| `{setting.name}` | `{setting.variable}` | {setting.how.words.replace('|', chr(92) + '|')} "
        f"| {_default(setting.shown(setting.default), set_at_all=setting.default is not None)} | {setting.help} |\n"
        for setting in SETTINGS
    )
    return _HEAD + "".join(rows)


def _default(shown: str, *, set_at_all: bool) -> str:
    return f"`{shown}`" if set_at_all else shown


if __name__ == "__main__":
    sys.stdout.write(settings_page())
