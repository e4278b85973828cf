"""What shards to have ready, and when."""
