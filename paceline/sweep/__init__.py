"""Hyper-parameter sweeps: Optuna searches, and every trial is a run of its own."""
