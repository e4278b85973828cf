"""Fetches shards before the reader needs them."""
