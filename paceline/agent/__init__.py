"""Agents: what decides and what learns, put together for a family of systems."""
