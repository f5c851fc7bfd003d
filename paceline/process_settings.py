"""Settings of the process that training changes, and restores when it ends.

A process may do other things before and after training: evaluate, train again, run tests. Only the settings of the C
library's allocator cannot be restored completely (see `accel.allocator`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from paceline.accel import allocator

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "TORCHINDUCTOR_DETERMINISTIC",
    "RANK",
    "WORLD_SIZE",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
)
"""Environment variables that training sets if they are not set."""

WARN, ERROR = 1, 2
"""Modes of torch.set_deterministic_debug_mode. 0 is off."""


@contextlib.contextmanager
def restored_settings() -> Iterator[None]:
    """Restore all settings when the context ends, also after an exception. Main thread only."""
    onednn: Any = torch.backends.mkldnn  # type checkers do not know all of its attributes
    with contextlib.ExitStack() as stack:  # calls back in reverse order
        stack.callback(allocator.give_freed_memory_back)
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        if torch.cuda.is_initialized():  # otherwise these calls would create a CUDA context
            stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state())
            stack.callback(torch.cuda.set_device, torch.cuda.current_device())
        stack.callback(_set_module_path, list(sys.path))  # the user's environments add their folders
        for name in VARIABLES:
            stack.callback(_set_variable, name, os.environ.get(name))
        stack.callback(onednn.set_flags, _enabled=bool(onednn.enabled), _fp32_precision=None)
        stack.callback(_set_determinism, torch.get_deterministic_debug_mode())
        for matmul in (torch.backends.cuda.matmul, onednn.matmul):
            stack.callback(setattr, matmul, "fp32_precision", matmul.fp32_precision)
        stack.callback(torch.set_float32_matmul_precision, _matmul_precision())
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        yield


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set differently for single devices, whose settings are restored one by one
        return "highest"


def be_deterministic() -> None:
    """Algorithms without a deterministic version raise errors from now on."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")  # read by the compiler, if something imports it
    _set_determinism(ERROR)


def _set_determinism(mode: int) -> None:
    """torch.use_deterministic_algorithms imports the compiler, which takes two seconds, to set its option too."""
    if "torch._inductor.config" in sys.modules and mode != torch.get_deterministic_debug_mode():
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == WARN)
    else:
        torch.set_deterministic_debug_mode(mode)


def _set_module_path(path: list[str]) -> None:
    sys.path[:] = path


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
