"""A stand-in of habitat-sim, which the adapter only looks for."""
