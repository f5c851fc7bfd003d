"""The work that `benchmarks.accelerations` measures, in the plain way and in the fast one.

A `Way` measures one unit of work. A `Pair` has the plain way first and the fast way second.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from paceline.accel import activations, block_convolution, lstm_scan
from paceline.accel.compiled_sizes import CompiledBySize
from paceline.accel.cuda_graph import CudaGraph
from paceline.accel.kernels import keep_in_precision, one_thread
from paceline.accel.naps import Naps
from paceline.accel.perceptron import Perceptron
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.nets.cores import Core
from paceline.nets.encoders import ConvEncoder, NatureCNN, SampleFactoryConv, as_float
from paceline.nets.resnet import ResNetEncoder
from paceline.pool import Pool, PoolConfig, make_pool
from paceline.pool.protocol import PoolSpec
from paceline.pool.random_actions import RandomActions

from . import updates_cell
from .cells import run_module
from .ppo_cell import WARM_UP_SECONDS

Way = Callable[[float], float]
"""Measures for this many seconds; returns the time of one unit of work."""
Work = Callable[[], object]
Clock = Callable[[], float]
Context = Callable[[], contextlib.AbstractContextManager[Any]]

CELL = f"{__package__}.accelerations_cell"
TRAINED = {"lstm": 0, "hidden": 64, "rollout_steps": 128, "epochs": 1, "minibatches": 4, "num_envs": 64}
ATARI, DOOM = (4, 84, 84), (3, 72, 128)


class Pair(NamedTuple):
    """The same work without an acceleration and with it."""

    plain: Way
    fast: Way


# ---------------------------------------------------------------- clocks


def wall() -> float:
    """Wall-clock time. Waits for the GPU's work first."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@contextlib.contextmanager
def on_cpu(threads: int = 1, onednn: bool = True) -> Iterator[None]:
    """With this many of PyTorch's threads, with oneDNN or without."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about TF32 on GPUs that are not there
            with torch.backends.mkldnn.flags(enabled=onednn):
                yield
    finally:
        torch.set_num_threads(before)


def timed(
    work: Work, off: Context = contextlib.nullcontext, clock: Clock = time.process_time, within: Context = on_cpu
) -> Way:
    """The time of one call of `work`. By default one thread's processor time, to which other programs add little.

    `off` is a context that switches an acceleration off.
    """

    def way(seconds: float) -> float:
        with within(), off():
            work()
            begin, count = clock(), 0
            while (spent := clock() - begin) < seconds:
                work()
                count += 1
            return spent / count

    return way


def cells(off: str, options: dict[str, Any]) -> Pair:
    """Each measurement is a process of its own; see `accelerations_cell` for what `off` names."""

    def way(without: list[str], seconds: float) -> float:
        seconds += WARM_UP_SECONDS[options.get("device", "cpu")]
        asked = {"threads": None, "seconds": seconds, "off": without} | options
        return run_module(CELL, asked, seconds + 240)["seconds"]

    return Pair(partial(way, [off]), partial(way, []))


def training(off: str, **options: Any) -> Pair:
    """Wall-clock time per step of a whole training run; with `cpu=True`, processor time."""
    return cells(off, TRAINED | options)


# ---------------------------------------------------------------- small networks


def policy_of(seen: spaces.Space, done: spaces.Space, device: str = "cpu", **options: Any) -> ActorCritic:
    spec = PoolSpec(observation_space=seen, action_space=done, num_envs=1)
    return ActorCritic(spec, PolicyConfig(**options)).to(device)


def cartpole() -> ActorCritic:
    return policy_of(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))


def cheetah() -> ActorCritic:
    return policy_of(spaces.Box(-1, 1, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32))


def numbers(policy: ActorCritic, rows: int) -> dict[str, Tensor]:
    return {"obs": torch.randn(rows, *policy.trunk.leaves[0].shape)}


def decision(policy: ActorCritic, obs: dict[str, Tensor]) -> Work:
    """An action for every row, its log-probability and its value, by PyTorch."""
    state = policy.initial_state(len(obs["obs"])).to(obs["obs"].device)

    @torch.no_grad()
    def decide() -> object:
        params, value, after = policy.act(obs, state)
        actions = policy.head.sample(params)
        return policy.head.env_actions(actions), policy.head.log_prob(params, actions), value, after

    return decide


def perceptron(policy: ActorCritic, rows: int) -> Pair:
    obs, fast = numbers(policy, rows), Perceptron(policy)
    within = partial(on_cpu, onednn=False)
    return Pair(timed(decision(policy, obs), within=within), timed(lambda: fast.choose(obs), within=within))


def policy_update(policy: ActorCritic, rows: int) -> Work:
    """A gradient step on random rows: forwards, backwards and Adam."""
    obs = numbers(policy, rows)
    with torch.no_grad():
        actions = policy.head.sample(policy.act(obs, policy.initial_state(rows))[0])
    optimizer = torch.optim.Adam(policy.parameters(), fused=True)

    def update() -> None:
        found = policy.evaluate(obs, actions, None)
        optimizer.zero_grad()
        (found.log_prob.mean() + found.value.square().mean()).backward()
        optimizer.step()

    return update


def threads_of(work: Work, many: int) -> Pair:
    return Pair(*(timed(work, clock=wall, within=partial(on_cpu, count, False)) for count in (many, 1)))


def without_onednn(work: Work) -> Pair:
    return Pair(*(timed(work, within=partial(on_cpu, 1, onednn)) for onednn in (True, False)))


def network_making(many: int) -> Pair:
    """Processor time of making a policy, as several processes do at once when a run starts."""

    def make() -> None:
        policy_of(spaces.Box(0, 255, ATARI, np.uint8), spaces.Discrete(4), core=CoreConfig(kind="lstm"))

    return Pair(timed(make, within=partial(on_cpu, many)), timed(make, within=one_thread))


# ---------------------------------------------------------------- convolutions and memories


def images_of(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def laid_out(module: nn.Module, as_matrices: bool = False, channels_last: bool = True) -> None:
    for encoder in module.modules():
        if isinstance(encoder, ConvEncoder):
            encoder.as_matrices, encoder.channels_last = as_matrices, channels_last and not as_matrices


def convolutions(
    kind: type[NatureCNN | SampleFactoryConv], *, halved: bool = False, scaled: bool = False, **flags: bool
) -> Work:
    """A forward and a backward pass on 256 images: in bfloat16 if `halved`, from floats, not bytes, if `scaled`."""
    shape = ATARI if kind is NatureCNN else DOOM
    encoder, images = kind(shape), images_of(256, *shape)
    laid_out(encoder, **flags)

    def update() -> None:
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=halved, cache_enabled=False):
            out = encoder(as_float(images) if scaled else images)
        out.float().square().mean().backward()

    return update


def elu() -> Work:
    """A pass forwards and backwards through the activation alone, of a million numbers in bfloat16."""
    module, rows = activations.ELU(), torch.randn(1024, 1024, dtype=torch.bfloat16, requires_grad=True)

    def update() -> None:
        rows.grad = None
        module(rows).sum().backward()

    return update


def blocks_of(kind: type[NatureCNN | SampleFactoryConv]) -> Pair:
    work = convolutions(kind, halved=True)
    off = partial(mock.patch.object, block_convolution, "suits", return_value=False)
    return Pair(timed(work, off), timed(work))


def memory(layer_by_layer: bool, device: str = "cpu") -> Work:
    """A forward and a backward pass. CPU: an LSTM of 512, 8 columns of 32 steps. GPU: two layers, 256 columns of 128
    steps, in bfloat16, recorded."""
    on_gpu = device == "cuda"
    steps, columns = (128, 256) if on_gpu else (32, 8)
    core = Core(512, CoreConfig(kind="lstm", hidden=512, layers=2 if on_gpu else 1)).to(device)
    core.layer_by_layer = layer_by_layer
    features = torch.randn(steps, columns, 512, device=device, requires_grad=True)
    starts = torch.zeros(steps, columns, dtype=torch.bool, device=device)
    state = torch.zeros(columns, core.state_size, device=device)

    def update() -> None:
        core.zero_grad(set_to_none=False)
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            out = core.scan(features, starts, state)
        out.float().square().mean().backward()

    return _record(update) if on_gpu else update


def against_packed(lengths: Sequence[int]) -> Pair:
    """An LSTM of 512 over packed sequences of these lengths, or over as many rows in 8 columns of 32 steps."""
    core = Core(512, CoreConfig(kind="lstm", hidden=512))
    sizes = torch.tensor([sum(length > step for length in lengths) for step in range(max(lengths))])
    features, state = torch.randn(sum(lengths), 512, requires_grad=True), torch.zeros(len(lengths), core.state_size)

    def update() -> None:
        core.zero_grad(set_to_none=False)
        core.sequence(features, sizes, state).square().mean().backward()

    return Pair(timed(update), timed(memory(True)))


def memory_kernels() -> Pair:
    with mock.patch.object(lstm_scan, "_kernels", return_value=lstm_scan.Pointwise):
        plain = memory(True, "cuda")
    return Pair(timed(plain, clock=wall), timed(memory(True, "cuda"), clock=wall))


def encoder_code() -> Pair:
    """The gradient of a ResNet18 that has encoded fewer images before, in code for all sizes and in code of its own."""
    images = torch.rand(4096, 1, 64, 64, device="cuda").half()
    ways = []
    for compiler in (torch.compile, partial(CompiledBySize, size_of=len)):
        encoder = ResNetEncoder((1, 64, 64), "resnet18").cuda()
        ways.append(timed(_gradient(encoder, compiler(encoder.forward), images), clock=wall))
    return Pair(*ways)


def _gradient(encoder: nn.Module, compiled: Callable[..., Tensor], images: Tensor) -> Work:
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        compiled(images[:1024])

    def work() -> None:
        encoder.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            compiled(images).float().square().mean().backward()

    return work


def atari_policy(device: str = "cpu") -> ActorCritic:
    core = CoreConfig(kind="lstm", hidden=512)
    return policy_of(spaces.Box(0, 255, ATARI, np.uint8), spaces.Discrete(4), device, core=core)


def kept_precision() -> Pair:
    """16 decisions of a Nature CNN with an LSTM of 512 in bfloat16."""
    ways = []
    for kept in (False, True):
        policy = atari_policy()
        laid_out(policy)
        policy.precision = torch.bfloat16
        if kept:
            keep_in_precision(policy)
        ways.append(timed(decision(policy, {"obs": images_of(16, *ATARI)})))
    return Pair(*ways)


def compiled_update() -> Pair:
    ways = [
        updates_cell.ours(torch.device("cpu"), "categorical", True, compiled=compiled) for compiled in (False, True)
    ]
    return Pair(*(timed(way) for way in ways))


# ---------------------------------------------------------------- pools


def exchange(pool: Pool, **wanted: Any) -> Work:
    """Send random actions to the slots received last, and receive the next ones."""
    actions, batch = RandomActions(pool.spec), pool.recv(min_slots=None)

    def step() -> None:
        nonlocal batch
        pool.send(actions.next(batch.slots), batch.slots)
        batch = pool.recv(**wanted)

    return step


def naps() -> Pair:
    """Processor time of the receiving process."""
    env = "synthetic:lognormal?mean=0.002&obs=4x84x84"
    step = exchange(make_pool(env, PoolConfig(kind="process", num_envs=256, workers=16)), min_slots=32, max_slots=40)
    return Pair(timed(step, partial(mock.patch.object, Naps, "take", return_value=False)), timed(step))


def pinning() -> Pair:
    pools = [make_pool("envpool:HalfCheetah-v4", PoolConfig(num_envs=64, affinity=bound)) for bound in (False, True)]
    return Pair(*(timed(exchange(pool, min_slots=None), clock=wall) for pool in pools))


def navigation() -> Pair:
    """Images and distances by PyTorch's operations or by Triton kernels."""
    from paceline.sims.navigation.rendering import render, render_triton
    from paceline.sims.navigation.scenes import geodesic
    from paceline.sims.navigation.scenes.paths import Paths

    def trace(bank: Any, camera: Any, scenes: Tensor, poses: Tensor, rgb: bool, **_: Any) -> Any:
        return render.trace(bank, camera, scenes, poses, rgb)

    def lengths(self: Any, positions: Tensor, to: Any) -> Tensor:
        return geodesic.query(*self._sights(positions, to))

    def make() -> Work:
        pool = make_pool("pointnav:full?resolution=64", PoolConfig(num_envs=256), device="cuda")
        moves = torch.randint(1, 4, (256,), device="cuda")

        def step() -> None:
            pool.send(moves, pool.recv(min_slots=None).slots)

        for _ in range(10):  # the step is recorded: a switch has no effect later
            step()
        return step

    with (
        mock.patch.object(render_triton, "trace", trace),
        mock.patch.object(Paths, "lengths", lengths),
    ):
        plain = make()
    return Pair(timed(plain, clock=wall), timed(make(), clock=wall))


# ---------------------------------------------------------------- CUDA graphs


def _record(work: Callable[[], None]) -> Work:
    graph = CudaGraph(work)
    for _ in range(4):
        graph.run()
    return graph.run


def recorded_decision() -> Pair:
    work = decision(atari_policy("cuda"), {"obs": images_of(256, *ATARI).cuda()})
    return Pair(timed(work, clock=wall), timed(CudaGraph(work).run, clock=wall))


def recorded_update() -> Pair:
    def eager(graph: CudaGraph[None]) -> None:
        graph._function()

    with mock.patch.object(CudaGraph, "run", eager):
        plain = updates_cell.ours(torch.device("cuda"), "categorical", True)
    fast = updates_cell.ours(torch.device("cuda"), "categorical", True)
    return Pair(timed(plain, clock=wall), timed(fast, clock=wall))
