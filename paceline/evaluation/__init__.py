"""What a trained policy is worth: episodes played and counted, and filmed."""
