"""Faster ways to compute the same. Each has a plain implementation that it equals."""
