"""Several policies in one run."""
