"""How PyTorch computes on a CPU: its threads and kernels, chosen for the policy and the processor at hand.

Policies without convolutions are made of matrices so small that everything around the arithmetic decides. Threads then
cost more than they give, and so does oneDNN: on an ARM Neoverse-N1 it took 646 us for a 64x64 layer over 64 rows that
plain BLAS did in 51 (one thread, one run, a busy machine). Convolutions need it, except where they are computed as
matrix products, which is faster on ARM (see `convolution`); elsewhere images have their channels last, as oneDNN's kernels like them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator

import torch
from torch import nn

from paceline.accel.processor import ON_ARM
from paceline.errors import UsageError
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.deterministic import DeterministicPolicy
from paceline.nets.encoders import ConvEncoder
from paceline.nets.last_layer import LastLayer
from paceline.pool.config import available_core_ids

SMALL_PARAMETERS = 500_000


def use_threads(number: int) -> None:
    """Of PyTorch's own, for what the calling thread computes. The number is also the process's, which threads take over with the
    first thing that they do: so this is done here, lest another's number come later."""
    torch.get_num_threads()
    torch.set_num_threads(number)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within, PyTorch has only the calling thread: for little work, while others start on the same cores. (Orthogonal weights for a
    convolutional network with an LSTM of 512 took six processes with 8 threads each 7 s on two cores of a Neoverse-N1, and with
    one each 1.5.)"""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_cpu_kernels(
    policy: ActorCritic | DeterministicPolicy,
    threads: int | None,
    ranks: int,
    precision: torch.dtype = torch.float32,
    *,
    beside: bool = False,
) -> int:
    """Set this process's threads and kernels; `threads` overrules. So many `ranks` compute on this machine at the same
    time, and in each of them, if `beside`, two of its threads. More threads than cores are much worse than fewer: those that
    wait for each other do so by spinning. Returns how many one of the two may have while the other waits."""
    small = not policy.has_convolutions and sum(p.numel() for p in policy.parameters()) < SMALL_PARAMETERS
    cores = len(available_core_ids())
    alone = threads if threads is not None else 1 if small else max(1, cores // ranks)
    if threads is not None or small:
        torch.set_num_threads(alone)
    elif ranks > 1 or beside:
        torch.set_num_threads(max(1, cores // (2 * ranks if beside else ranks)))
    for module in policy.modules():
        if isinstance(module, ConvEncoder):
            module.as_matrices, module.channels_last = ON_ARM, not ON_ARM
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about TF32 on GPUs that are not there
        # Without oneDNN there are no instructions for bfloat16, only slow loops.
        torch.backends.mkldnn.set_flags(
            _enabled=policy.has_convolutions or precision == torch.bfloat16, _fp32_precision=None
        )
    return alone


def choose_precision(policy: ActorCritic | DeterministicPolicy, precision: str, device: torch.device) -> torch.dtype:
    """What `compute.precision` means for a policy on a device."""
    if precision != "auto":
        return getattr(torch, precision)
    worth_it = device.type == "cpu" and policy.has_convolutions and has_amx()
    return torch.bfloat16 if worth_it else torch.float32


def keep_in_precision(policy: ActorCritic) -> None:
    """Of a copy that decides and does not learn, on a CPU: matrices are kept as they are multiplied, instead of being converted for
    every decision, which with an LSTM of 512 are some three million numbers for a few rows. The results are the same. Last layers are
    multiplied in float32, and stay so."""
    for module in policy.modules():
        if isinstance(module, (nn.Linear, nn.LSTM, nn.GRU)) and not isinstance(module, LastLayer):
            module.to(policy.precision)


def has_amx() -> bool:
    """Whether the processor multiplies bfloat16 matrices in one instruction: Intel's AMX."""
    return torch.cpu._is_amx_tile_supported()


def require_compiler() -> None:
    """What torch.compile needs for a CPU."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UsageError(
            f"--compute.compile needs a C++ compiler, and {compiler} is not there; the variable CXX names another"
        )
