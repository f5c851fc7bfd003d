"""Paceline trains reinforcement-learning agents in simulators that are slow, uneven or many.

This module imports nothing heavy: simulator processes import it, and they do not need PyTorch.
"""

import os
import warnings

__version__ = "0.1.0"

# PyTorch's threads wait for each other in a busy loop, which takes the cores from simulators and other processes.
# Threads that sleep are several times faster next to another busy process, and as fast on a quiet machine. PyTorch
# reads the variable when it is first imported. A value that the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Pools return some arrays read-only. No tensor made of such an array is written to.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
