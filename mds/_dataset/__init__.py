"""What a user holds: streams, samples by number and in order, an epoch of one worker."""
