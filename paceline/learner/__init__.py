"""Learning from experience: one learner per family of systems."""
