"""Requests to workers, with replies that may come late or never."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any


class Questions:
    """One round of questions at a time. Answers to earlier rounds are late, and ignored."""

    def __init__(self) -> None:
        self._round = 0
        self.answers: dict[int, Any] = {}
        """By worker."""
        self.unanswered: set[int] = set()
        """Workers that may still answer."""

    def begin(self, jobs: Mapping[int, object]) -> dict[int, bytes]:
        """A new round: what to send to each worker that has a job."""
        self._round += 1
        self.answers, self.unanswered = {}, set(jobs)
        return {number: pickle.dumps((self._round, job)) for number, job in jobs.items()}

    def take(self, number: int, payload: bytes) -> None:
        """What a worker has answered."""
        asked, answer = pickle.loads(payload)
        if asked == self._round and number in self.unanswered:
            self.answers[number] = answer
            self.unanswered.discard(number)

    def give_up(self) -> None:
        """Wait for no more answers."""
        self.unanswered.clear()
