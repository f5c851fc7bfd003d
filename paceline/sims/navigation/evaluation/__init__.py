"""How well agents navigate: baselines, fixed episodes, measures and the sections of a report."""
