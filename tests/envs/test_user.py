import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import paceline
from paceline.envs import given, resolve
from paceline.errors import UsageError
from paceline.own_code import with_absolute_path

MODULE = """
class Env:
    def __init__(self, size=1):
        self.size = size

def plain(size=1, speed=2.0):
    return {"size": size, "speed": speed}

def indexed(env_index, size=1):
    return {"index": env_index, "size": size}

def anything(**options):
    return options

def demanding(size):
    return size

value = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with a module `paceline_mine` that nothing has put on the path."""
    (tmp_path / "paceline_mine.py").write_text(MODULE)
    (tmp_path / "paceline_broken.py").write_text("import no_such_dependency_of_mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("paceline_mine", None)


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("paceline_mine:plain", {"size": 1, "speed": 2.0}),
        ("paceline_mine:plain?size=3&speed=0.5", {"size": 3, "speed": 0.5}),
        ("paceline_mine:indexed?size=3", {"index": 7, "size": 3}),
        ("paceline_mine:anything?name=x", {"name": "x"}),
        ("paceline_mine:demanding?size=4", 4),
    ],
)
def test_calls_the_function_with_options_and_index(folder, text, built):
    assert resolve(text).make(7) == built


def test_classes_are_functions_too(folder):
    assert resolve("paceline_mine:Env?size=5").make(0).size == 5


def test_travels_to_a_process_that_started_elsewhere(folder):
    shipped = cloudpickle.dumps(resolve("paceline_mine:indexed"))
    code = (
        "import sys, cloudpickle; f = cloudpickle.load(sys.stdin.buffer); assert 'paceline_mine' not in sys.modules; "
        "print(f.make(5))"
    )
    root = Path(paceline.__file__).parents[1]
    child = subprocess.run(
        [sys.executable, "-c", code], input=shipped, capture_output=True, cwd=root, timeout=300, check=True
    )
    assert child.stdout.decode().strip() == "{'index': 5, 'size': 1}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paceline_nowhere.envs:make", "module 'paceline_nowhere.envs' .* does not exist .* current directory"),
        ("paceline_nowhere:make", "family 'paceline_nowhere' .* does not exist.*or package.module:function"),
        (
            "paceline_nowhere:make",
            r"no such module was found, which is looked for in the current directory \(/.*\) and among",
        ),
        ("paceline_broken:make", "needs a module that is not installed.*no_such_dependency_of_mine"),
        ("paceline_mine:plian", "has no 'plian', .* did you mean 'plain'"),
        ("paceline_mine:value", "is of the type int; allowed: a function or class"),
        ("paceline_mine:plain?sise=3", "option 'sise' .* did you mean 'size'"),
        ("paceline_mine:demanding", r"needs 'size'; give them as options: paceline_mine:demanding\?size=\.\.\."),
    ],
)
def test_refuses(folder, text, message):
    with pytest.raises(UsageError, match=message):
        resolve(text)


def test_callables():
    class Env:
        def __init__(self, size=1):
            self.size = size

    assert resolve(lambda: "built").make(3) == "built"
    assert resolve(lambda env_index: env_index).make(3) == 3
    assert resolve(lambda size=1, *, env_index: (size, env_index)).make(3) == (1, 3)
    assert resolve(Env).make(3).size == 1
    assert resolve(dict).make(3) == {}
    with pytest.raises(UsageError, match="it needs 'a', 'b'; allowed: no required argument except env_index"):
        resolve(lambda a, b: None)


class Sized:
    def __init__(self, size):
        self.size = size


def sized(size):
    return Sized(size)


@pytest.mark.parametrize("maker", [Sized, sized])
def test_one_required_argument_is_not_the_index(maker):
    """Neither of an object nor of its id, which is how the run is found later."""
    with pytest.raises(UsageError, match=f"it needs 'size'.*env=lambda: {maker.__name__}\\(size=...\\)"):
        resolve(maker)
    with pytest.raises(UsageError, match=r"needs 'size'; give them as options: .*\?size=..."):
        resolve(given.id_of(maker))
    assert resolve(f"{given.id_of(maker)}?size=4").make(2).size == 4


def test_an_environment_makes_no_environments():
    with pytest.raises(UsageError, match="env is a Sized; allowed: an id, a class, or a function"):
        resolve(Sized(3))


def test_a_module_that_is_imported_for_its_environment_must_not_train(folder):
    (folder / "training_module.py").write_text(
        "from paceline.own_code import require_main_program\nrequire_main_program()\n"
    )
    with pytest.raises(UsageError, match="training_module trains while it is imported for what it defines"):
        resolve("training_module:Mine")


def test_callables_travel_by_value():
    offset = 10
    factory = cloudpickle.loads(cloudpickle.dumps(resolve(lambda env_index: env_index + offset)))
    assert factory.make(1) == 11


def test_a_file_is_imported_once_and_its_neighbours_are_found(folder):
    (folder / "own.py").write_text(
        "import paceline_mine\ncount = 0\ndef make(size=1):\n    global count\n    count += 1\n"
        "    return count, paceline_mine.plain(size)\n"
    )
    factory = resolve("./own.py:make?size=4")
    assert factory.label == "./own.py:make?size=4"
    assert factory.make(0) == (1, {"size": 4, "speed": 2.0})
    assert cloudpickle.loads(cloudpickle.dumps(factory)).make(0) == (2, {"size": 4, "speed": 2.0})
    assert with_absolute_path("./own.py:make?size=4") == f"{folder.resolve()}/own.py:make?size=4"
    assert with_absolute_path("gym:CartPole-v1") == "gym:CartPole-v1"


def test_a_file_that_fails_is_not_half_imported(folder):
    (folder / "fails.py").write_text("raise RuntimeError('mine')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"):
            resolve("./fails.py:make")


def test_a_missing_file_and_a_missing_name_are_named(folder):
    with pytest.raises(UsageError, match=r"the file './no.py' of './no.py:make' does not exist \(in "):
        resolve("./no.py:make")
    with pytest.raises(UsageError, match="has no 'nothing'"):
        resolve("./paceline_mine.py:nothing")


def test_a_gymnasium_environment_without_its_family_is_suggested():
    with pytest.raises(UsageError, match="did you mean 'gym:CartPole-v1'"):
        resolve("CartPole-v1")
