"""`Session`: an open run. Train to a step, inspect, change settings, continue, close. `train` runs a whole session."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from paceline.accel.allocator import keep_freed_memory
from paceline.assembly import Services, assemble
from paceline.callbacks import Callbacks, require_callbacks
from paceline.checkpoint import Checkpoint, CheckpointFolder
from paceline.checks import as_number
from paceline.collect.kind_slots import all_kinds
from paceline.config import Config
from paceline.distributed.failures import describe_last_checkpoint
from paceline.distributed.ownership import Ownership
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.envs import given
from paceline.envs.registry import resolve, scenes_label, with_absolute_paths
from paceline.errors import UsageError
from paceline.keywords import keywords_in_messages, options_in_messages
from paceline.learner.finite import NonFiniteError
from paceline.learner.protocol import Learner
from paceline.nets.config import PolicyConfig
from paceline.nets.images import is_image
from paceline.nets.scales import warn_of_images, warn_of_scale
from paceline.own_code import require_main_program
from paceline.pool import PoolConfig, make_pool
from paceline.pool.protocol import PoolSpec
from paceline.pool.seeds import pool_seed
from paceline.population.parts import require_possible
from paceline.process_settings import be_deterministic, restored_settings
from paceline.recipes import RECIPES
from paceline.resume import require_same_network, require_same_spaces, require_unfinished
from paceline.run import Run
from paceline.run_folder import OpenFolder, open_run_folder, remove_leftovers, require_nothing_in, set_reports_aside
from paceline.run_names import new_run_folder
from paceline.run_records import record_start
from paceline.saved_spaces import save_spaces
from paceline.saving import Saver
from paceline.schedule.table import make_schedule
from paceline.stop import Stop, StopRun
from paceline.systems import SYSTEMS
from paceline.telemetry.clock import Clock
from paceline.telemetry.metrics import MetricsWriter
from paceline.telemetry.phases import Phases
from paceline.telemetry.progress import Progress
from paceline.transfer import initial_weights
from paceline.trust import may_unpickle

log = logging.getLogger(__name__)


def train(config: Config, folder: Path, *, resume: str | None = None, trust: bool = False) -> Run:
    """Run `config` in `folder` to its end, for a command. See `Session` for the arguments."""
    require_population(config)
    with options_in_messages(), Session(config, folder, resume=resume, trust=trust) as session:
        session.run()
        return session.state


def require_population(config: Config) -> None:
    """Refuse population-based training of a single policy. A member of `paceline population` may have one."""
    if config.pbt.every is not None and config.population.policies == 1:
        raise UsageError(
            "pbt.every needs several policies; allowed: --population.policies 2 or more, or several runs: paceline "
            "population"
        )


class Session:
    """An open run, as a context manager. Entering it starts the simulators. Leaving it saves, unless an exception
    ends it, and closes everything.

    `resume` names the checkpoint to continue from: latest (or True), best or step_N. Without it, a folder that holds a
    run is refused. With `trust`, simulators saved in that
    checkpoint are loaded even if somebody else wrote it. Settings of the process that training changes (threads,
    precision, determinism, random numbers) are as before when the session is closed.
    """

    @keywords_in_messages
    def __init__(
        self,
        config: Config,
        folder: str | Path | None = None,
        *,
        env: str | Callable[..., Any] | None = None,
        callbacks: Iterable[object] = (),
        resume: bool | str | None = None,
        trust: bool = False,
    ) -> None:
        """By default `folder` is a new one in runs/. `env` makes the environments, instead of the id in `config`."""
        if not isinstance(config, Config):
            raise UsageError(f"a Session needs a Config, not {config!r}; train(...) takes the name of a recipe")
        if env is not None:
            config = dataclasses.replace(config, env=env if isinstance(env, str) else given.id_of(env))
        config = dataclasses.replace(config, env=with_absolute_paths(config.env))
        self.config, self._trust = config, trust
        self._env = None if isinstance(env, str) else env
        self._resume = "latest" if resume is True else resume or None
        folder = new_run_folder(config) if folder is None else Path(folder).expanduser()
        self.folder = folder.absolute()  # a simulator may change the working directory
        if not isinstance(callbacks, Iterable):
            raise UsageError(f"callbacks is a {type(callbacks).__name__}; allowed: a list of callbacks")
        self._callbacks = list(callbacks)
        require_callbacks(self._callbacks)
        self._stack = contextlib.ExitStack()
        self._state: Run | None = None
        self._is_over = False

    @property
    def state(self) -> Run:
        """Progress, episode statistics, learners."""
        if self._state is None:
            raise UsageError("this session is not open; allowed: with Session(...) as session: session.run()")
        return self._state

    @property
    def learners(self) -> Sequence[Learner]:
        """One for each policy. Their hyper-parameters may be changed between two calls of `run`."""
        return self.state.learners

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, was stopped or has failed. `run` then refuses to continue it."""
        return self._is_over

    @property
    def step(self) -> int:
        """Agent steps trained on so far, over all ranks."""
        return self.state.step

    @property
    def metrics(self) -> dict[str, float | None]:
        """Steps, seconds, means over the latest episodes, and losses of the latest update, as of now."""
        state = self.state
        return {"step": state.step, "seconds": state.seconds, **state.episodes.means(), **state.losses}

    @keywords_in_messages
    def __enter__(self) -> Session:
        require_main_program()
        self._is_over = False
        try:
            self._enter()
        except KeyboardInterrupt:
            if RankInfo.find().rank == 0:
                log.warning("stopped before training; nothing was saved")
            raise
        return self

    def _enter(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(restored_settings())
            keep_freed_memory()
            opened = OpenFolder()
            if RankInfo.find().rank == 0:
                opened = stack.enter_context(open_run_folder(self.folder))
                if self._resume is None:
                    require_nothing_in(self.folder)
            group = stack.enter_context(Group.join(self.config.device, self.config.group, self.folder))
            self._open(group, stack)
            self._opened, self._stack = opened, stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = self.state
        state.stop.loop_is_running = True  # from here on a signal must not interrupt the checkpoint
        self._opened.is_used = state.iterations > 0
        was_over, self._is_over = self._is_over, True
        with contextlib.ExitStack() as closing:
            closing.push(self._stack)
            # After an exception of the caller, another rank may not come to the checkpoint.
            if not was_over and (error is None or state.group.size == 1):
                try:
                    self._saver.save_end()
                except BaseException as failure:
                    self._call_on_stop(failure)
                    raise
            self._call_on_stop(error)
            if error is not None:
                raise error

    def _call_on_stop(self, error: BaseException | None) -> None:
        try:
            self.state.callbacks.stop(error)
        except Exception:
            if error is None:
                raise
            log.exception("a callback failed in on_stop, after the run had failed")  # the first failure is raised

    @keywords_in_messages
    def run(self, until: int | None = None) -> None:
        """Train until the run has `until` steps over all ranks; by default to the end of the run.

        A signal or the deadline ends it earlier. Call it again to continue. A checkpoint is saved when the run ends or
        is stopped.
        """
        state = self.state
        if self._is_over:
            raise UsageError("this session is over: the run has ended or was stopped; --resume continues it")
        last = self.config.steps if until is None else min(as_number(int, until, "until"), self.config.steps)
        self._is_over = True  # unless the training loop returns before the end of the run
        state.until = last
        left = None if self.config.seconds is None else self.config.seconds - state.seconds
        state.stop.loop_is_running = True
        with state.counting_seconds(), state.stop.after(left), state.stop.shared():
            try:
                self._schedule()
            except StopRun:
                state.report_end()
                self._saver.save_stopped()
            except NonFiniteError as error:
                hint = "A smaller learning rate may help; --on-nonfinite skip leaves out single gradient steps"
                raise type(error)(f"{error}; {describe_last_checkpoint(self.folder)}. {hint}") from error
            else:
                state.report_end()
                self._is_over = state.step >= self.config.steps or state.is_stopped_by_callback
                state.stop.loop_is_running = self._is_over
                if self._is_over:
                    self._saver.save(final=True)

    def _open(self, group: Group, stack: contextlib.ExitStack) -> None:
        """Make the parts and restore them. The folder of a resumed run does not change before that has succeeded."""
        config, folder = self.config, self.folder
        # Before the display, where the user could not be asked.
        checkpoint = self._checkpoint_to_resume() if self._resume is not None else None
        # A resumed run has its own weights, and does not need the other run any more.
        initial = initial_weights(config) if checkpoint is None else None
        loads = (
            checkpoint is not None and checkpoint.has_pickles and may_unpickle(checkpoint.manifest, trust=self._trust)
        )
        require_possible(config)
        ownership = Ownership.of(group, config.population.policies, spread=config.population.spread)
        stop, phases, clock, display = Stop(group), Phases(), Clock(), None
        if group.is_first:
            title = f"{config.system} on {config.env}"
            display = stack.enter_context(Progress(title, folder, phases, line_seconds=config.log_seconds))
        stack.enter_context(stop.on_signals())
        seed_process(config, group)
        env = self._env or config.env
        pool = make_pool(
            env,
            pool_config(config, env, group.device),
            seed=pool_seed(config.seed, group.rank, 0 if checkpoint is None else checkpoint.state["step"]),
            device=str(group.device),
            phases=phases,
        )
        stack.enter_context(contextlib.closing(pool))
        stop.on_request(pool.wake)
        if checkpoint is None:
            require_images(config, pool.spec)
            is_ppo = SYSTEMS[config.system].family == "ppo"
            for kind in all_kinds(pool.spec) if group.is_first else ():
                normalizes = is_ppo and config.policy.normalize_obs  # d4pg normalises no images
                warn_of_images(kind.spec, config.policy, config.env, normalizes=normalizes)
                if is_ppo:
                    warn_of_scale(kind.spec, config.policy, config.env)
        services = Services(group=group, ownership=ownership, stop=stop, clock=clock, phases=phases)
        learners, collection, population = assemble(config, services, pool, folder, initial)
        stack.enter_context(contextlib.closing(collection))
        callbacks = Callbacks(self._callbacks, self, is_first=group.is_first, handlers=stop.handlers_of_callbacks)
        state = Run(
            config,
            group,
            pool,
            folder,
            learners,
            ownership=ownership,
            clock=clock,
            stop=stop,
            phases=phases,
            display=display,
            callbacks=callbacks,
        )
        self._state, self._saver = state, Saver(state, collection)
        state.before_iteration, state.save = self._saver.before_iteration, self._saver.save
        state.keep_state, state.collection = self._saver.keep_state, collection
        if population is not None:
            state.population = population
            stack.callback(population.close)
        self._schedule = make_schedule(state, config, learners, collection)
        if checkpoint is not None:
            saved = Config.load(folder / "config.json")
            require_same_spaces(checkpoint.weights, learners[0].policy.state_dict(), saved, config)
            self._saver.restore(checkpoint, may_unpickle=loads)
            if group.is_first:
                log.info("continuing from step %s, checkpoint %s", f"{state.step:,}", checkpoint.folder)
        if group.is_first:
            remove_leftovers(folder)
            if checkpoint is None:
                set_reports_aside(folder)
            config.save(folder / "config.json")
            save_spaces(pool.spec, folder)
            record_start(folder, scenes_label(config.env))
            if initial is not None:
                log.info("%s", initial.table())
                initial.write(folder)
            as_dict = dataclasses.asdict(config)
            resumed_from = None if checkpoint is None else state.step
            state.metrics = MetricsWriter(
                folder, wandb_project=config.wandb_project, config=as_dict, resumed_from=resumed_from
            )
            stack.callback(state.metrics.close)

    def _checkpoint_to_resume(self) -> Checkpoint:
        """The checkpoint to continue from, if this configuration can, and if there is anything left to train."""
        assert self._resume is not None
        saved = Config.load(self.folder / "config.json")
        require_same_network(saved, self.config, self.folder)
        checkpoint = CheckpointFolder(self.folder / "checkpoints").load(self._resume)
        require_unfinished(checkpoint, self.config, saved)
        return checkpoint


def require_images(config: Config, spec: PoolSpec) -> None:
    """Refuse a chosen encoder of images where no observation is an image. A recipe may have another environment than
    its own. A policy of the user's own reads the settings as it likes."""
    if config.policy.is_own or any(map(is_image, spec.obs)):
        return
    default, of_recipe = PolicyConfig(), RECIPES.get(config.recipe, Config)().policy
    instead = ", or --policy.kind for a network of your own" if SYSTEMS[config.system].family == "ppo" else ""
    for name in ("encoder", "encoder_size"):
        value, usual = getattr(config.policy, name), getattr(default, name)
        if value not in (usual, getattr(of_recipe, name)):
            raise UsageError(
                f"policy.{name} is {value}, but no observation of {config.env} is an image; allowed: {usual}{instead}"
            )


def seed_process(config: Config, group: Group) -> None:
    """Random numbers, precision and determinism of this process."""
    torch.manual_seed(config.seed + group.rank)
    # One precision for single steps and for whole sequences, whose kernels would otherwise differ in it.
    torch.set_float32_matmul_precision("high")
    if config.deterministic:
        be_deterministic()


def pool_config(config: Config, env: str | Callable[..., Any], device: torch.device) -> PoolConfig:
    """The pool's settings, completed by what the run decides."""
    pool = config.pool
    if config.deterministic and pool.kind == "auto" and resolve(env).steps_singly:
        pool = dataclasses.replace(pool, kind="serial")
    if device.type == "cuda":
        graphs = pool.cuda_graphs and config.compute.cuda_graphs
        pool = dataclasses.replace(pool, pin_memory=True, cuda_graphs=graphs)
    return pool
