"""The settings of this process that PyTorch, Python or the system keep for everybody."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import warnings
from typing import Any

import torch

PRECISIONS = {
    "cuda.matmul": torch.backends.cuda.matmul,
    "cudnn.conv": torch.backends.cudnn.conv,
    "cudnn.rnn": torch.backends.cudnn.rnn,
    "mkldnn.matmul": torch.backends.mkldnn.matmul,
    "mkldnn.conv": torch.backends.mkldnn.conv,
    "mkldnn.rnn": torch.backends.mkldnn.rnn,
}


def arithmetic() -> dict[str, Any]:
    """How PyTorch computes."""
    return {
        "threads": torch.get_num_threads(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "allow_tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        **{name: _effective(backend.fp32_precision) for name, backend in PRECISIONS.items()},
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "onednn": torch.backends.mkldnn.enabled,
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "ranks": (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")),
    }


def everything() -> dict[str, Any]:
    return {
        **arithmetic(),
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "path": list(sys.path),
        "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "warnings": list(warnings.filters),
        "garbage": gc.isenabled(),
        "logging": (logging.getLogger().level, len(logging.getLogger().handlers)),
        "random numbers": torch.get_rng_state().tolist(),
    }


def _effective(precision: str) -> str:
    return "ieee" if precision == "none" else precision  # which "none" amounts to
