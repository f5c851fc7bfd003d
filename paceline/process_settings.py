"""Settings of the process that training changes, and puts back when it ends.

A process may do other things before and after it trains: evaluate, train again, run somebody's tests. What the C library's allocator
was told can be put back only in part, see `policy.allocator`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.accel import allocator

VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables that training sets where they are not set."""


@contextlib.contextmanager
def restored_settings() -> Iterator[None]:
    """After the context everything is as before it, also after an exception. For the main thread."""
    before, random = ProcessSettings.now(), RandomState.now()
    try:
        yield
    finally:
        before.restore()
        random.restore()
        allocator.give_freed_memory_back()


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What can be compared."""

    threads: int
    """Of PyTorch's own."""
    matmul: str
    """What `torch.set_float32_matmul_precision` sets for all devices ..."""
    matmul_of: dict[str, str]
    """... and what it is on each."""
    deterministic: bool
    deterministic_warns: bool
    onednn: bool
    cuda_device: int | None
    """None while there is no CUDA context: to ask for the device would make one."""
    environment: dict[str, str | None]
    path: list[str]
    """Where Python looks for modules: environments of the user's add the folder that they are in."""

    @classmethod
    def now(cls) -> ProcessSettings:
        return cls(
            threads=torch.get_num_threads(),
            matmul=_matmul_precision(),
            matmul_of={name: backend.fp32_precision for name, backend in _matmuls().items()},
            deterministic=torch.are_deterministic_algorithms_enabled(),
            deterministic_warns=torch.is_deterministic_algorithms_warn_only_enabled(),
            onednn=bool(torch.backends.mkldnn.enabled),
            cuda_device=torch.cuda.current_device() if torch.cuda.is_initialized() else None,
            environment={name: os.environ.get(name) for name in VARIABLES},
            path=list(sys.path),
        )

    def restore(self) -> None:
        torch.set_num_threads(self.threads)
        torch.set_float32_matmul_precision(self.matmul)
        for name, backend in _matmuls().items():
            backend.fp32_precision = self.matmul_of[name]
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.deterministic_warns)
        torch.backends.mkldnn.set_flags(_enabled=self.onednn, _fp32_precision=None)
        if self.cuda_device is not None:
            torch.cuda.set_device(self.cuda_device)
        for name, value in self.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        sys.path[:] = self.path


@dataclass(frozen=True, kw_only=True)
class RandomState:
    """Where PyTorch's default random numbers go on: on the host, and on the GPU where there is a CUDA context already."""

    host: Tensor
    device: Tensor | None

    @classmethod
    def now(cls) -> RandomState:
        device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        return cls(host=torch.get_rng_state(), device=device)

    def restore(self) -> None:
        torch.set_rng_state(self.host)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device)


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for single devices, which this does not speak of; they are noted one by one
        return "highest"


def _matmuls() -> dict[str, Any]:
    onednn: Any = torch.backends.mkldnn  # type checkers do not know all of it
    return {"cuda": torch.backends.cuda.matmul, "mkldnn": onednn.matmul}
