"""Images: what the cameras see, and top-down maps."""
