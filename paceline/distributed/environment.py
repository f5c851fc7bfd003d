"""The environment variables by which the command that starts ranks speaks to them."""

from __future__ import annotations

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""How many times the ranks have been started again: torchrun's name for it, and ours."""
LISTENING_SOCKET = "PACELINE_LISTENING_SOCKET"
"""The file descriptor of a socket that rank 0 inherits and serves the store on."""
FAILURES = "PACELINE_FAILURES"
"""The file descriptor of a file that ranks write their failures to."""
