"""What a run reports while it trains: metrics, time shares, progress."""
