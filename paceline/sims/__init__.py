"""Embedded simulators: one package each."""
