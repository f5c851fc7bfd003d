"""Floor plans of the user's own, as JSON files: read, checked, drawn, and made into the scenes of a bank."""
