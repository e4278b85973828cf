"""Zero means zero: a dataset of nothing iterates to nothing, and is never everything."""

import pytest

from mds import Stream, StreamingDataset
from mds.errors import ConfigError


def test_a_stream_of_which_nothing_is_selected_gives_nothing(make):
    """The others go on, with the shares that they have among themselves."""
    streams = [
        Stream(local=make(), proportion=0.5),
        Stream(local=make(samples=40, first=500), proportion=0.5),
    ]
    dataset = StreamingDataset(streams=streams, batch_size=4).limit(60)
    assert sorted(s["id"] for s in dataset) == list(range(60))
    plain = StreamingDataset(streams=[Stream(local=s.local) for s in streams], batch_size=4)
    assert sorted(s["id"] for s in plain.select([100, 139])) == [500, 539]


def test_less_than_zero_is_refused(make):
    """It was everything too."""
    with pytest.raises(ConfigError, match=r"limit.*-5"):
        StreamingDataset(local=make(), batch_size=4).limit(-5)
    with pytest.raises(ConfigError, match="epoch_size=-1"):
        StreamingDataset(local=make(), batch_size=4, epoch_size=-1)


def test_proportions_of_zero_alone_are_refused(make):
    """Of nothing but zeros there is no share."""
    with pytest.raises(ConfigError, match="all proportions are zero"):
        StreamingDataset(streams=[Stream(local=make(), proportion=0)], batch_size=4)
