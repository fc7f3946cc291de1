"""One table of settings: read the same from every place, and what is wrong is said with the place and the way out."""

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.config.page import settings_page
from rankpatrol.config.resolve import Origin, Sources, resolve, strangers, user_file
from rankpatrol.config.settings import BY_NAME, SETTINGS
from rankpatrol.core.errors import BadInput, NoPermission

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def file_of(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def nowhere(**places: object) -> Sources:
    return Sources(**{"system": None, **places})


def test_without_a_word_from_anywhere_the_defaults_hold() -> None:
    resolved = resolve(nowhere(), {})
    assert {name: origin.value for name, origin in resolved.items()} == {setting.name: setting.default for setting in SETTINGS}
    assert {origin.layer for origin in resolved.values()} == {"default"}


def test_each_place_wins_over_those_before_it(tmp_path: Path) -> None:
    system, user, named = (
        file_of(tmp_path, f"{name}.toml", f'patience = "{minutes}m"') for name, minutes in (("system", 1), ("user", 2), ("named", 3))
    )
    places: dict[str, object] = {}
    seen = []
    for more in ({"system": system}, {"user": user}, {"config": named}, {"environment": {"RANKPATROL_PATIENCE": "4m"}}):
        places |= more
        seen.append(resolve(nowhere(**places), {"patience": None})["patience"])
    seen.append(resolve(nowhere(**places), {"patience": 300.0})["patience"])
    assert [origin.value for origin in seen] == [60.0, 120.0, 180.0, 240.0, 300.0]
    assert seen[-1] == Origin(
        value=300.0, layer="command line", overruled=("environment", f"--config {named}", f"user file {user}", f"system file {system}")
    )


@pytest.mark.parametrize(
    ("text", "said", "way_out"),
    [
        ('patiense = "3m"', "'patiense' is no setting", "Did you mean patience?"),
        ("max_restarts = 3", "'max_restarts' is no setting", "Did you mean max-restarts?"),
        ("zzz = 3", "'zzz' is no setting", "There are: policy, patience"),
        ("patience = 180", "patience: 180 is no text", '"3m"'),
        ('patience = "180"', "patience: '180' is not a duration", "with its unit"),
        ('policy = "kill"', "policy: 'kill' is none of", "observe"),
        ('longest-pause = "11m"', "longest-pause: 11m is too long", "10m or less"),
        ("max-restarts = true", "max-restarts: True is no number", "without quotes"),
        ("max-restarts = -1", "max-restarts: -1 is no number", "without quotes"),
        ('probe = "false"', "probe: 'false' is neither true nor false", "without quotes"),
        ('checkpoints = ""', "checkpoints: an empty word", "leave the setting out"),
        ('[run]\npatience = "3m"', "[run]: there are no sections", "at the top"),
        ('patience = "3m', "is not TOML", "key = value"),
        ("patience = 3m", "is not TOML", "in quotes"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_file_and_key(tmp_path: Path, text: str, said: str, way_out: str) -> None:
    path = file_of(tmp_path, "config.toml", text)
    with pytest.raises(BadInput) as problem:
        resolve(nowhere(config=path), {})
    assert str(path) in str(problem.value)
    assert said in str(problem.value)
    assert way_out in problem.value.help


def test_a_file_that_is_no_text_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="is not TOML"):
        resolve(nowhere(user=tmp_path / "config.toml"), {})


def test_only_the_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    resolve(nowhere(system=absent, user=absent), {})
    with pytest.raises(BadInput, match="no such file"):
        resolve(nowhere(config=absent), {})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_file_that_may_not_be_read_stops_everything_since_it_may_forbid_actions() -> None:
    path = Path(f"/tmp/rp-config-{os.getpid()}.toml")
    path.write_text('policy = "observe"')
    path.chmod(0o600)
    os.seteuid(65534)
    try:
        with pytest.raises(NoPermission, match="may not be read"):
            resolve(nowhere(system=path), {})
    finally:
        os.seteuid(0)
        path.unlink()


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("RANKPATROL_POLICY", "ask", "policy", "ask"),
        ("RANKPATROL_PATIENCE", "1h30m", "patience", 5400.0),
        ("RANKPATROL_PROBE", "off", "probe", False),
        ("RANKPATROL_PROBE", "YES", "probe", True),
        ("RANKPATROL_MAX_RESTARTS", "0", "max-restarts", 0),
        ("RANKPATROL_CHECKPOINTS", "/data/ckpt", "checkpoints", Path("/data/ckpt")),
        ("RANKPATROL_CHECKPOINTS", "", "checkpoints", None),
    ],
)
def test_the_environment_is_read_by_kind_and_an_empty_word_is_none(variable: str, text: str, name: str, value: object) -> None:
    assert resolve(nowhere(environment={variable: text}), {})[name].value == value


def test_a_bad_word_in_the_environment_is_said_by_its_name() -> None:
    with pytest.raises(BadInput, match="RANKPATROL_PROBE: 'perhaps'"):
        resolve(nowhere(environment={"RANKPATROL_PROBE": "perhaps"}), {})


def test_a_variable_that_is_nearly_a_setting_is_noticed_and_our_own_are_not() -> None:
    assert strangers({"RANKPATROL_POLCY": "ask", "RANKPATROL_RUN_DIR": "/tmp/x", "RANKPATROL_JOBS_DIR": "x"}) == {
        "RANKPATROL_POLCY": "RANKPATROL_POLICY"
    }


def test_the_users_file_lies_where_xdg_says() -> None:
    assert user_file({"XDG_CONFIG_HOME": "/cfg"}) == Path("/cfg/rankpatrol/config.toml")


VALUES = {
    "policy": st.sampled_from(["observe", "ask", "recover"]),
    "patience": st.integers(1000, 10**9).map(lambda ms: ms / 1000),
    "checkpoints": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).map(
        lambda text: Path("/" + text)
    ),
    "max-restarts": st.integers(0, 10**9),
    "failures-per-hour": st.integers(0, 10**9),
    "first-pause": st.integers(0, 600_000).map(lambda ms: ms / 1000),
    "probe": st.booleans(),
    "jobs-dir": st.just(Path("runs")),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_is_shown_can_be_read_back(values: dict[str, object]) -> None:
    text = "".join(f"{name} = {BY_NAME[name].shown(value)}\n" for name, value in values.items())
    read = {name: BY_NAME[name].how.from_toml(value) for name, value in tomllib.loads(text).items()}
    assert read == values


def test_every_setting_has_its_row_in_the_docs() -> None:
    assert PAGE.read_text() == settings_page(), "python -m rankpatrol.config.page > docs/settings.md"
