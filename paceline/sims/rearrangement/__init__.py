"""Rearrangement in procedural apartments: a mobile manipulator, batched in PyTorch, on CPU or GPU from one source."""
