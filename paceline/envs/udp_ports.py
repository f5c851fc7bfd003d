"""Free UDP ports for the servers of simulators, which cannot ask the kernel for one themselves."""

from __future__ import annotations

import contextlib
import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below the ports that the kernel gives to clients (from 32768 on Linux), so only servers can take them."""
ATTEMPTS = 1000


class ReservedPort:
    """A UDP port that nobody uses and that no other `ReservedPort` on this machine has, until `release`.

    Only even ports are given. A socket at the odd port above marks the even one as taken. The kernel frees the mark
    when this process ends for any reason, and the mark holds for all users and containers that share the network.
    """

    def __init__(self) -> None:
        choose = random.SystemRandom()  # a seeded generator would give the same ports to every worker
        for _ in range(ATTEMPTS):
            self.number = choose.randrange(FIRST, LAST, 2)
            self._mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with contextlib.suppress(OSError):
                self._mark.bind(("127.0.0.1", self.number + 1))
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind(("", self.number))
                return
            self._mark.close()
        raise RuntimeError(f"no UDP port from {FIRST} to {LAST} is free")

    def release(self) -> None:
        self._mark.close()
