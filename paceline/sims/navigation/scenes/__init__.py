"""Procedural apartments as tensors: generation, free space, shortest paths and episodes."""
