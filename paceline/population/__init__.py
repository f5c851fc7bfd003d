"""Populations: population-based training, past selves as opponents, ratings, and populations of whole runs."""
