"""Other systems, run for comparison."""
