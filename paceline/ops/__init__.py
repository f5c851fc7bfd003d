"""Returns and losses as pure functions."""
