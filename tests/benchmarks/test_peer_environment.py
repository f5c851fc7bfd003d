import pytest

from benchmarks.cells import CellError
from benchmarks.peers import environment


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Pins of a peer called `other`, an empty cache, and commands that are recorded instead of run."""
    noted: list[list[str]] = []

    def run(command):
        noted.append(command)
        (tmp_path / "cache" / "paceline" / "peers" / "other").mkdir(parents=True, exist_ok=True)
        return ""

    (tmp_path / "other.txt").write_text("torch==1\nother==2\n")
    monkeypatch.setattr(environment, "HERE", tmp_path)
    monkeypatch.setattr(environment, "_run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return noted


def test_an_environment_is_made_once_and_again_when_its_pins_change(commands, tmp_path):
    python = environment.python_of("other")
    assert len(commands) == 3 and commands[1][-1] == "torch", "torch comes first"
    assert environment.python_of("other", make=False) == python and len(commands) == 3
    (tmp_path / "other.txt").write_text("torch==1\nother==3\n")
    environment.python_of("other")
    assert len(commands) == 6


def test_an_environment_that_may_not_be_made_is_an_error(commands):
    with pytest.raises(CellError, match="does not exist yet"):
        environment.python_of("other", make=False)
    assert commands == []
