"""Procedural apartments with a kitchen as tensors: fridge, drawers, surfaces and episodes."""
