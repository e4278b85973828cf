"""The incumbent's ``base.constant``: names of its shared memory, and waits. Nothing here is shared.

Code imports them to clean up or to wait; they have the values that it expects.
"""

LOCALS = "locals"
BARRIER = "barrier"
NEXT_EPOCH = "next_epoch"
CACHE_USAGE = "cache_usage"
SHARD_STATES = "shard_states"
SHARD_ACCESS_TIMES = "shard_access_times"
RESUME = "resume"
EPOCH_SHAPE = "epoch_shape"
EPOCH_DATA = "epoch_data"
SHM_TO_CLEAN = [
    LOCALS,
    BARRIER,
    NEXT_EPOCH,
    CACHE_USAGE,
    SHARD_STATES,
    SHARD_ACCESS_TIMES,
    RESUME,
    EPOCH_SHAPE,
    EPOCH_DATA,
]
BARRIER_FILELOCK = "barrier_filelock"
CACHE_FILELOCK = "cache_filelock"
#: Seconds between two looks at shared memory; nothing here looks.
TICK = 0.007
#: Seconds.
DEFAULT_TIMEOUT = 60.0
#: Seconds that a barrier waits.
TIMEOUT = 60
#: The time of last use of a shard that was not used.
NEVER = (1 << 64) - 1
