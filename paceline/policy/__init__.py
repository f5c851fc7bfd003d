"""Networks from observations to actions and values, and the actor that runs them in batches."""
