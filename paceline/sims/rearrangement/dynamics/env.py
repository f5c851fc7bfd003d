"""`DynamicRearrangementEnv`: one robot in MuJoCo, as a Gymnasium environment.

Episodes, observations, rewards and ends are those of `Rearrangement` with one robot. Only what moves is MuJoCo's.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.dynamics.camera import make_camera
from paceline.sims.rearrangement.dynamics.config import FAMILY, TASKS, DynamicsConfig
from paceline.sims.rearrangement.dynamics.house import HouseDynamics, HouseMotion
from paceline.sims.rearrangement.physics.grip import grasp_of, handle_distances
from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.rendering.camera import depth_space
from paceline.sims.rearrangement.rendering.ongoing_pictures import OngoingPictures
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.simulator import Rearrangement, Stream
from paceline.sims.rearrangement.tasks.protocol import Facts, SkillJudgement

Observation = dict[str, np.ndarray]


class DynamicRearrangementEnv(gymnasium.Env):
    """A seed has the same episodes here and in `RearrangementEnv`.

    The info of an episode's last step contains its measures. A simulation that diverges ends the episode without a
    reward.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self, task: str = "pick", *, render_mode: str | None = None, bank: HouseBank | None = None, **options: Any
    ) -> None:
        """`task` is a name in `TASKS`. `options` are those of `DynamicsConfig`."""
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode {render_mode!r} does not exist; allowed: rgb_array, or None")
        if task not in TASKS:
            raise UsageError(f"task {task!r} of {FAMILY} does not exist; allowed: {', '.join(TASKS)}")
        self.render_mode = render_mode
        self.config = config = DynamicsConfig.of_options(options, f"{FAMILY}:{task}")
        self.simulator = Rearrangement(1, "cpu", task, RearrangementConfig(**config.kinematic()), bank=bank)
        """Its robot is always where MuJoCo's is."""
        own = self.simulator.observation_space.spaces
        self.observation_space = spaces.Dict({**depth_space(config), **own})
        self.action_space = self.simulator.action_space
        self.measure_names = self.simulator.measure_names
        self._camera = make_camera(config, self.simulator)
        self._pictures = OngoingPictures(self.simulator)
        self._is_seeded = self._is_under_way = False
        self.house = self._enter()
        self._camera.see(self.house, self.simulator.stream)  # a missing renderer is found before the first step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        if seed is None and not self._is_seeded:
            seed = int(self.np_random.integers(2**31))
        if seed is not None:
            self.simulator.reset(seed)
            self._is_seeded = True
        else:
            self.simulator.begin_next()
        self._is_under_way = True
        self.house = self._enter()
        self._pictures.begin()
        return self._observation(self.simulator.stream), {}

    @torch.no_grad()
    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict]:
        if not self._is_under_way:
            raise gymnasium.error.ResetNeeded("no episode is under way: call reset before step")
        chosen = torch.as_tensor(np.asarray(action, np.float32))[None]
        if not chosen.isfinite().all():
            raise ValueError(f"action {chosen[0].tolist()} is not finite; allowed: numbers from -1 to 1")
        before = self.simulator.stream
        motion = self._move(before, chosen)
        if motion.diverged:
            after, facts, reward, terminated = before, None, 0.0, True
            measures = dict.fromkeys(self.simulator.task.measure_names, 0.0)
        else:
            after, facts, judged = self._judged(before, chosen, motion)
            reward, terminated = float(judged.reward[0]), bool(judged.terminated[0])
            measures = {name: float(values[0]) for name, values in judged.measures.items()}
            self.simulator.adopt(after)
            self._pictures.step(facts, after)
        steps, collisions, path = after.counters[0].tolist()
        truncated = steps >= self.simulator.num_steps and not terminated
        self._is_under_way = not (terminated or truncated)
        info = {**measures, "collisions": collisions, "path_length": path, "steps": steps}
        return self._observation(after, facts), reward, terminated, truncated, {} if self._is_under_way else info

    def get_state(self) -> dict[str, Any]:
        """The state for an exact continuation. What `render` shows of the past is not included."""
        flags = {"is_seeded": self._is_seeded, "is_under_way": self._is_under_way}
        return {
            "simulator": self.simulator.state_dict(),
            "house": self.house.get_state(),
            "random": self.np_random.bit_generator.state,
            **flags,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.simulator.load_state_dict(state["simulator"])
        self.house = self._enter()
        self.house.set_state(state["house"])
        self.np_random.bit_generator.state = state["random"]
        self._is_seeded, self._is_under_way = state["is_seeded"], state["is_under_way"]
        self._pictures.begin()

    def render(self) -> np.ndarray | None:
        """As that of `RearrangementEnv`."""
        return None if self.render_mode is None else self._pictures.picture()

    def close(self) -> None:
        self._camera.close()

    def _enter(self) -> HouseDynamics:
        """The house of the simulator's present episode."""
        stream = self.simulator.stream
        house = HouseDynamics(
            self.simulator.bank, int(stream.scenes[0]), int(stream.episodes[0]), self.config.resolution
        )
        house.place(stream.state)
        return house

    def _move(self, stream: Stream, chosen: torch.Tensor) -> HouseMotion:
        decided = stream.previous if self.config.behind else chosen
        command = self.simulator.actions.read(decided, stream.state.held)
        forward, left = command.base[0].tolist()
        return self.house.advance(command.turns[0].double().numpy(), forward, left, bool(command.closes[0]))

    def _judged(
        self, before: Stream, chosen: torch.Tensor, motion: HouseMotion
    ) -> tuple[Stream, Facts, SkillJudgement]:
        """The stream after a step, what the step has come to, and what it is worth."""
        moved = before._replace(state=self.house.state(before.state))
        tip = torch.from_numpy(self.house.suction.tip()).float()[None]
        taken = torch.tensor([motion.taken])
        if motion.taken != NOTHING:
            world = self.simulator.world_of(moved)
            grasp = grasp_of(world, moved.state, tip, handle_distances(world, moved.state, tip), taken)
            moved = moved._replace(state=moved.state._replace(grasp=grasp))
        facts = self.simulator.facts_of(moved, tip)._replace(
            taken=taken, dropped=torch.tensor([motion.dropped]), collided=torch.tensor([motion.collided])
        )
        judged = self.simulator.task.judge(before.columns, facts)
        counted = torch.tensor([[1.0, float(motion.collided), motion.travelled]])
        after = moved._replace(
            columns=judged.columns, counters=before.counters + counted, previous=chosen.clamp(-1.0, 1.0)
        )
        return after, facts, judged

    def _observation(self, stream: Stream, facts: Facts | None = None) -> Observation:
        vectors = self.simulator.vectors(stream, facts)
        return {
            **self._camera.see(self.house, stream),
            **{name: values[0].numpy() for name, values in vectors.items()},
        }
