"""The robot: a round base, an arm with a suction cup, and a camera."""
