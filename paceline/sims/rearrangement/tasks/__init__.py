"""The tasks: skills, and scenarios that need several of them."""
