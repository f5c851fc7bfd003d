"""Numbers that the simulator and its tasks share: actions, columns of the state, purposes of random numbers."""

from __future__ import annotations

STOP, FORWARD, LEFT, RIGHT = range(4)
NUM_ACTIONS = 4
# The state of a stream has the pose, then the columns of its task, and then these three.
X, Y, HEADING = range(3)
NUM_POSE = 3
PATH, COLLISIONS, STEPS = range(-3, 0)
# Purposes of random numbers.
SCENE, EPISODE, ACTUATION, GPS, IMAGE = range(1, 6)
