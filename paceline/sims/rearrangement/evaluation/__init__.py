"""The evaluation of rearrangement: baselines, the oracle, and the fixed list of episodes."""
