"""What a user can do about a GPU that has failed, or that has no memory left."""

from __future__ import annotations

MEMORY = (
    "the GPU has too little free memory for this run; allowed: fewer environments (--pool.num-envs), shorter rollouts "
    "(--rollout-steps), smaller mini-batches (a larger --ppo.minibatches, a smaller --appo.batch or --d4pg.batch) or a "
    "smaller network; nvidia-smi shows what else uses the GPU"
)
FAULT = (
    "the GPU has failed: {error}. Programs that share a GPU under MPS all stop when one of them has a fault. "
    "`paceline train --resume --run-dir FOLDER` continues a run from its last checkpoint"
)


def advice_on_gpu(error: BaseException) -> str | None:
    """One line about `error`, or about what caused it; None if it does not come from a GPU.

    PyTorch's classes are known by name, so that nothing imports PyTorch.
    """
    cause: BaseException | None = error
    while cause is not None:
        names = {kind.__name__ for kind in type(cause).__mro__}
        if "OutOfMemoryError" in names or ("AcceleratorError" in names and "out of memory" in str(cause)):
            return MEMORY
        if "AcceleratorError" in names:
            return FAULT.format(error=str(cause).partition("\n")[0])
        cause = cause.__cause__ or cause.__context__
    return None
