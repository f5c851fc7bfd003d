"""How PyTorch computes on a CPU: threads and kernels, chosen for the policy and the processor.

Policies without convolutions consist of small matrices, for which threads cost more than they give, and on ARM oneDNN
too. Convolutions need oneDNN, with images channels last. On ARM they are computed as matrix products instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from paceline.accel.processor import ON_ARM
from paceline.errors import UsageError
from paceline.pool.config import available_core_ids

SMALL_PARAMETERS = 500_000


class Policy(Protocol):
    """What is asked of a policy here."""

    @property
    def has_convolutions(self) -> bool:
        """Whether PyTorch's own kernels compute any convolution."""
        ...

    @property
    def has_exact_last_layers(self) -> bool:
        """Whether values and actions are computed in float32, whatever the precision."""
        ...

    def modules(self) -> Iterator[nn.Module]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


def use_threads(number: int) -> None:
    """Set the number of PyTorch's threads for the calling thread.

    The number is the process's too, which a thread adopts with its first PyTorch call. That call is made here, so that
    the adopted number does not replace this one later.
    """
    torch.get_num_threads()
    torch.set_num_threads(number)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Inside this context PyTorch uses only the calling thread: for little work while other processes start."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_cpu_kernels(
    policy: Policy,
    threads: int | None,
    ranks: int,
    precision: torch.dtype = torch.float32,
    *,
    concurrent: bool = False,
) -> int:
    """Set this process's threads and kernels. Returns how many threads one of two concurrent threads may use while the
    other waits.

    `threads` overrides the choice. `ranks` processes compute on this machine at the same time, each with two concurrent
    threads if `concurrent`. More threads than cores are much slower than fewer, because they spin while they wait.
    """
    small = not policy.has_convolutions and sum(p.numel() for p in policy.parameters()) < SMALL_PARAMETERS
    cores = len(available_core_ids())
    alone = threads if threads is not None else 1 if small else max(1, cores // ranks)
    if threads is not None or small:
        torch.set_num_threads(alone)
    elif ranks > 1 or concurrent:
        torch.set_num_threads(max(1, cores // (2 * ranks if concurrent else ranks)))
    for module in policy.modules():
        if hasattr(module, "as_matrices"):
            vars(module).update(as_matrices=ON_ARM, channels_last=not ON_ARM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about TF32 on GPUs that are not there
        # Without oneDNN there are no instructions for bfloat16, only slow loops.
        torch.backends.mkldnn.set_flags(
            _enabled=policy.has_convolutions or precision == torch.bfloat16, _fp32_precision=None
        )
    return alone


def choose_precision(policy: Policy, precision: str, device: torch.device) -> torch.dtype:
    """The precision that `compute.precision` means for a policy on a device."""
    if precision != "auto":
        return getattr(torch, precision)
    worth_it = device.type == "cpu" and policy.has_convolutions and policy.has_exact_last_layers and has_amx()
    return torch.bfloat16 if worth_it else torch.float32


def keep_in_precision(policy: nn.Module) -> None:
    """Store the matrices of a policy in its `precision`, instead of converting them for every decision.

    For copies that act on a CPU and do not learn. The results are the same. Last layers stay in float32.
    """
    for module in policy.modules():
        if isinstance(module, (nn.Linear, nn.LSTM, nn.GRU)) and not getattr(module, "stays_float32", False):
            module.to(policy.precision)  # type: ignore[arg-type]


def has_amx() -> bool:
    """Whether the processor has AMX, Intel's instructions for products of bfloat16 matrices."""
    return torch.cpu._is_amx_tile_supported()


def require_compiler() -> None:
    """Refuse --compute.compile on a CPU without a C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UsageError(
            f"--compute.compile needs a C++ compiler, and {compiler} is not there; the variable CXX names another"
        )
