"""Training, loading and evaluating from Python."""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
import torch

import paceline as pl
from paceline.api.training import configured
from paceline.envs import given, resolve
from paceline.envs.memory import Memory
from paceline.evaluation.evaluate import evaluate_policy
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.learner.config import PPOConfig
from paceline.nets.config import CoreConfig
from paceline.run_names import new_run_folder
from tests.api.envs import Corridor, Nested
from tests.forks import run_python
from tests.integration.test_training import tiny

ROOT = Path(__file__).parents[2]
SMALL = {"pool": {"num_envs": 4, "kind": "serial"}, "device": "cpu", "threads": 1}


def test_names_are_listed_and_exist():
    for name in pl.API:
        assert getattr(pl, name).__name__ == name
    assert set(pl.API) <= set(dir(pl))
    stub = (ROOT / "paceline" / "__init__.pyi").read_text()
    assert all(f"import {name} as {name}\n" in stub for name in pl.API)
    with pytest.raises(AttributeError, match="no attribute 'trian'; it has train"):
        _ = pl.trian


def test_importing_the_package_imports_no_pytorch():
    program = "import sys, paceline; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_class_is_learned_with_default_settings(tmp_path):
    """Of 200 steps, a random walk takes 25 to the end of the corridor."""
    run = pl.train(env=Corridor, folder=tmp_path / "run", steps=8_000, **SMALL)
    assert run.config.env == "tests.api.envs:Corridor" and run.step >= 8_000 and not run.interrupted
    assert run.metrics["step"][-1] == run.step and np.isfinite(run.metrics["episode_return"][-1])
    result = pl.evaluate(run.policy, episodes=6)
    assert result.length.mean == 5 and result.length.low == result.length.high == 5
    assert result.episode_return.mean == pytest.approx(0.75) and len(result.episodes) == 6
    assert pl.evaluate(run.folder, Corridor, episodes=2).length.mean == 5
    assert pl.evaluate(run.policy, lambda: Corridor(3), episodes=2).length.mean == 3


def test_a_recipe_with_settings(tmp_path):
    run = pl.train("cartpole", folder=tmp_path, steps=600, ppo={"epochs": 1}, **SMALL)
    assert run.config.recipe == "cartpole" and run.config.ppo.epochs == 1 and run.config.ppo.minibatches == 8
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 600
    again = pl.train(folder=tmp_path, resume=True, steps=1200)
    assert again.step >= 1200 and again.config.ppo.epochs == 1
    with pytest.raises(pl.UsageError, match="holds a run already; resume=True continues it"):
        pl.train("cartpole", folder=tmp_path)


def test_settings_are_merged_and_checked():
    config = configured(pl.Config(), {"system": "ver", "ppo": PPOConfig(epochs=3), "policy": {"core": {"kind": "gru"}}})
    assert config.system == "ver" and config.ppo.epochs == 3 and config.policy.core == CoreConfig(kind="gru")
    with pytest.raises(pl.UsageError, match="no field 'epohcs', did you mean 'epochs'"):
        configured(pl.Config(), {"ppo": {"epohcs": 3}})
    with pytest.raises(pl.UsageError, match=r"ver\.overlap has no effect under ddppo; it is read by: ver"):
        configured(pl.Config(), {"ver": {"overlap": True}})
    with pytest.raises(pl.UsageError, match="no field 'stpes', did you mean 'steps'"):
        configured(pl.Config(), {"stpes": 3})


def test_the_folder_of_a_run_is_a_setting(tmp_path):
    """`folder` of what train returns is a Path, and the setting a text."""
    small = SMALL | {"rollout_steps": 16, "steps": 64}
    first = pl.train(env=Corridor, folder=tmp_path / "first", **small)
    second = pl.train(env=Corridor, folder=tmp_path / "second", init_from=first.folder, init="encoder", **small)
    assert second.config.init_from == str(tmp_path / "first")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing to train: give a recipe"),
        ({"start": 3}, "start is a int; allowed: the name of a recipe, or a Config"),
        ({"start": "cartploe"}, "did you mean 'cartpole'"),
        ({"env": Corridor()}, "env is a Corridor; allowed: an id, a class, or a function"),
        ({"resume": True}, "resume continues the run in a folder"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_nothing(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pl.UsageError, match=message):
        pl.train(**arguments)
    assert not list(tmp_path.iterdir())


def test_a_config_has_an_id_and_no_class():
    with pytest.raises(pl.UsageError, match=r"a Config has an id.*allowed in train\(env=...\)"):
        pl.Config(env=Corridor)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_predict_acts_as_evaluation_does(tmp_path, core):
    """Episode by episode, one observation at a time and in a batch."""
    config = tiny(core, steps=256)
    with pl.Session(config, tmp_path) as session:
        session.run()
    policy = pl.load(tmp_path)
    report = evaluate_policy(tmp_path, EvaluationOptions(episodes=4, num_envs=4, seed=3))
    envs = [Memory(length=7) for _ in range(4)]
    seeds = np.random.SeedSequence(3).generate_state(4)
    singles = []
    for env, seed in zip(envs, seeds, strict=True):
        obs, state, done, actions = env.reset(seed=int(seed))[0], None, False, []
        while not done:
            action, state = policy.predict(obs, state)
            actions.append(action)
            obs, _, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
        singles.append(actions)
    assert (state is None) == (core == "none")
    assert report["mean_length"] == np.mean([len(actions) for actions in singles])
    batch, state = np.stack([env.reset(seed=int(seed))[0] for env, seed in zip(envs, seeds, strict=True)]), None
    for step in range(len(singles[0])):
        actions, state = policy.predict(batch, state)
        assert actions.tolist() == [single[step] for single in singles]
        batch = np.stack([env.step(action)[0] for env, action in zip(envs, actions, strict=True)])


def test_state_is_forgotten_where_an_episode_starts(tmp_path):
    with pl.Session(tiny("lstm", steps=128), tmp_path) as session:
        session.run()
    policy = pl.load(tmp_path)
    batch = np.stack([policy.observation_space.sample() for _ in range(3)])
    _, state = policy.predict(batch)
    _, kept = policy.predict(batch, state, episode_start=[False, True, False])
    _, fresh = policy.predict(batch)
    _, went_on = policy.predict(batch, state)
    assert torch.equal(kept[1], fresh[1]) and torch.equal(kept[[0, 2]], went_on[[0, 2]])
    assert not torch.equal(went_on[1], fresh[1])
    with pytest.raises(pl.UsageError, match=r"the state has shape \(3, 16\); 2 observations need \(2, 16\), or None"):
        policy.predict(batch[:2], state)
    assert torch.equal(policy.predict(batch, state.numpy())[1], went_on), "arrays are states, too"
    assert torch.equal(policy.predict(batch, state.double().tolist(), episode_start=False)[1], went_on)
    assert torch.equal(policy.predict(batch, state, episode_start=True)[1], fresh)
    with pytest.raises(pl.UsageError, match="^state is a str; allowed: what predict returns, or None$"):
        policy.predict(batch, "new")
    allowed = "allowed: True, False, or 3 of them, one for each observation$"
    with pytest.raises(pl.UsageError, match=rf"^episode_start has shape \(2,\); {allowed}"):
        policy.predict(batch, state, episode_start=[True, False])
    with pytest.raises(pl.UsageError, match=f"^episode_start is 'yes'; {allowed}"):
        policy.predict(batch, state, episode_start="yes")


def test_nested_observations_and_actions(tmp_path):
    run = pl.train(
        env=Nested, folder=tmp_path, steps=128, rollout_steps=16, ppo={"epochs": 1, "minibatches": 2}, **SMALL
    )
    env = Nested()
    observations = [env.reset(seed=seed)[0] for seed in range(3)]
    one, state = run.policy.predict(observations[0])
    assert env.action_space.contains(one) and state is None
    stacked = {
        "place": np.array([obs["place"] for obs in observations]),
        "parts": tuple(np.stack([obs["parts"][part] for obs in observations]) for part in range(2)),
    }
    batch, _ = run.policy.predict(stacked)
    np.testing.assert_allclose(batch["push"][0], one["push"], rtol=1e-4)
    assert batch["move"][0].shape == (3,) and batch["move"][1].shape == (3, 2) and batch["push"].shape == (3, 2)
    sampled = [run.policy.predict(observations[0], deterministic=False)[0]["push"] for _ in range(8)]
    assert len({tuple(push) for push in sampled}) > 1
    assert pl.evaluate(run.policy, episodes=3).info["steps"].mean == 4
    with pytest.raises(pl.UsageError, match="no 'parts.0', only 'place'"):
        run.policy.predict({"place": 1})
    with pytest.raises(pl.UsageError, match=r"'parts.1' has shape \(2,\); allowed: \(3,\), or \('B', 3\)"):
        run.policy.predict({"place": 1, "parts": (np.zeros(2), np.zeros(2))})
    with pytest.raises(pl.UsageError, match=r"observation 'parts.1' is no array: .*inhomogeneous"):
        run.policy.predict({"place": 1, "parts": (np.zeros(2), [[1.0, 2.0], [3.0]])})
    as_tensors = {"place": 1, "parts": (torch.zeros(2, requires_grad=True), torch.zeros(3, dtype=torch.int8))}
    assert env.action_space.contains(run.policy.predict(as_tensors)[0])
    with pytest.raises(pl.UsageError, match="trained with the observations Dict.*has Box"):
        pl.evaluate(run.policy, Corridor, episodes=1)


class Sees(Corridor):
    """The corridor, seen in every way."""

    observation_space = gym.spaces.Dict(
        camera=gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
        dice=gym.spaces.MultiDiscrete([2, 6], start=[0, 1]),
        place=gym.spaces.Discrete(4, start=2),
        speed=gym.spaces.Box(-1, 1, (3,), np.float32),
        worn=gym.spaces.MultiBinary(2),
    )

    def _observe(self):
        return self.observation_space.sample()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """A policy, and an observation for it."""
    small = SMALL | {"steps": 64, "rollout_steps": 16, "policy": {"encoder_size": 8, "hidden": (8,)}}
    run = pl.train(env=Sees, folder=tmp_path_factory.mktemp("sees"), **small)
    observation = {
        "camera": np.full((36, 36, 3), 200, np.uint8),
        "dice": np.array([1, 6]),
        "place": 5,
        "speed": np.zeros(3, np.float32),
        "worn": np.ones(2, np.int8),
    }
    return run.policy, observation


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("camera", np.full((36, 36, 3), 0.5, np.float32), "has dtype float32; allowed: uint8"),
        ("camera", np.full((36, 36, 3), -300), "has the number -300; allowed: 0 to 255"),
        ("camera", np.full((36, 36, 3), 256, np.uint16), "has the number 256; allowed: 0 to 255"),
        ("speed", [0.0, np.nan, 0.0], r"is nan at index \[1\]; allowed: finite numbers"),
        ("speed", [0.0, 0.0, np.inf], r"is inf at index \[2\]; allowed: finite numbers"),
        ("speed", [1e300, 0.0, 0.0], r"is 1e\+300 at index \[0\], which is beyond float32; allowed: finite numbers"),
        ("speed", ["a", "b", "c"], r"has dtype <U\d+; allowed: float32"),
        ("place", 6, r"has the number 6; allowed: Discrete\(4, start=2\)"),
        ("place", np.uint8(1), r"has the number 1; allowed: Discrete\(4, start=2\)"),
        ("place", 3.0, "has dtype float64; allowed: int64"),
        ("dice", [1, 7], r"has the number 7; allowed: MultiDiscrete\(\[2 6\], start=\[0 1\]\)"),
        ("worn", [0.0, 1.0], "has dtype float64; allowed: int8"),
        ("worn", [0, 200], "has the number 200; allowed: -128 to 127"),
    ],
)
def test_predict_refuses_what_training_refuses(seeing, name, value, message):
    """It would act on other numbers, such as zeros for a float image."""
    policy, observation = seeing
    wrong = observation | {name: value}
    message = f"^observation '{name}' {message}$"
    with pytest.raises(pl.UsageError, match=message):
        policy.predict(wrong)
    right, wrong = ({key: np.asarray(one)[None] for key, one in either.items()} for either in (observation, wrong))
    batch = {key: np.concatenate([right[key], wrong[key]]) for key in right}
    with pytest.raises(pl.UsageError, match=message.replace(r"index \[", r"index \[1, ")):
        policy.predict(batch)


def test_predict_takes_other_dtypes_with_the_same_numbers(seeing):
    policy, observation = seeing
    seen = []
    hook = policy.network.trunk.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    policy.predict(observation)
    policy.predict(
        {
            "camera": np.full((36, 36, 3), 200).tolist(),
            "dice": np.array([1, 6], np.uint8),
            "place": np.int32(5),
            "speed": [0, 0, 0],
            "worn": [True, True],
        }
    )
    hook.remove()
    for name in observation:
        assert torch.equal(seen[0][name], seen[1][name]) and seen[0][name].dtype == seen[1][name].dtype
    assert seen[0]["place"].item() == 3 and seen[0]["dice"].tolist() == [[1, 5]]


def test_a_policy_loads_without_its_simulator(tmp_path):
    run = pl.train(env=Corridor, folder=tmp_path, steps=128, rollout_steps=16, **SMALL)
    text = (tmp_path / "config.json").read_text().replace("tests.api.envs:Corridor", "not_installed_here:Corridor")
    (tmp_path / "config.json").write_text(text)
    policy = pl.load(tmp_path, trust=True)
    assert policy.predict(np.zeros(1, np.float32))[0] == run.policy.predict(np.zeros(1, np.float32))[0]
    with pytest.raises(pl.UsageError, match="not_installed_here"):
        pl.evaluate(policy)


def test_objects_that_cannot_be_imported_have_an_id_that_says_so():
    def local():
        return Corridor()

    assert given.id_of(Corridor) == "tests.api.envs:Corridor"
    for made, name in ((local, "local"), (lambda: Corridor(), "<lambda>")):
        assert given.id_of(made).startswith("python:") and given.id_of(made).endswith(name)


def test_a_local_class_trains_resumes_and_evaluates(tmp_path):
    class Own(Corridor):
        pass

    small = SMALL | {"rollout_steps": 16}
    run = pl.train(env=Own, folder=tmp_path, steps=128, **small)
    assert run.config.env.startswith("python:")
    with pytest.raises(pl.UsageError, match="was an object in a Python program.*give the object again"):
        pl.evaluate(run.policy)
    with pytest.raises(pl.UsageError, match="was an object in a Python program"):
        pl.train(folder=tmp_path, resume=True, steps=256)
    assert pl.train(env=Own, folder=tmp_path, resume=True, steps=256).step >= 256
    assert pl.evaluate(run.policy, Own, episodes=1, deterministic=False).episodes


class Once:
    """Makes environments. Another program cannot import this object."""

    def __init__(self, length: int) -> None:
        self.length, self.made = length, 0

    def __call__(self):
        self.made += 1
        return Corridor(self.length)


def test_what_train_returns_is_evaluated_in_the_object_that_was_given(tmp_path):
    small = SMALL | {"rollout_steps": 16, "steps": 64}
    one = {"episodes": 1, "num_envs": 1, "deterministic": False}
    once = Once(2)
    for number, env in enumerate((once, lambda: Corridor(2), functools.partial(Corridor, 2))):
        run = pl.train(env=env, folder=tmp_path / str(number), **small)
        assert run.config.env.startswith("python:") and repr(env) not in repr(run)
        before = once.made
        assert pl.evaluate(run, **one).length.mean >= 2
        assert once.made - before == (env is once)
        assert pl.evaluate(run, Corridor, **one).length.mean >= 5, "the environment that is named comes first"


def test_simulators_with_classes_of_another_program_start_anew(tmp_path, monkeypatch, caplog):
    """One warning says so. The policy continues."""

    class Windy(Corridor):
        def reset(self, **options):
            self.wind = another_program.Wind()
            return super().reset(**options)

    another_program = ModuleType("another_program")
    exec("class Wind: pass", vars(another_program))
    monkeypatch.setitem(sys.modules, "another_program", another_program)
    pl.train(env=Windy, folder=tmp_path, steps=128, rollout_steps=16, **SMALL)
    monkeypatch.delitem(sys.modules, "another_program")
    caplog.clear()
    assert pl.train(env=Windy, folder=tmp_path, resume=True, steps=192).step == 192
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith("all episodes start anew: the saved simulators cannot be loaded in this program (")
    assert "No module named 'another_program'" in warning and "\n" not in warning


SCRIPT = """
import paceline as pl
from tests.api.envs import Corridor

class Mine(Corridor):
    pass

def main():
    pool = {"kind": "process", "num_envs": 2, "workers": 1}
    run = pl.train(env=Mine, folder="run", steps=256, rollout_steps=16, device="cpu", pool=pool)
    print(run.step, len(pl.evaluate(run.policy, episodes=2, deterministic=False).episodes))

"""
GUARD = 'if __name__ == "__main__":\n    '


@pytest.mark.parametrize("guarded", [True, False])
def test_a_class_of_the_script_itself(tmp_path, guarded):
    """Worker processes do not run the script. Evaluating imports it, which must not train again."""
    text = SCRIPT + (GUARD if guarded else "") + "main()\n"
    (tmp_path / "script.py").write_text(text)
    done = run_python("script.py", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.stdout.strip() == "256 2", done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["env"] == f"{tmp_path.resolve()}/script.py:Mine"
    if guarded:
        assert pl.evaluate(tmp_path / "run", episodes=1, deterministic=False).episodes
    else:
        with pytest.raises(pl.UsageError, match="trains while it is imported for what it defines; put the training"):
            pl.evaluate(tmp_path / "run", episodes=1)


def test_a_class_of_a_program_from_standard_input_cannot_be_imported(tmp_path):
    text = "from paceline.envs import given\nclass Mine: pass\nprint(given.id_of(Mine))\n"
    done = subprocess.run(
        [sys.executable, "-"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, input=text.encode(), stdout=-1
    )
    assert done.stdout.decode().strip() == "python:Mine"


def test_a_class_of_a_program_that_runs_as_a_module(tmp_path):
    """Another program imports the module, and not its file, in which relative imports would fail."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    text = "from paceline.envs import given, resolve\nclass Mine: pass\n"
    text += "print(given.id_of(Mine), type(resolve(given.id_of(Mine)).make(0)) is Mine)\n"
    for name in ("program", "__main__"):
        (tmp_path / "package" / f"{name}.py").write_text(text)
    for module, named in (("package.program", "package.program"), ("package", "package.__main__")):
        done = subprocess.run(
            [sys.executable, "-m", module], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=-1
        )
        assert done.stdout.decode().strip() == f"{named}:Mine True"


def test_a_file_next_to_the_program_is_found_from_everywhere(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("from tests.api.envs import Corridor as Mine\n")
    config = configured(pl.Config(env="./own.py:Mine"), SMALL | {"steps": 64, "rollout_steps": 16})
    monkeypatch.chdir(tmp_path)
    run = pl.train(config, folder=tmp_path / "run")
    monkeypatch.chdir("/")
    assert run.config.env == pl.Config.load(tmp_path / "run" / "config.json").env == f"{tmp_path}/own.py:Mine"
    assert pl.train(folder=tmp_path / "run", resume=True, steps=128).step == 128


class Wider(Corridor):
    observation_space = gym.spaces.Box(-1, 3, (1,), np.float32)


class Doubles(Corridor):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float64)


def test_what_evaluate_and_load_accept(tmp_path, monkeypatch):
    run = pl.train(env=Corridor, folder=tmp_path, steps=64, rollout_steps=16, **SMALL)
    some = {"episodes": 1, "num_envs": 1, "deterministic": False}
    assert len(pl.evaluate(run, **some | {"episodes": 2.0}).episodes) == 2
    assert pl.evaluate(run.policy, Wider, **some).episodes, "bounds may differ"
    with pytest.raises(pl.UsageError, match="trained with the observations .*float32.*has .*float64"):
        pl.evaluate(run.policy, Doubles, **some)
    with pytest.raises(pl.UsageError, match="env is a Corridor; allowed: an id, a class, or a function"):
        pl.evaluate(run.policy, Corridor(), **some)
    with pytest.raises(pl.UsageError, match="policy is a int; allowed: what train and load return"):
        pl.evaluate(3)
    with pytest.raises(pl.UsageError, match="num_envs is 0; allowed: 1 or more"):
        pl.evaluate(run, num_envs=0)
    assert pl.load(tmp_path, device=torch.device("cpu")).device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pl.load(tmp_path, device="auto").device.type == "cpu"
    with pytest.raises(pl.UsageError, match="finds no CUDA device on this machine; allowed: cpu, auto"):
        pl.load(tmp_path, device="cuda")
    with pytest.raises(pl.UsageError, match="device 'gpu' does not exist"):
        pl.load(tmp_path, device="gpu")
    with pytest.raises(pl.RunFinished, match="64 of 64 steps are trained; a larger steps extends it"):
        pl.train(folder=tmp_path, resume=True)


def test_an_environment_that_cannot_be_pickled_is_named(tmp_path):
    lock = threading.Lock()

    def locked():
        with lock:
            return Corridor()

    small = SMALL | {"pool": {"num_envs": 2, "kind": "process", "workers": 1}}
    with pytest.raises(pl.UsageError, match="cannot be sent to worker processes.*allowed: pool.kind serial") as caught:
        pl.train(env=locked, folder=tmp_path / "run", steps=64, **small)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_code_of_somebody_elses_run_does_not_run_on_resume(tmp_path, monkeypatch):
    """Without trust, neither its environment nor its classes are imported."""
    small = SMALL | {"rollout_steps": 16}
    pl.train(env=Corridor, folder=tmp_path / "run", steps=128, **small)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another_user"))
    with pytest.raises(pl.UsageError, match="not recognised as yours.*would import the module 'tests.api.envs'"):
        pl.train(folder=tmp_path / "run", resume=True, steps=256)
    assert pl.train(folder=tmp_path / "run", resume=True, steps=256, env=Corridor).step >= 256, "the user's own choice"


def test_trust_runs_it(tmp_path, monkeypatch):
    small = SMALL | {"rollout_steps": 16}
    pl.train(env=Corridor, folder=tmp_path / "run", steps=128, **small)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another_user"))
    assert pl.train(folder=tmp_path / "run", resume=True, trust=True, steps=256).step >= 256


def test_two_runs_of_the_same_second_have_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.run_names.time.strftime", lambda form: "now")
    config = pl.Config(env=f"{tmp_path}/own.py:Mine", recipe="./recipes.py:mine")
    first = new_run_folder(config)
    first.mkdir(parents=True)
    assert [str(first), str(new_run_folder(config))] == ["runs/mine-ddppo-1-now", "runs/mine-ddppo-1-now-2"]
    assert new_run_folder(pl.Config(env=f"{tmp_path}/own.py:Mine")).name == "Mine-ddppo-1-now"


def test_a_session_remembers_the_environment_that_it_was_given(tmp_path):
    config = configured(pl.Config(), SMALL | {"steps": 64, "rollout_steps": 16})
    with pl.Session(config, tmp_path, env=Corridor) as session:
        session.run()
    assert pl.Config.load(tmp_path / "config.json").env == "tests.api.envs:Corridor"


def test_a_memory_is_shared_with_the_critic_by_default(tmp_path):
    core = {"core": {"kind": "lstm", "hidden": 8}}
    run = pl.train(env=Corridor, folder=tmp_path, steps=64, rollout_steps=16, policy=core, **SMALL)
    assert run.config.policy.critic == "shared"
    assert run.policy.predict(np.zeros(1, np.float32))[1] is not None


def test_a_session_of_a_file_that_is_imported_does_not_begin(tmp_path):
    (tmp_path / "own.py").write_text(
        "import paceline as pl\nwith pl.Session(pl.Config(), 'run') as session:\n    session.run()\n"
    )
    with pytest.raises(pl.UsageError, match="trains while it is imported for what it defines"):
        resolve(f"{tmp_path}/own.py:Mine")


def test_training_in_another_thread(tmp_path):
    """Only the main thread may handle signals."""
    with ThreadPoolExecutor(1) as thread:
        small = SMALL | {"rollout_steps": 16, "steps": 64}
        assert thread.submit(pl.train, env=Corridor, folder=tmp_path, **small).result().step >= 64


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: pl.train("gym:CartPole-v1"), 'is an environment and no recipe; allowed: env="gym:CartPole-v1"'),
        (lambda: pl.train("cartpole", learning_rate=1e-3), r'allowed: optimizer=\{"learning_rate": ...\}'),
        (lambda: pl.train("cartpole", n_envs=4), r'there is no setting .n_envs.; allowed: pool=\{"num_envs": ...\}'),
        (lambda: pl.train("cartpole", total_timesteps=4), "there is no setting 'total_timesteps'; allowed: steps=..."),
        (
            lambda: pl.train("pendulum", system="d4pg", lr=4),
            r'allowed: d4pg=\{"actor_rate": ...\}, d4pg=\{"critic_rate": ...\}',
        ),
        (lambda: pl.train(Corridor), "an environment is env="),
        (lambda: pl.Session(pl.Config(), "run").run(), "this session is not open; allowed: with Session"),
        (lambda: pl.Session(pl.Config(), "run").metrics, "this session is not open"),
        (lambda: pl.Session("cartpole"), "a Session needs a Config, not 'cartpole'"),
        (lambda: pl.Session(pl.Config(), "run", callbacks=pl.Callback()), "callbacks is a Callback; allowed: a list"),
    ],
)
def test_what_beginners_type_gets_a_hint(wrong, message):
    with pytest.raises(pl.UsageError, match=message):
        wrong()
