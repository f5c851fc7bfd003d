"""Paceline trains reinforcement-learning agents in simulators that are slow, uneven or many.

This module stays free of heavy imports: simulator processes import it, and none of them needs PyTorch.
"""

__version__ = "0.1.0"
