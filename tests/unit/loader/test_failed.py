"""After an error in the middle of an epoch the loader keeps raising, and its state is exact."""

import pytest

from mds import Packing, StreamingDataLoader, StreamingDataset
from mds.errors import MdsError
from tests.unit.loader import failed_helpers
from tests.unit.loader.failed_helpers import HOWS, Fault, drain

# Fixtures of both halves of these tests.
_armed = failed_helpers._armed


@pytest.mark.parametrize("how", HOWS)
def test_packs_keep_raising_too(make, how):
    """Packs of a step that failed come after the state was loaded."""

    def made():
        dataset = StreamingDataset(
            local=make(columns={"id": "int", "tokens": "ndarray:int32"}, value=document),
            batch_size=2,
            packing=Packing(16),
        ).map(Fault())
        return StreamingDataLoader(dataset, **HOWS[how])

    loader = made()
    iterator, errors = iter(loader), []
    while len(errors) < 3:
        try:
            next(iterator)
        except MdsError as error:
            errors.append(str(error))
    assert "sample 57" in errors[0]
    assert errors == errors[:1] * 3


def document(number):
    """Return a document of up to eight tokens."""
    import numpy as np

    return {"id": number, "tokens": np.full(number % 8 + 1, number, np.int32)}


def test_a_missing_shard_keeps_raising(make, tmp_path):
    """A failed download is no end of the epoch."""
    remote = tmp_path / "remote"
    remote.symlink_to(make())
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in remote.iterdir():
        if path.name != "shard.00007.mds":
            (copy / path.name).write_bytes(path.read_bytes())
    dataset = StreamingDataset(
        remote=str(copy), local=str(tmp_path / "cache"), batch_size=10, download_retry=0
    )
    loader = StreamingDataLoader(dataset, num_workers=2, worker_type="threads")
    iterator = iter(loader)
    seen, errors = drain(iterator)
    assert "shard.00007.mds" in errors[0]
    assert errors == errors[:1] * 3
    assert loader.state_dict()["sample_in_epoch"] == len(seen)
