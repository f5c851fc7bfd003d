"""One measurement of `benchmarks.accelerations`: `python -m benchmarks.accelerations_cell '{...}'`.

`off` names what is switched off. With `images`, the work is a forward and a backward pass on that many Doom images.
Otherwise it is a training run with the options of `ppo_cell`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from paceline.accel.allocator import keep_freed_memory
from paceline.accel.perceptron import Perceptron
from paceline.collect import acting, sampler
from paceline.nets.encoders import SampleFactoryConv
from paceline.run import Run
from paceline.session import train

from .ppo_cell import WARM_UP_SECONDS, config_of


def _step_by_step(actors: Any, rollout: Any, *_: Any, **__: Any) -> Any:
    return acting.PlainActing(actors[0], rollout)


def _one_by_one(actors: Any, buffer: Any, **options: Any) -> Any:
    """What acts for each policy alone."""
    return {team: how for n, a in actors.items() for team, how in acting.make_acting({n: a}, buffer, **options).items()}


OFF: dict[str, Callable[[], Any]] = {
    "perceptron": lambda: mock.patch.object(Perceptron, "suits", return_value=False),
    "send first": lambda: mock.patch.object(acting, "SendFirst", _step_by_step),
    "perceptrons together": lambda: mock.patch.object(sampler, "make_acting", _one_by_one),
    "recorded acting": lambda: mock.patch.object(acting, "RecordedActing", _step_by_step),
}
"""Accelerations without a setting of their own."""


def train_once(options: dict[str, Any]) -> float:
    """Wall-clock seconds per step, or with `cpu` processor time per step, without the start of the run."""
    off = options["off"]
    config = config_of(options)
    if "cuda graphs" in off:
        config = dataclasses.replace(
            config,
            compute=dataclasses.replace(config.compute, cuda_graphs=False),
            pool=dataclasses.replace(config.pool, cuda_graphs=False),
        )
    if "pinning" in off:
        config = dataclasses.replace(config, pool=dataclasses.replace(config.pool, affinity=False))
    marks: list[tuple[float, float, int]] = []
    clock, plain = time.process_time if options.get("cpu") else time.perf_counter, Run.report

    def report(run: Run, *arguments: Any) -> None:
        plain(run, *arguments)
        marks.append((time.perf_counter(), clock(), run.step))

    with (
        mock.patch.object(Run, "report", report),
        contextlib.ExitStack() as stack,
        tempfile.TemporaryDirectory() as folder,
    ):
        for name in off:
            if name in OFF:
                stack.enter_context(OFF[name]())
        train(config, Path(folder))
    counted = [mark for mark in marks if mark[0] - marks[0][0] >= WARM_UP_SECONDS[options.get("device", "cpu")]]
    if len(counted) < 2:
        sys.exit(f"{options['seconds']} seconds were too short for two iterations")
    (_, begin, first), (_, end, last) = counted[0], counted[-1]
    return (end - begin) / (last - first)


def train_on_images(options: dict[str, Any]) -> float:
    """Processor time of a pass forwards and backwards, with one thread."""
    torch.set_num_threads(1)
    if "allocator" not in options["off"]:
        keep_freed_memory()
    encoder = SampleFactoryConv((3, 72, 128))
    encoder.channels_last = True
    images = torch.randint(0, 256, (options["images"], 3, 72, 128), dtype=torch.uint8)

    def update() -> None:
        encoder.zero_grad()
        encoder(images).square().mean().backward()

    for _ in range(2):
        update()
    begin, count = time.process_time(), 0
    while (spent := time.process_time() - begin) < options["seconds"]:
        update()
        count += 1
    return spent / count


def main() -> None:
    options = json.loads(sys.argv[1])
    seconds = train_on_images(options) if "images" in options else train_once(options)
    print("RESULT " + json.dumps({"seconds": seconds}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
