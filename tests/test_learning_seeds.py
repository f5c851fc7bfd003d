"""A test that learns is tried twice, and no other test is."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HOOKS = "from tests.learning_seeds import *\n"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch):
    """Runs test code of its own, with the hooks and without plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(HOOKS)

    def run(code: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(code)
        return pytester.runpytest("-p", "no:cacheprovider", *options)

    return run


def test_failing_once_passes_with_a_warning(run):
    done = run("def test_it(learning_seed):\n    assert learning_seed == 2, 'too low'")
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*seed 1 failed (AssertionError: too low); tried again with seed 2"])


def test_failing_twice_fails_once(run):
    done = run("def test_it(learning_seed):\n    assert learning_seed == 3, f'attempt {learning_seed}'")
    done.assert_outcomes(failed=1, warnings=1)
    done.stdout.fnmatch_lines(["E*attempt 2"])


def test_passing_is_not_repeated(run):
    done = run("seen = []\ndef test_it(learning_seed):\n    seen.append(1)\ndef test_after():\n    assert seen == [1]")
    done.assert_outcomes(passed=2, warnings=0)


@pytest.mark.parametrize("statement", ["1 / 0", "import pytest; pytest.fail('no')", "import pytest; pytest.skip('no')"])
def test_other_endings_are_not_tried_again(run, statement):
    code = f"seen = []\ndef test_it(learning_seed):\n    seen.append(1)\n    {statement}\n"
    done = run(f"{code}def test_after():\n    assert seen == [1]")
    skipped = "skip" in statement
    done.assert_outcomes(failed=not skipped, skipped=skipped, passed=1, warnings=0)


def test_other_tests_are_not_tried_again(run):
    run("def test_it():\n    assert False").assert_outcomes(failed=1, warnings=0)


def test_an_error_of_a_fixture_is_not_tried_again(run):
    code = "import pytest\n@pytest.fixture\ndef wrong():\n    {}\ndef test_it(learning_seed, wrong):\n    {}"
    run(code.format("assert False", "pass")).assert_outcomes(errors=1, warnings=0)
    run(code.format("yield; assert False", "assert False")).assert_outcomes(failed=1, errors=1, warnings=0)


def test_the_second_attempt_has_fixtures_of_its_own(run):
    code = "def test_it(tmp_path, learning_seed):\n    (tmp_path / 'run').mkdir()\n    assert learning_seed == 2"
    run(code).assert_outcomes(passed=1, warnings=1)


def test_other_parameters_stay(run):
    code = "import pytest\n@pytest.mark.parametrize('core', ['lstm', 'gru'])\n"
    code += "def test_it(core, learning_seed):\n    assert (core, learning_seed) in (('lstm', 1), ('gru', 2))"
    run(code).assert_outcomes(passed=2, warnings=1)


def test_several_seeds_are_tried_once_each(run):
    done = run("def test_it(learning_seed):\n    assert learning_seed != 2", "--learning-seeds", "3")
    done.assert_outcomes(passed=2, failed=1, warnings=0)


def test_processes_of_xdist_try_again_and_say_so(run):
    code = "def test_once(learning_seed):\n    assert learning_seed == 2\n"
    done = run(f"{code}def test_twice(learning_seed):\n    assert False", "-p", "xdist", "--numprocesses", "1")
    done.assert_outcomes(passed=1, failed=1, warnings=2)
    done.stdout.fnmatch_lines(["*tried again with seed 2*"])
