"""The Python API. `import paceline` offers its names."""
