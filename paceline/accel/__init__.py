"""Accelerations: faster ways to compute the same. Each equals a plain implementation by a test.

`docs/benchmarks/accelerations.md` has one table of all of them, with the measured gain and the machine of each.
"""
