"""Initial weights from another run: `--init-from`, `--init` and `--freeze`.

The other run's folder is only read, and no code that it names is run: tensors and settings are all that is used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paceline.checkpoint import WEIGHTS, CheckpointFolder
from paceline.config import Config, leaves
from paceline.errors import UsageError
from paceline.evaluation.saved import ranking_of, read_weights, run_config, untrained_policy
from paceline.files import replace_text
from paceline.nets.config import PARTS, named_classes
from paceline.nets.deterministic import DeterministicPolicy, control_parts
from paceline.nets.parts import (
    CORE,
    FIRST_LAYERS,
    IMAGE,
    IMAGES,
    PERCEPTRON,
    Parts,
    SavedParts,
    Sizes,
    Unit,
    controller_inputs,
    freeze,
    image_names,
    names_columns,
    parts_of,
    saved_form,
)
from paceline.nets.planner import GOAL_SIZE
from paceline.pool.protocol import PoolSpec
from paceline.pretrained import folder_of
from paceline.saved_spaces import load_spaces
from paceline.systems import SYSTEMS
from paceline.wording import counted

FILE = "initial_weights.json"
"""In the run folder: where the initial weights come from."""


class UnitReport(NamedTuple):
    """What became of one unit of the network."""

    part: str
    unit: str
    tensors: int
    """Number of tensors taken. 0: the unit has new weights."""
    note: str = ""
    """Why nothing was taken, or what was left out."""


class Fit(NamedTuple):
    """A unit of the network, and the weights for it."""

    part: str
    unit: str
    pairs: list[tuple[Tensor, Tensor]]
    """Tensors of the network, and those of the other run for them."""
    problem: str | None = None
    """Why the weights do not fit."""
    left_out: str = ""
    """Observations that only the other run has."""


@dataclass(kw_only=True)
class InitialWeights:
    """The weights of a saved run, and what was taken from them."""

    name: str
    """The folder of the checkpoint."""
    config: Config
    """The configuration of the saved run."""
    weights: Mapping[str, Tensor]
    """Of D4PG, those of the critic too."""
    parts: SavedParts | None
    """Where they are among the weights, as `saved_form` gives it. None if the folder does not say it: where this run's
    are."""
    reports: list[list[UnitReport]] = field(default_factory=list)
    """By policy of this run."""

    @classmethod
    def load(cls, config: Config) -> InitialWeights:
        """Read the run that `config.init_from` names. With several policies, its best one is used."""
        assert config.init_from is not None
        folder, checkpoint = _folder_and_checkpoint(folder_of(Path(config.init_from)))
        saved = run_config(folder)
        families = SYSTEMS[saved.system].family, SYSTEMS[config.system].family
        if families[0] != families[1]:
            allowed = ", ".join(name for name, spec in SYSTEMS.items() if spec.family == families[1])
            raise UsageError(
                f"init_from {folder} is a run of {saved.system}, whose networks differ from those of {config.system}; "
                f"allowed: a run of {allowed}"
            )
        name, parts, networks = _networks(folder, checkpoint, saved)
        if families[0] == "d4pg":
            weights = {f"{network}.{key}": values for network, own in networks.items() for key, values in own.items()}
        else:
            weights = networks["policy"]
        found = cls(name=name, config=saved, weights=weights, parts=parts)
        found._require_goal(config)
        return found

    def _require_goal(self, config: Config) -> None:
        """Refuse a planner whose goal the policy of the other run does not observe."""
        if config.policy.planner.kind == "none":
            return
        if self.parts is None:
            raise UsageError(
                f"policy.planner.kind {config.policy.planner.kind} cannot steer {self.name}, which does not say what "
                "its policy observes; allowed: a run with spaces.json in its folder, and without classes of your own"
            )
        goal, observed = config.policy.planner.goal, controller_inputs(self.parts)
        if observed.get(goal) != GOAL_SIZE:
            goals = [name for name, size in observed.items() if size == GOAL_SIZE]
            allowed = ", ".join(goals) or "a run that observes a goal, as those of pointnav do"
            raise UsageError(f"policy.planner.goal {goal!r} is not observed in {self.name}; allowed: {allowed}")

    def copy_to(self, network: nn.Module, parts: Parts, config: Config) -> None:
        """Give a new network the parts that `config.init` names. Nothing changes if one of them does not fit."""
        fits = [self._fit(network, part, name, parts, config) for part in PARTS for name in parts.get(part, {})]
        fits = [fit for fit in fits if fit.pairs or fit.problem is not None]  # a core without memory has no weights
        wanted = config.parts_to_take
        self._require_fit(fits, wanted, config)
        with torch.no_grad():
            for fit in fits:
                if fit.part in wanted and fit.problem is None:
                    for own, theirs in fit.pairs:
                        own.copy_(theirs)
        self.reports.append([_report(fit, wanted) for fit in fits])

    def _fit(self, network: nn.Module, part: str, name: str, parts: Parts, config: Config) -> Fit:
        """Compare a unit of the network with the same one of the other run."""
        unit = parts[part][name]
        own = {
            (role, key): values
            for role, path in unit.modules.items()
            for key, values in network.get_submodule(path).state_dict().items()
        }
        if not own:
            return Fit(part, name, [])
        other = self._counterpart(part, name, parts)
        problem = self._differs(unit, config)
        if problem is None:
            problem = f"there is no {name}" if other is None else _lacks(other, unit, own.keys())
        if problem is not None or other is None:
            return Fit(part, name, [], problem)
        theirs = self._tensors(other, unit)
        for key in [*own, *(key for key in theirs if key not in own and key[0] in unit.modules)]:
            here, there = (_size(tensors.get(key)) for tensors in (own, theirs))
            if here != there:
                return Fit(part, name, [], f"{unit.modules[key[0]]}.{key[1]} is {there} there and {here} here")
        left_out = ", ".join(observation for observation in _read(other) if observation not in _read(unit))
        return Fit(part, name, [(own[key], theirs[key]) for key in own], left_out=left_out)

    def _differs(self, unit: Unit, config: Config) -> str | None:
        """The first setting of a unit that differs."""
        before, now = leaves(self.config), leaves(config)
        different = [setting for setting in unit.settings if before[setting] != now[setting]]
        return f"{different[0]} is {before[different[0]]} there and {now[different[0]]} here" if different else None

    def _counterpart(self, part: str, name: str, parts: Parts) -> Unit | None:
        """The unit of the other run. If both runs have a single image, its name there is the one here."""
        if self.parts is None:
            return parts[part][name]
        there, here = image_names(self.parts), image_names(parts)
        renamed = dict(zip(there, here, strict=True)) if len(there) == len(here) == 1 else {}
        encoders = {f"{IMAGE}{old}": f"{IMAGE}{new}" for old, new in renamed.items()}
        found = {encoders.get(other, other): unit for other, unit in self.parts.get(part, {}).items()}.get(name)
        if found is None:
            return None
        modules = {encoders.get(role, role): path for role, path in found["modules"].items()}
        inputs = tuple(found["inputs"].items())
        if "columns" not in found:
            return self._older(modules, inputs, parts[part][name], here)
        columns = {
            role: tuple((renamed.get(observation, observation), size) for observation, size in sizes.items())
            for role, sizes in found["columns"].items()
        }
        return Unit(modules, inputs=inputs, columns=columns)

    def _older(self, modules: dict[str, str], inputs: Sizes, unit: Unit, images: list[str]) -> Unit:
        """A unit of an older checkpoint, which names no columns. Where it says
        nothing, those of `unit` are assumed.

        `inputs` of a core without a perceptron's hidden layers are its columns. The first one counts the features of
        all images.
        """
        if PERCEPTRON in modules:
            columns = tuple((name, self.config.policy.joined(name, size)) for name, size in inputs)
            said = {PERCEPTRON: columns} if PERCEPTRON in unit.columns else {}
            return Unit(modules, inputs=inputs, columns={**unit.columns, **said})
        if CORE in unit.columns and inputs:
            seen = tuple((name, size) for name, size in unit.columns[CORE] if name in images)
            fits = sum(size for _, size in seen) == inputs[0][1]
            return Unit(modules, columns={CORE: (seen if fits else inputs[:1]) + inputs[1:]})
        return Unit(modules, columns=unit.columns)

    def _tensors(self, other: Unit, unit: Unit) -> dict[tuple[str, str], Tensor]:
        """The tensors of the other run by role and name, as `unit` uses them.

        It may read more observations, and in another order. Their embeddings, and their columns of the first layers,
        are moved or left out.
        """
        found = {
            (role, key.removeprefix(f"{path}.")): values
            for role, path in other.modules.items()
            for key, values in self.weights.items()
            if key.startswith(f"{path}.")
        }
        kept = _places(other.inputs, unit.inputs)
        embedded = [key for role, key in found if role == PERCEPTRON and key.startswith("embeddings.")]
        for key, values in [(key, found.pop((PERCEPTRON, key))) for key in embedded]:
            _, number, kind = key.split(".", 2)
            if int(number) in kept:
                found[PERCEPTRON, f"embeddings.{kept.index(int(number))}.{kind}"] = values
        for role, columns in unit.columns.items():
            first = role, FIRST_LAYERS[role]
            if first in found:
                found[first] = _chosen(found[first], other.columns.get(role, ()), columns)
        return found

    def _require_fit(self, fits: list[Fit], wanted: tuple[str, ...], config: Config) -> None:
        """Refuse a part that fits nowhere, and a part with gaps that has to be complete."""
        problems = {part: [fit.problem for fit in fits if fit.part == part] for part in PARTS}
        fitting = [part for part in PARTS if None in problems[part]]
        steered = ("encoder", "policy") if config.policy.planner.kind != "none" else ()
        for part in wanted:
            why = next((problem for problem in problems[part] if problem is not None), None)
            if part not in fitting:
                same = "a run with the same network, or the settings of that run (config.json in its folder)"
                allowed = f"--init {'+'.join(fitting)}" if fitting else same
                problem = f"the {part} of {self.name} does not fit: {why or 'there is none here'}"
                if why is not None and IMAGES in why:
                    problem += f", with images of {self.config.env} there and of {config.env} here"
                    allowed = f"images of the same size, or {allowed}"
                raise UsageError(f"{problem}; allowed: {allowed}")
            if why is not None and part in (*config.frozen_parts, *steered):
                reason = "a planner steers only whole policies" if part in steered else "it would stay random"
                raise UsageError(
                    f"the {part} of {self.name} does not fit as a whole: {why}; {reason}; allowed: a run with the same "
                    f"{part}"
                )

    def table(self) -> str:
        """What was taken, for the user. Policies of one run usually take the same."""
        rows = list(dict.fromkeys(report for reports in self.reports for report in reports))
        widths = max(len(row.part) for row in rows), max(len(row.unit) for row in rows)
        lines = [
            f"  {row.part:<{widths[0]}}  {row.unit:<{widths[1]}}  "
            + (f"taken, {counted(row.tensors, 'tensor')}" if row.tensors else "new")
            + (f": {row.note}" if row.note else "")
            for row in rows
        ]
        return "\n".join([f"initial weights from {self.name}", *lines])

    def write(self, folder: Path) -> None:
        """Write what was taken to the run folder."""
        by_policy = [[report._asdict() for report in reports] for reports in self.reports]
        replace_text(folder / FILE, json.dumps({"from": self.name, "policies": by_policy}, indent=2) + "\n")


def initial_weights(config: Config) -> InitialWeights | None:
    """What a new run takes from another one; None if all weights are new. Frozen parts must not be new."""
    new = [part for part in config.frozen_parts if part not in config.parts_to_take]
    if new:
        needed = "+".join(part for part in PARTS if part in (*config.parts_to_take, *new))
        allowed = f"--init-from RUN --init {needed}, or fewer parts"
        raise UsageError(f"freeze {'+'.join(new)} would keep random weights; allowed: {allowed}")
    return InitialWeights.load(config) if config.init_from is not None else None


def prepare(network: nn.Module, parts: Parts, config: Config, initial: InitialWeights | None) -> None:
    """Give a new network the weights that it begins with, and freeze what is not trained."""
    if initial is not None:
        initial.copy_to(network, parts, config)
    freeze(network, parts, config.frozen_parts)


def _networks(
    folder: Path, checkpoint: str, config: Config
) -> tuple[str, SavedParts | None, dict[str, dict[str, Tensor]]]:
    """The folder of the weights, where their parts are, and the weights by network. A pretrained policy of d4pg has
    no critic."""
    if (folder / WEIGHTS).is_file():
        return str(folder), _parts_by_spaces(folder, 0, config), {"policy": read_weights(folder / WEIGHTS)}
    loaded = CheckpointFolder(folder / "checkpoints").load(checkpoint)
    policy = ranking_of(loaded)[0]
    agent = loaded.learner_state(policy)
    networks = {"policy": loaded.weights_of(policy)} | ({"critic": agent["critic"]} if "critic" in agent else {})
    parts = agent.get("parts")
    if parts is None or not names_columns(parts):
        parts = _parts_by_spaces(folder, policy, config) or parts
    return str(loaded.folder), parts, networks


def _parts_by_spaces(folder: Path, policy: int, config: Config) -> SavedParts | None:
    """The parts of a saved policy, by its settings and spaces. None if the folder has no spaces, or names classes of
    somebody's own: their code does not run."""
    saved = load_spaces(folder, policy)
    if saved is None or named_classes(config.policy, config.control):
        return None
    with torch.random.fork_rng(devices=[]):
        network = untrained_policy(PoolSpec(observation_space=saved[0], action_space=saved[1], num_envs=1), config)
    return saved_form(control_parts(network) if isinstance(network, DeterministicPolicy) else parts_of(network))


def _folder_and_checkpoint(path: Path) -> tuple[Path, str]:
    """FOLDER, or FOLDER/checkpoints/NAME."""
    return (path.parent.parent, path.name) if path.parent.name == "checkpoints" else (path, "latest")


def _lacks(other: Unit, unit: Unit, tensors: Collection[tuple[str, str]]) -> str | None:
    """What the unit of the other run does not read. `tensors` are those of `unit`, by role and name."""
    pairs = [(other.inputs, unit.inputs)]
    pairs += [(other.columns.get(role, ()), unit.columns.get(role, ())) for role in unit.modules]
    for theirs, own in pairs:
        if bool(theirs) != bool(own):
            return "it reads other features there"
        for name, size in own:
            found = dict(theirs).get(name)
            if found != size:
                there = "missing" if found is None else f"{found} values"
                return f"the observation {name} is {there} there and {size} values here"
    for role, columns in unit.columns.items():
        if other.columns.get(role, ()) != columns and (role, FIRST_LAYERS[role]) not in tensors:
            return f"{unit.modules[role]} reads other observations there, or in another order"
    return None


def _read(unit: Unit) -> list[str]:
    """The observations that a unit reads."""
    return list(dict.fromkeys(name for sizes in (unit.inputs, *unit.columns.values()) for name, _ in sizes))


def _places(theirs: Sizes, own: Sizes) -> list[int]:
    """Where the observations of this run are among those of the other run."""
    names = [name for name, _ in theirs]
    return [names.index(name) for name, _ in own]


def _chosen(weight: Tensor, theirs: Sizes, own: Sizes) -> Tensor:
    """The columns of the observations of this run, and the further columns. All if the widths are not those of
    `theirs`: then the shapes differ, which is reported."""
    widths = [size for _, size in theirs]
    further = weight.shape[1] - sum(widths)
    if theirs == own or further < 0:
        return weight
    columns = weight.split([*widths, further], 1)
    return torch.cat([*(columns[place] for place in _places(theirs, own)), columns[-1]], 1)


def _report(fit: Fit, wanted: tuple[str, ...]) -> UnitReport:
    if fit.part not in wanted:
        return UnitReport(fit.part, fit.unit, 0, "not asked for")
    left_out = f"without {fit.left_out}" if fit.left_out else ""
    return UnitReport(fit.part, fit.unit, len(fit.pairs), fit.problem or left_out)


def _size(values: Tensor | None) -> str:
    """The shape of a tensor, for the user."""
    if values is None:
        return "missing"
    return "x".join(map(str, values.shape)) or "one number"
