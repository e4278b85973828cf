"""Batches for torch."""
