"""`Rearrangement`: N mobile manipulators in the houses of a bank, as tensors on one device.

It moves the robots and what they hold, renders their cameras and begins their episodes. A `Skill` says how an episode
begins, what a step is worth and when it ends.

Observations, all as seen by the robot:

    depth [1, H, W]         from the head; see `rendering`
    joints [7]              angles of the arm
    grip [1]                whether something is held
    rest [3]                from the tip of the hand to its resting place
    target [6]              the target of the task, from the tip and from the base
    gps [4]                 position, and cosine and sine of the heading, relative to the start
    previous_action [A]     at the start nothing moves, and what is carried is held

`step` neither waits for the device nor reads values, and it writes all state in place, so a CUDA graph can capture it.
Random numbers are hashes of seed, stream and episode, so a stream is the same in a batch of any size.

Legend: N streams, E episodes, O objects, C columns of the task, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.errors import UsageError
from paceline.pool.tensor import TensorStep
from paceline.sims.randomness import below, combine, stream_keys
from paceline.sims.rearrangement.actions import Actions
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.objects import HALF_EXTENTS
from paceline.sims.rearrangement.physics.contact import depths
from paceline.sims.rearrangement.physics.grip import grip
from paceline.sims.rearrangement.physics.motion import advance
from paceline.sims.rearrangement.physics.world import (
    NOTHING,
    State,
    World,
    arm_of,
    in_drawers,
    resting_state,
)
from paceline.sims.rearrangement.rendering.camera import HeadCamera, Scenery, depth_space, scenery
from paceline.sims.rearrangement.robot.arm import REST_ANGLES, forward_kinematics
from paceline.sims.rearrangement.scenes.bank import HouseBank, load_or_generate_houses
from paceline.sims.rearrangement.surroundings import static_boxes, world_of
from paceline.sims.rearrangement.tasks.protocol import EpisodeDraw, Facts, Skill
from paceline.sims.rearrangement.tasks.starts import Starts
from paceline.sims.rearrangement.tasks.table import SKILLS

SCENE, EPISODE, WITHIN = range(1, 4)
"""Purposes of random numbers."""


class Stream(NamedTuple):
    """All that changes in N streams."""

    state: State
    columns: Tensor
    """[N, C]."""
    depth: Tensor
    """[N]: see `depths`."""
    counters: Tensor
    """[N, 3]: steps, collisions, and metres driven."""
    start: Tensor
    """[N, 3]: the pose at the start."""
    previous: Tensor
    """[N, A]: the last action."""
    scenes: Tensor
    """int64 [N]."""
    episodes: Tensor
    """int64 [N]: the number within the scene."""


class Rearrangement:
    """A `TensorSimulator`. Its stream i is stream `first_stream` + i of the seed."""

    frameskip = 1
    recordable = True

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        task: str = "pick",
        config: RearrangementConfig | None = None,
        *,
        bank: HouseBank | None = None,
        first_stream: int = 0,
    ) -> None:
        if num_envs < 1:
            raise UsageError(f"rearrange: num_envs is {num_envs}; allowed: 1 or more")
        self.config = config = config or RearrangementConfig()
        self.num_envs, self.device, self.task_name = num_envs, torch.device(device), task
        self.bank = (bank or load_bank(config)).to(self.device)
        own = SKILLS[task].scenario
        if own not in ("", config.scenario):
            raise UsageError(f"rearrange:{task}: scenario is {config.scenario!r}; allowed: {own}")
        if not config.base and (own or task == "navigate" or config.start == "far"):
            raise UsageError(
                f"rearrange:{task}: base is false; allowed: in skills of the arm that start near their target"
            )
        if self.bank.scenario != config.scenario:
            raise UsageError(f"the houses are those of {self.bank.scenario}; allowed: {config.scenario}")
        self.task: Skill = SKILLS[task].load(Starts(self.bank, config))
        self.actions = Actions(self.task.parts, config)
        self.num_steps = config.max_episode_steps or self.task.num_steps
        self.truncation_gap = self.num_steps
        self.measure_names = (*self.task.measure_names, "collisions")
        self.last_measures: dict[str, Tensor] = {}
        """[N] each, after the last step: those of the task, `collisions`, `path_length` and `steps`. They are final
        where that step ended the episode."""
        self.last_stream: Stream | None = None
        """After the last step, before any reset."""
        self.last_facts: Facts | None = None
        """Of the last step."""
        self._camera = HeadCamera(self.bank, config, self.device)
        self._extents = torch.tensor(HALF_EXTENTS, device=self.device)
        self._static = static_boxes(self.bank)
        self._rest_tip = forward_kinematics(torch.tensor([REST_ANGLES], device=self.device)).tip
        self._streams = torch.arange(first_stream, first_stream + num_envs, device=self.device)
        self._keys = torch.zeros(3, num_envs, dtype=torch.int64, device=self.device)
        self._numbers = torch.zeros_like(self._streams)
        self._schedule: Tensor | None = None
        self.observation_space = self._spaces()
        self.action_space = spaces.Box(-1.0, 1.0, (self.actions.size,), np.float32)
        self._stream = self._begun(self._draw())

    # Called by pools.

    def reset(self, seed: int) -> dict[str, Tensor]:
        """Begin the first episode of every stream."""
        keys = stream_keys(seed, self._streams)
        for row, purpose in zip(self._keys, (SCENE, EPISODE, WITHIN), strict=True):
            row.copy_(combine(keys, purpose))
        self._schedule = None
        self._numbers.fill_(-1)
        return self.begin_next()

    @torch.no_grad()
    def step(self, actions: Tensor) -> TensorStep:
        # The next episode is written over these three, and the last observation of an episode needs the old ones.
        kept = {name: getattr(self._stream, name).clone() for name in ("start", "scenes", "episodes")}
        stream = self._stream._replace(**kept)
        world = self.world_of(stream)
        command = self.actions.read(stream.previous if self.config.behind else actions, stream.state.held)
        moved = advance(
            world, stream.state, arm_of(stream.state), stream.depth, command.base, command.turns, self.config.slide
        )
        gripped = grip(world, moved.state, moved.arm, command.closes)
        facts = self._facts(stream, gripped.state, moved.arm.tip)._replace(
            taken=gripped.taken, dropped=gripped.dropped, collided=moved.collided, stopped=command.stops
        )
        judged, self.last_facts = self.task.judge(stream.columns, facts), facts
        counted = torch.stack((torch.ones_like(moved.depth), moved.collided.float(), moved.travelled), 1)
        after = stream._replace(
            state=gripped.state,
            columns=judged.columns,
            depth=moved.depth,
            counters=stream.counters + counted,
            previous=actions.clamp(-1.0, 1.0),
        )
        steps, collisions, path = after.counters.unbind(1)
        terminated = judged.terminated
        truncated = (steps >= self.num_steps) & ~terminated
        ended = terminated | truncated
        self.last_measures = {**judged.measures, "collisions": collisions, "path_length": path, "steps": steps}
        self.last_stream = after
        # What the hand has let go can be in its way (a door too), and a new episode begins elsewhere.
        new_world = self._continue(after, ended, again=ended | (gripped.dropped != NOTHING))
        before, now = scenery(world, after.state, after.scenes), self._scenery(new_world)
        final_images, images = self._camera.see_both(before, now, ended)
        final, first = self.vectors(after), self.vectors(self._stream)
        return TensorStep({**images, **first}, judged.reward, terminated, truncated, {**final_images, **final})

    def state_dict(self) -> dict[str, Any]:
        schedule = None if self._schedule is None else self._schedule.clone()
        tensors = {f"stream/{number}": value.clone() for number, value in enumerate(_flat(self._stream))}
        own = {"keys": self._keys.clone(), "numbers": self._numbers.clone(), "schedule": schedule}
        return {**tensors, **own, "bank": self.bank.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bank.load_state_dict(state["bank"])
        for number, value in enumerate(_flat(self._stream)):
            value.copy_(state[f"stream/{number}"])
        self._keys.copy_(state["keys"])
        self._numbers.copy_(state["numbers"])
        self._schedule = None if state["schedule"] is None else state["schedule"].to(self.device)

    # For evaluation.

    def load_episodes(self, scenes: Sequence[int], episodes: Sequence[int], first: int = 0) -> dict[str, Tensor]:
        """Play a list of episodes until the next `reset`; returns the first observations.

        Stream i plays episodes i, i + N, i + 2N and so on of the list, and then repeats its last one. What an episode
        does not say (the target, the start) depends on its place in the list alone: the first one, if it is listed
        several times. For a part of a longer list, `first` is the place of its first episode.
        """
        if len(scenes) != len(episodes) or len(scenes) < self.num_envs:
            raise UsageError(
                f"{len(scenes)} scenes and {len(episodes)} episodes were given; allowed: equal numbers, and at least "
                f"one for each of the {self.num_envs} streams"
            )
        rounds = -(-len(scenes) // self.num_envs)
        order = np.arange(rounds * self.num_envs)
        order[len(scenes) :] -= self.num_envs  # streams with one episode less repeat their last one
        flat = np.asarray(scenes) * self.bank.num_episodes + np.asarray(episodes)
        _, firsts, own = np.unique(flat, return_index=True, return_inverse=True)
        listed = torch.from_numpy(np.stack((scenes, episodes, firsts[own] + first)))
        self._schedule = listed[:, order].view(3, rounds, self.num_envs).to(self.device)
        self._numbers.fill_(-1)
        return self.begin_next()

    @torch.no_grad()
    def begin_next(self) -> dict[str, Tensor]:
        """Abandon all current episodes and begin the next ones; returns the first observations."""
        everywhere = torch.ones_like(self._streams, dtype=torch.bool)
        world = self._continue(self._stream, everywhere, again=everywhere)
        return {**self._camera.see(self._scenery(world)), **self.vectors(self._stream)}

    @property
    def stream(self) -> Stream:
        """Everything as it is now. A copy."""
        copies = iter([value.clone() for value in _flat(self._stream)])
        return _filled(self._stream, copies)

    def adopt(self, stream: Stream) -> None:
        """Continue from `stream`, which something else has moved. Depths are not computed again."""
        for kept, new in zip(_flat(self._stream), _flat(stream), strict=True):
            kept.copy_(new)

    def world(self) -> World:
        """What is around the robots."""
        return self.world_of(self._stream)

    def world_of(self, stream: Stream) -> World:
        kinds = self.bank.object_kinds[stream.scenes, stream.episodes]
        return world_of(self.bank, self._static, stream.scenes, self._extents[kinds])

    def facts_of(self, stream: Stream, tips: Tensor | None = None) -> Facts:
        """`tips` [N, 3] are those of the hands, if they are known."""
        return self._facts(stream, stream.state, arm_of(stream.state).tip if tips is None else tips)

    def vectors_of(
        self, stream: Stream, task: Skill, columns: Tensor, start: Tensor, facts: Facts | None = None
    ) -> dict[str, Tensor]:
        """The observations that depend on the task, for one with `columns` that began at the poses `start` [N, 3]."""
        pose = stream.state.pose
        facts = facts or self.facts_of(stream)
        tip, target = self._seen(pose, facts.tip), self._seen(pose, task.target(columns, facts))
        x, y, _ = self._seen(start, torch.cat((pose[:, :2], pose[:, :1]), 1)).unbind(1)
        turned = pose[:, 2] - start[:, 2]
        return {
            "rest": self._rest_tip - tip,
            "target": torch.cat((target - tip, target), 1),
            "gps": torch.stack((x, y, turned.cos(), turned.sin()), 1),
        }

    def vectors(self, stream: Stream, facts: Facts | None = None) -> dict[str, Tensor]:
        """All observations but images. `facts` are those of `stream`, if they are known."""
        told = self.vectors_of(stream, self.task, stream.columns, stream.start, facts)
        return {
            **told,
            "joints": stream.state.angles.clone(),
            "grip": (stream.state.held != NOTHING)[:, None].float(),
            "previous_action": stream.previous.clone(),
        }

    # Episodes.

    def _draw(self) -> EpisodeDraw:
        if self._schedule is not None:
            rounds = self._numbers.clamp(0, self._schedule.shape[1] - 1)
            scenes, episodes, places = self._schedule.gather(1, rounds.expand(3, 1, -1))[:, 0].unbind(0)
            return EpisodeDraw(scenes, episodes, combine(torch.full_like(places, SCENE), places))
        for_scene, for_episode, within = combine(self._keys, self._numbers).unbind()
        return EpisodeDraw(below(for_scene, self.bank.num_scenes), below(for_episode, self.bank.num_episodes), within)

    def _begun(self, draw: EpisodeDraw) -> Stream:
        """The streams at the start of the episodes `draw`, without distances and depths."""
        bank, num = self.bank, self.num_envs
        start = self.task.begin(draw)
        at = (draw.scenes, draw.episodes)
        inside = bank.object_joint[at]
        lying = in_drawers(bank.joints[draw.scenes], bank.objects[at], inside, start.values)
        world = world_of(bank, self._static, draw.scenes, self._extents[bank.object_kinds[at]])
        state = resting_state(world, start.pose, start.values, lying, inside, start.carried)
        zeros = torch.zeros(num, 3, device=self.device)
        return Stream(
            state, start.columns, zeros[:, 0].clone(), zeros, start.pose.clone(), self.actions.first(start.carried), *at
        )

    def _continue(self, after: Stream, ended: Tensor, again: Tensor) -> World:
        """Continue from `after`, or from the start of the next episode for streams in `ended`. Returns the new world.

        Depths are computed `again` for some.
        """
        self._numbers += ended
        fresh = self._begun(self._draw())
        fresh = fresh._replace(columns=self.task.first(fresh.columns, self.facts_of(fresh)))
        for kept, old, new in zip(_flat(self._stream), _flat(after), _flat(fresh), strict=True):
            kept.copy_(torch.where(ended.view(-1, *[1] * (old.dim() - 1)), new, old))
        world, state = self.world(), self._stream.state
        depth = depths(world, state, arm_of(state), only=again)
        self._stream.depth.copy_(torch.where(again, depth, self._stream.depth))
        return world

    # Observations.

    def _facts(self, stream: Stream, state: State, tips: Tensor) -> Facts:
        tip = self._seen(state.pose, tips)
        nothing = torch.full_like(stream.scenes, NOTHING)
        never = torch.zeros_like(stream.scenes, dtype=torch.bool)
        rest_distance = (tip - self._rest_tip).norm(dim=1)
        return Facts(stream.scenes, stream.episodes, state, tips, rest_distance, nothing, nothing, never, never)

    def _seen(self, poses: Tensor, points: Tensor) -> Tensor:
        """[N, 3]: `points` in the base frame of robots at `poses`."""
        cos, sin = poses[:, 2].cos(), poses[:, 2].sin()
        x, y = (points[:, :2] - poses[:, :2]).unbind(1)
        return torch.stack((cos * x + sin * y, cos * y - sin * x, points[:, 2]), 1)

    def _scenery(self, world: World) -> Scenery:
        return scenery(world, self._stream.state, self._stream.scenes)

    def _spaces(self) -> spaces.Dict:
        unbounded = {"joints": 7, "rest": 3, "target": 6, "gps": 4}
        parts: dict[str, spaces.Space] = {
            name: spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in unbounded.items()
        }
        parts["grip"] = spaces.Box(0.0, 1.0, (1,), np.float32)
        parts["previous_action"] = spaces.Box(-1.0, 1.0, (self.actions.size,), np.float32)
        return spaces.Dict({**depth_space(self.config), **parts})


def load_bank(config: RearrangementConfig) -> HouseBank:
    """The houses of a configuration."""
    return load_or_generate_houses(config.tier, config.split, config.scenes, config.bank_seed, config.scenario)


def _flat(stream: Stream) -> list[Tensor]:
    return [*stream.state, *stream[1:]]


def _filled(stream: Stream, values: Any) -> Stream:
    state = State(*(next(values) for _ in stream.state))
    return Stream(state, *values)
