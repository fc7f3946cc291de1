"""The one table of settings: `run`, `config show` and docs/settings.md are made of it. A new setting is a new row."""

from pathlib import Path
from typing import Any

from rankpatrol.config.kinds import Choice, Count, Duration, Flag, Folder, Kind, Listening
from rankpatrol.core.budget import Budget
from rankpatrol.core.records import Record


class Setting(Record, frozen=True):
    """One setting. `default` None: the setting is not set, and `unset` says what happens then."""

    name: str
    kind: Any
    default: Any
    help: str
    unset: str = ""

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "RANKPATROL_" + self.name.upper().replace("-", "_")

    @property
    def key(self) -> str:
        """Its name in Python."""
        return self.name.replace("-", "_")

    @property
    def how(self) -> Kind:
        """Its kind, typed."""
        kind: Kind = self.kind
        return kind

    def shown(self, value: Any) -> str:
        """A value as a TOML file would have it."""
        return self.how.to_toml(value) if value is not None else f"not set: {self.unset}"


# Without any patience every stall would be a hang at once, and be ended.
_BUDGET = Budget()
# A shim waits no longer than this for its start (launch/shim/desk.py, PAUSE_MOST_S).
_PAUSE = Duration(words="a duration up to 10m", most_s=600.0)
PATIENCE = Duration(least_s=1.0)
SETTINGS = (
    Setting(
        "policy",
        Choice(("observe", "ask", "recover")),
        "recover",
        "What is done once the evidence of a hang is sealed: nothing; what a person says (rankpatrol act); or end and resume.",
    ),
    Setting("patience", PATIENCE, 180.0, "How long nothing may work before a stall is a hang."),
    Setting(
        "checkpoints",
        Folder(),
        None,
        "Where the training saves; a new attempt resumes from the newest good one.",
        "the training's own script decides",
    ),
    Setting(
        "max-restarts",
        Count(),
        None,
        "Attempts beyond the first; torchrun's own flag wins.",
        "3, and torchrun's own default under observe",
    ),
    Setting("failures-per-hour", Count(), _BUDGET.per_hour, "How many failures an hour may hold; one more ends the job."),
    Setting("failures-per-day", Count(), _BUDGET.per_day, "How many failures a day may hold; one more ends the job."),
    Setting(
        "first-pause",
        _PAUSE,
        _BUDGET.first_pause_s,
        "How long the next attempt waits after the third failure within an hour; each further failure doubles it. 0s: never.",
    ),
    Setting("longest-pause", _PAUSE, _BUDGET.longest_pause_s, "How long the next attempt waits at most."),
    Setting(
        "probe",
        Flag(),
        default=True,
        help="Load the probe into the training's Python: marks of steps and phases, and the flight recorder.",
    ),
    Setting("bind", Flag(), default=True, help="Bind each rank to the CPUs and memory of its GPU's NUMA node."),
    Setting("jobs-dir", Folder(), Path("rankpatrol-runs"), "Where job directories are made, and where status and why look for the newest."),
    Setting(
        "metrics",
        Listening(),
        None,
        "Where the agent serves metrics for Prometheus, to anybody who can reach it: name a network of your own.",
        "not served",
    ),
    Setting(
        "metrics-textfile",
        Folder(),
        None,
        "The folder of node_exporter's textfile collector: each job's metrics are written there every 15 s.",
        "not written",
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
