"""What a user holds: streams, samples by number and in order, and the position of a training."""
