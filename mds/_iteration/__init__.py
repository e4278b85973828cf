"""What one worker does in one epoch: reading, functions of the user, batches and packs."""
