"""The training systems: four loops over the same parts."""
