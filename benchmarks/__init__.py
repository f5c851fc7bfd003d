"""Benchmarks: one module per published table. Run them with `paceline bench NAME`."""
