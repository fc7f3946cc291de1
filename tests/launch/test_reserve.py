"""The room that a run directory sets aside for what must be written while its disk is full."""

from rankpatrol.launch.rundir import RunDir


def test_it_is_really_there_and_given_free_once():
    run_dir = RunDir.create()
    try:
        reserve = run_dir.path / "reserve"
        assert reserve.stat().st_blocks * 512 >= 1 << 20
        assert run_dir.open_reserve()
        assert not reserve.exists()
        assert not run_dir.open_reserve()
        run_dir.keep_reserve()
        assert reserve.exists()
        assert not run_dir.is_full()
    finally:
        run_dir.remove()


def test_a_run_directory_that_is_gone_is_no_trouble(tmp_path):
    run_dir = RunDir(tmp_path / "gone")
    run_dir.keep_reserve()
    assert not run_dir.open_reserve()
    assert not run_dir.is_full()
