"""Paceline trains reinforcement-learning agents in simulators that are slow, uneven or many.

This module stays free of heavy imports: simulator processes import it, and none of them needs PyTorch.
"""

import os
import warnings

__version__ = "0.1.0"

# PyTorch's threads wait for each other by spinning, which takes the cores from everybody else: with one other busy process on
# two cores, training on images was 3.4 times faster with threads that sleep (366 steps per second against 109), and as fast on a
# quiet machine. Read when PyTorch is first imported; what the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Pools hand out some of their arrays read-only; no tensor that is made of one is written to.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
