"""The command line as a user meets it: output, help, errors and exit codes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from types import SimpleNamespace

import gymnasium
import pytest
import tyro

from benchmarks import report
from paceline.cli.bench import run_benchmark
from paceline.cli.main import COMMANDS, main
from paceline.cli.train import main as train
from paceline.config import Config, leaves
from paceline.errors import MissingExtra, UsageError
from paceline.other_names import OTHER_NAMES
from tests.forks import run_paceline as paceline

BENCHMARKS = [
    "accelerations",
    "channel",
    "control_ablation",
    "control_speed",
    "control_suite",
    "d4pg_ablation",
    "efficiency",
    "emergent_navigation",
    "finite_checks",
    "halfcheetah",
    "hand_planner",
    "learner_apart",
    "navigation_limits",
    "navigation_noise",
    "navigation_speed",
    "pbt_recovery",
    "pointnav",
    "policies",
    "pool",
    "ppo",
    "publication",
    "rearrangement_fuzz",
    "rearrangement_plans",
    "rearrangement_ranks",
    "rearrangement_skills",
    "rearrangement_speed",
    "scaling",
    "soak",
    "stragglers",
    "throughput",
    "updates",
]


def test_help_has_one_line_for_every_command():
    done = paceline("--help")
    assert done.returncode == 0 and "Exit codes" in done.stdout
    commands = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert commands == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_options(command):
    done = paceline(command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: paceline {command}" in done.stdout


def test_help_of_train_fits_on_a_screen_and_has_the_defaults_of_the_recipe():
    page, one = paceline("train", "--help").stdout, paceline("train", "pendulum", "--help").stdout
    for text in (page, one):
        assert len(text.splitlines()) < 40 and max(map(len, text.splitlines())) <= 100
        assert "--help-all" in text and "appo" in text
    assert "usage: paceline train RECIPE" in page and "paceline recipes" in page
    assert "usage: paceline train pendulum" in one and "default: 50,000" in one and "default: d4pg" in one


def test_help_of_train_without_a_recipe_has_the_defaults_of_the_environment():
    text = paceline("train", "--env", "gym:Pendulum-v1", "--system", "d4pg", "--help").stdout
    assert "usage: paceline train --env gym:Pendulum-v1 [options]" in text
    assert "environments of each rank (default: 8)" in text and "(default: no limit)" in text
    assert "(default: 600)" in paceline("train", "rearrange-pick", "--help").stdout


def test_version():
    assert paceline("--version").stdout.startswith("paceline ")


def test_envs_lists_families_names_and_one_environment():
    families = paceline("envs")
    assert families.returncode == 0
    for family in ("gym", "atari", "doom", "dmc", "pettingzoo", "envpool", "tensor", "synthetic"):
        assert family in families.stdout
    assert "gym:CartPole-v1" in paceline("envs", "gym").stdout.splitlines()
    one = paceline("envs", "gym:CartPole-v1")
    assert "float32 [4]" in one.stdout and "Discrete(2)" in one.stdout and "µs" in one.stdout


def batched(num_envs: int, device: str):
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("tensor:pong", ["float32 [8]", "Discrete(3)", "win", "in a batch of 64 environments"]),
        (f"{__name__}:batched", ["float32 [4]", "Discrete(2)", "in a batch of 64 environments"]),
        ("hand:catch", ["float32 [70]", "held", "% of a core"]),
    ],
)
def test_every_environment_is_described(env, words):
    one = paceline("envs", env)
    assert one.returncode == 0, one.stderr
    assert all(word in one.stdout for word in words), one.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nonsense"],
            "allowed: play, train, population, sweep, eval, report, export, recipes, envs, plan, doctor, bench, compl",
        ),
        (["trian"], "did you mean 'train'"),
        ([], "a command is missing"),
        (["envs", "gym:CartPole-v77"], "did you mean"),
        (["envs", "nonsense:CartPole"], "allowed: gym"),
        (["envs", "synthetic:constant?speed=3"], "allowed:"),
        (["bench", "nonsense"], f"allowed: {', '.join(BENCHMARKS)}"),
        (["bench", "channel", "--json", "/no/such/folder/file.json"], "does not exist"),
        (["bench", "channel", "--slow"], "there is no option --slow; --help lists all"),
    ],
)
def test_bad_usage_exits_2_and_says_what_is_allowed(arguments, message):
    done = paceline(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


class OutOfMemoryError(RuntimeError):
    """As PyTorch names it."""


class AcceleratorError(RuntimeError):
    """As PyTorch names it."""


@pytest.mark.parametrize(
    ("kind", "said", "line"),
    [
        (OutOfMemoryError, "CUDA out of memory.", "the GPU has too little free memory for this run; allowed: fewer "),
        (AcceleratorError, "CUDA error: out of memory", "the GPU has too little free memory for this run; allowed: "),
        (AcceleratorError, "CUDA error: misaligned address", "the GPU has failed: CUDA error: misaligned address. "),
    ],
)
@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_failure_of_the_gpu_ends_with_advice(kind, said, line, is_hidden, monkeypatch, capsys):
    """Also where the compiler has wrapped it. The traceback comes first."""

    def fail(arguments):
        try:
            raise kind(f"{said}\nCompile with `TORCH_USE_CUDA_DSA`")
        except kind as error:
            if is_hidden:
                raise RuntimeError("the compiler failed") from error
            raise

    monkeypatch.setattr("paceline.cli.main._run", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    *before, last = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and last.startswith(f"paceline: {line}") and "Traceback" in before[0]


def test_other_failures_keep_their_traceback(monkeypatch, capsys):
    def fail(arguments):
        raise RuntimeError("something else")

    monkeypatch.setattr("paceline.cli.main._run", fail)
    with pytest.raises(RuntimeError, match="something else"):
        main()
    assert "paceline:" not in capsys.readouterr().err


def test_benchmarks_are_listed():
    lines = paceline("bench").stdout.splitlines()
    assert [line.split()[0] for line in lines] == BENCHMARKS
    starts = {line.index(line.split(maxsplit=1)[1]) for line in lines}
    assert starts == {max(map(len, BENCHMARKS)) + 2}, "the descriptions are a column"


def test_what_a_benchmark_lacks_is_said_before_it_begins(monkeypatch):
    for name in ("benchmarks.learning", "benchmarks.efficiency"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingExtra, match="bench"):
        run_benchmark("efficiency", quick=True, json_path=None)


def test_quick_benchmark_prints_machine_command_and_table_and_writes_json(tmp_path):
    pytest.importorskip("faster_fifo")
    path = tmp_path / "channel.json"
    done = paceline("bench", "channel", "--quick", "--json", str(path))
    assert done.returncode == 0, done.stderr
    for word in ("machine", "versions", "command", "| channel"):
        assert word in done.stdout
    result = report.load(path)
    assert [row[0] for row in result.tables[0].rows] == ["pipe", "faster-fifo"]
    assert result.command.startswith("paceline bench channel --quick")


WITHOUT_PYTORCH = {
    "--help": 0,
    "recipes": 0,
    "bench": 0,
    "train --help": 0,
    "train pendulum --help": 0,
    "train pendulum --help-all": 0,
    "train cartpole --ranks 0": 2,
    "train cartpole --device gpu": 2,
    "train cartpole --steps 1.5": 2,
    "train --env CartPole-v1": 2,
    "nonsense": 2,
    "bench nonsense": 2,
    "envs gym:CartPole-v77": 2,
    "train": 2,
    "train cartpol": 2,
    "train cartpole --steps many": 2,
    "train cartpole --no-such-option": 2,
    "train cartpole --ppo.clip -1": 2,
    "train cartpole --ver.overlap": 2,
    "train cartpole --env gym:CartPole-v77": 2,
    "train --resume --run-dir /no/such/run": 2,
}
"""Command lines and their exit codes."""

EACH_IN_A_PROCESS_OF_ITS_OWN = """
import json, os, sys
import gymnasium, tyro, paceline.cli.bench, paceline.cli.envs, paceline.cli.train
from paceline.cli.main import main
sys.stdout.flush()
for line in json.loads(sys.argv[1]):
    if os.fork() == 0:
        sys.argv = ["paceline", *line.split()]
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        print("ended:", json.dumps([line, code, "torch" in sys.modules]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def endings() -> dict[str, tuple[int, bool]]:
    """The exit code of each command line, and whether it imported PyTorch."""
    command = [sys.executable, "-c", EACH_IN_A_PROCESS_OF_ITS_OWN, json.dumps(list(WITHOUT_PYTORCH))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    said = [json.loads(line.removeprefix("ended:")) for line in done.stdout.splitlines() if line.startswith("ended:")]
    return {line: (code, imported) for line, code, imported in said}


@pytest.mark.parametrize("line", WITHOUT_PYTORCH)
def test_help_and_wrong_usage_do_not_import_pytorch(endings, line):
    """Importing PyTorch takes seconds."""
    assert endings[line] == (WITHOUT_PYTORCH[line], False)


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--learning-rate", "1e-3"], "there is no option --learning-rate; allowed: --optimizer.learning-rate"),
        (["--lr=1e-3"], "there is no option --lr; allowed: --optimizer.learning-rate"),
        (["--gamma", "0.9"], "allowed: --ppo.discount"),
        (["--num-envs", "4"], "allowed: --pool.num-envs"),
        (["--n_envs", "4"], "allowed: --pool.num-envs"),
        (["--total-timesteps", "100"], "allowed: --steps"),
        (
            ["--system", "d4pg", "--env", "gym:Pendulum-v1", "--lr", "1"],
            "allowed: --d4pg.actor-rate, --d4pg.critic-rate",
        ),
    ],
)
def test_options_of_other_libraries_name_the_one_that_exists(arguments, allowed):
    with pytest.raises(UsageError, match=f"{allowed}$"):
        train(["cartpole", *arguments])


WRONG = {
    "train cartpole --steps 1e6x": "--steps is '1e6x'; allowed: a whole number",
    "train cartpole --steps=1.5": "--steps is '1.5'; allowed: a whole number",
    "train cartpole --seconds abc": "--seconds is 'abc'; allowed: a number, None",
    "train cartpole --policy.hidden 3 a": "--policy.hidden is '3 a'; allowed: whole numbers",
    "train cartpole --device": "--device needs a value; allowed: a text",
    "train cartpole --ppo.targets foo": "--ppo.targets 'foo' does not exist; allowed: auto, gae, vtrace",
    "train cartpole --step 5": "there is no option --step, did you mean --steps or --ppo.auxiliary.steps?; --help-all",
    "train cartpole --learnin-rate 3": "there is no option --learnin-rate, did you mean --optimizer.learning-rate?",
    "train cartpole --pool.num-evns=3": "there is no option --pool.num-evns, did you mean --pool.num-envs?",
    "train cartpole --qqqqq": "there is no option --qqqqq; --help-all lists all",
    "train cartpole --deterministic yes": "--deterministic takes no value, and got 'yes'; allowed: --deterministic, ",
    "train cartpole else": "unexpected argument 'else'; allowed: options, which --help-all lists",
    "sweep cartpole --trails 4": "there is no option --trails, did you mean --trials?",
    "eval run --episods 3": "there is no option --episods, did you mean --episodes?; --help lists all",
    "eval run --episodes 0": "episodes must be at least 1, got 0",
    "export": "paceline export needs RUN and --format onnx|torchscript",
    "export --fromat onnx": "there is no option --fromat, did you mean --format?",
    "plan": "paceline plan needs one of: check, export",
    "plan chekc file": "'chekc' does not exist, did you mean 'check'?; allowed: check, export",
    "plan check file --pictur x": "there is no option --pictur, did you mean --picture?",
    "completion fish": "shell 'fish' does not exist; allowed: bash, zsh",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments_are_named_in_one_line(line, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paceline", *line.split()])
    with pytest.raises(SystemExit, match="^2$"):
        main()
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"paceline: {WRONG[line]}")


@pytest.mark.parametrize("hooks", [None, lambda refuse: contextlib.nullcontext(refuse(object()))])
def test_another_version_of_tyro_says_what_is_wrong_itself(hooks, monkeypatch, capsys):
    monkeypatch.setattr("tyro._errors", SimpleNamespace(**vars(tyro._errors) | {"on_parse_error": hooks}))
    with pytest.raises(SystemExit, match="^2$"):
        train(["cartpole", "--steps", "1e6x"])
    assert "Error parsing --steps" in capsys.readouterr().err


def test_other_names_are_no_names_of_ours():
    assert not set(OTHER_NAMES) & set(leaves(Config())), "a setting of this name exists"
    assert {setting for settings in OTHER_NAMES.values() for setting in settings} <= set(leaves(Config()))
