"""What agents do in the apartments: one file per task, with its goal, reward and measures."""
