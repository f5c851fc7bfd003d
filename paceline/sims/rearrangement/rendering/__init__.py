"""Images: what the cameras on the robots' heads see."""
