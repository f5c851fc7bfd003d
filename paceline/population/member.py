"""A whole run as a member of a population: it trains, publishes its results, and learns from the other members.

Population-based training is asynchronous here. Every `pbt.every` steps a member publishes its result, reads the latest
results of the others, and decides about itself by the rules of `pbt.py`. It waits for nobody. A member that was killed
continues from its own checkpoint. Its last result stays usable meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
from pathlib import Path

import torch

from paceline.checkpoint import Checkpoint, CheckpointError
from paceline.config import Config
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.files import DiskFull, remove_temporaries
from paceline.keywords import options_in_messages
from paceline.learner.finite import require_finite
from paceline.learner.hyperparameters import OF_D4PG, Hyperparameters, ppo_hyperparameters
from paceline.population.adoption import adopt, training_state
from paceline.population.exchange import ExchangeFolder, MemberResult, shapes_of
from paceline.population.history import FILE, PopulationEvent
from paceline.population.mutation import spread_out, tuned_paths
from paceline.population.pbt import Change, Member, plan_member, require_rankable, round_generator
from paceline.run import Run
from paceline.run_folder import open_run_folder
from paceline.session import Session
from paceline.systems import SYSTEMS
from paceline.telemetry.metrics import LineFile

log = logging.getLogger(__name__)


def tuned_by(config: Config) -> tuple[str, ...]:
    """The hyper-parameters that mutate in a run with this configuration. Raises `UsageError` if one cannot."""
    if SYSTEMS[config.system].family == "d4pg":
        allowed = Hyperparameters(OF_D4PG, d4pg=config.d4pg)
    else:
        allowed = ppo_hyperparameters(config.resolved_ppo, config.optimizer)
    return tuned_paths(config.pbt, allowed.as_dict())


def train_member(
    config: Config, folder: Path, population: Path, *, resume: str | None = None, trust: bool = False
) -> Run:
    """Run `config` in `folder` to its end, as a member of the population in the folder `population`.

    The name of `folder` is the member's name. See `Session` for the other arguments.
    """
    if config.pbt.every is None:
        raise UsageError("a member of a population needs --pbt.every, the steps between two rounds")
    tuned = tuned_by(config)
    exchange, name = ExchangeFolder(population.absolute()), folder.resolve().name
    with options_in_messages(), contextlib.ExitStack() as stack:
        if RankInfo.find().rank == 0:
            own = exchange.of(name)
            stack.enter_context(open_run_folder(own))  # a second member with this name is refused
            remove_temporaries(own / "checkpoints")
        session = stack.enter_context(Session(config, folder, resume=resume, trust=trust))
        member = RunMember(session, exchange, name, tuned)
        member.train(is_new=resume is None)
        return session.state


class RunMember:
    """An open session that takes part in a population. All ranks call its methods together."""

    def __init__(self, session: Session, exchange: ExchangeFolder, name: str, tuned: tuple[str, ...]) -> None:
        if len(session.learners) != 1:
            raise UsageError("a member of a population of runs trains one policy; allowed: --population.policies 1")
        self._session, self._exchange, self._name, self._tuned = session, exchange, name, tuned
        self._settings, self._learner = session.config.pbt, session.learners[0]
        self._network = _fingerprint(session)
        self._objective = f"episode_{self._settings.objective}"
        if self._objective not in session.state.episodes.means():
            allowed = ", ".join(key.removeprefix("episode_") for key in session.state.episodes.means())
            raise UsageError(f"pbt.objective {self._settings.objective!r} does not exist; allowed: {allowed}")
        self._group: Group = session.state.group
        self._events = LineFile(session.folder / FILE)

    def train(self, *, is_new: bool) -> None:
        """Train to the end of the run, with a round every `pbt.every` steps. `is_new`: the run was not resumed."""
        # A rank that a signal interrupts between two parts would leave the others waiting.
        self._session.state.stop.only_sets_flag = True
        if is_new and self._settings.spread > 1:
            self._spread_out()
        if self._group.is_first:
            self._refuse_other_networks()
            if is_new:  # what an earlier run with this name has left is not this run's
                self._exchange.forget(self._name)
        try:
            while not self._session.is_over:
                self._session.run(until=self._settings.next_round(self._session.state.step))
                if not self._group.any(self._session.state.stop.is_requested):
                    self._publish()
                if not self._session.is_over:
                    self._take_part()
        finally:
            self._events.close()

    def _spread_out(self) -> None:
        """Begin with hyper-parameters that differ from those of the other members, which have other seeds."""
        hyperparameters, generator = self._learner.hyperparameters, round_generator(self._session.config.seed, 0)
        configured = {path: hyperparameters.get(path) for path in self._tuned}
        (values,) = spread_out(configured, 1, self._settings, generator)
        for path, value in values.items():
            hyperparameters.set(path, value)

    def _publish(self) -> None:
        """Let the others have this member's result and weights."""
        require_finite(self._learner.policy)
        state = training_state(self._learner)
        if not self._group.is_first:
            return
        result = self._result()
        try:
            self._exchange.publish(result, self._learner.policy.state_dict(), state)
        except DiskFull as error:
            log.warning("%s; the other members keep the last result of %s", error, self._name)

    def _result(self) -> MemberResult:
        state = self._session.state
        objective = state.episodes.means()[self._objective]
        require_rankable(self._name, objective)
        return MemberResult(
            name=self._name,
            step=state.step,
            objective=objective,
            hyperparameters=self._learner.hyperparameters.as_dict(),
            checkpoint=f"step_{state.step}",
            network=self._network,
        )

    def _take_part(self) -> None:
        """One round: decide, take over another member's weights or not, and set the new hyper-parameters."""
        assert self._settings.every is not None
        number = self._session.state.step // self._settings.every
        donor, change = self._decide(number) if self._group.is_first else (None, None)
        donor, change = _from_first(self._group, donor, change)
        if donor is not None and not self._adopt(donor):
            change = dataclasses.replace(change, donor=None, donor_objective=None, donor_step=None, after=change.before)
        for path, value in change.after.items():
            if value != self._learner.hyperparameters.get(path):
                self._learner.hyperparameters.set(path, value)
        if self._group.is_first:
            event = PopulationEvent(step=self._session.state.step, number=number, change=change)
            self._events.append(event.line())
            log.info("%s", _sentence(change, number))

    def _decide(self, number: int) -> tuple[MemberResult | None, Change]:
        """What changes, and the result of the donor, if there is one."""
        results = self._exchange.results() | {self._name: self._result()}
        usable = {name: result for name, result in results.items() if self._fits(result)}
        members = [
            Member(
                name=name,
                objective=result.objective,
                hyperparameters={path: result.hyperparameters[path] for path in self._tuned},
                step=result.step,
            )
            for name, result in usable.items()
        ]
        generator = round_generator(self._session.config.seed, number)
        change = plan_member(self._name, members, self._settings, generator)
        return (usable[change.donor] if change.donor is not None else None), change

    def _fits(self, result: MemberResult) -> bool:
        return result.network == self._network and all(path in result.hyperparameters for path in self._tuned)

    def _adopt(self, donor: MemberResult) -> bool:
        """Take over the donor's weights. False, without any change, if one of the ranks cannot read them."""
        found: Checkpoint | None = None
        try:
            found = self._exchange.load(donor)
        except (CheckpointError, OSError) as error:
            log.warning("the weights of %s cannot be taken over: %s", donor.name, error)
        if self._group.any(found is None):
            return False
        assert found is not None
        adopt(self._learner, found.weights, found.state)
        self._session.state.episodes.clear()  # they are those of the replaced weights
        return True

    def _refuse_other_networks(self) -> None:
        for name, result in self._exchange.results().items():
            if name != self._name and result.network != self._network:
                raise UsageError(
                    f"{self._name} cannot join: {name} of this population trains in another environment, or another "
                    "network; allowed: the same --env, family of systems and network settings"
                )


def _fingerprint(session: Session) -> str:
    config = session.config
    facts = [config.env, SYSTEMS[config.system].family, shapes_of(session.learners[0].policy.state_dict())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _sentence(change: Change, number: int) -> str:
    moved = [
        f"{path} {change.before[path]:.4g} -> {value:.4g}"
        for path, value in change.after.items()
        if value != change.before[path]
    ]
    source = [] if change.donor is None else [f"takes the weights of {change.donor}"]
    return f"round {number} of {change.member}: {', '.join(source + moved) or 'no change'}"


def _from_first(group: Group, donor: MemberResult | None, change: Change | None) -> tuple[MemberResult | None, Change]:
    """What rank 0 has decided, on all ranks."""
    text = ""
    if change is not None:
        text = json.dumps([donor and dataclasses.asdict(donor), dataclasses.asdict(change)], allow_nan=False)
    data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).to(group.device)
    length = group.broadcast_(torch.tensor([len(data)], device=group.device))
    if not group.is_first:
        data = torch.zeros(int(length), dtype=torch.uint8, device=group.device)
    given_donor, given_change = json.loads(group.broadcast_(data).cpu().numpy().tobytes())
    return (None if given_donor is None else MemberResult(**given_donor)), Change(**given_change)
