"""The speed of navigation tasks."""

from types import SimpleNamespace

from benchmarks import navigation_speed_cell
from benchmarks.navigation_speed_cell import Turn


def test_an_agent_that_shall_stop_does_not_wait_for_its_turn(tmp_path, monkeypatch):
    def sleep(seconds):
        raise AssertionError("it waits")

    monkeypatch.setattr(navigation_speed_cell.time, "sleep", sleep)
    session = SimpleNamespace(step=8, state=SimpleNamespace(stop=SimpleNamespace(is_requested=True)))
    turn = Turn(tmp_path, warm_up=1, seconds=60.0)
    assert not turn.on_update(session)
    assert (tmp_path / "ready").exists()
