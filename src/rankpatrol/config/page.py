"""docs/settings.md, made of the table: `python -m rankpatrol.config.page > docs/settings.md`. A test holds the two together."""

import sys

from rankpatrol.config.settings import SETTINGS

_HEAD = """\
# Settings

Each may stand in a file, in the environment or on the command line of `rankpatrol run` (`watch` takes patience and jobs-dir). The later
one wins:

defaults < `/etc/rankpatrol/config.toml` < `$XDG_CONFIG_HOME/rankpatrol/config.toml` (`~/.config/…`) < `--config FILE` < environment
< command line

Files are TOML, without sections; durations carry their unit; a key that is no setting is refused. `rankpatrol config show --origin` says
what holds here and who said so.

| key | environment | what can be written | default | what it does |
|---|---|---|---|---|
"""


_TAIL = """
## What outlives a job

It lies in one folder, the state directory: `RANKPATROL_STATE_DIR`, else `$XDG_STATE_HOME/rankpatrol`, else `~/.local/state/rankpatrol`.
That is no setting of a job, since jobs and commands must agree on it: set it for a user, for all shells and batch scripts alike.

| in it | what it is | elsewhere by |
|---|---|---|
| `paused-MACHINE.json` | the switch of `rankpatrol pause` for all jobs | |
| `lemons.sqlite3` | which nodes failed in earlier jobs | `RANKPATROL_LEMONS=FILE`; empty: nothing is kept |
| `checkpoints.json` | what earlier looks at checkpoints found | `rankpatrol checkpoints … --ledger FILE` |
| `leases/` | who may act on a Slurm job; to be shared by all nodes from which somebody may | `RANKPATROL_LEASES=FOLDER` |
| `orphans/` | evidence of processes that were released; root without `RANKPATROL_STATE_DIR`: `/var/lib/rankpatrol/orphans` | |
"""


def settings_page() -> str:
    """The page."""
    rows = (
        f"| `{setting.name}` | `{setting.variable}` | {setting.how.words.replace('|', chr(92) + '|')} "
        f"| {_default(setting.shown(setting.default), set_at_all=setting.default is not None)} | {setting.help} |\n"
        for setting in SETTINGS
    )
    return _HEAD + "".join(rows) + _TAIL


def _default(shown: str, *, set_at_all: bool) -> str:
    return f"`{shown}`" if set_at_all else shown


if __name__ == "__main__":
    sys.stdout.write(settings_page())
