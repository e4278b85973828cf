"""What a newcomer gets wrong is answered with the subject, the value and a way out."""

import pytest

from mds import MDSWriter, StreamingDataset
from mds.errors import ConfigError, NotFoundError


@pytest.fixture
def splits(tmp_path):
    """A folder of two datasets."""
    for name in ("train", "val"):
        with MDSWriter(out=str(tmp_path / name), columns={"n": "int"}) as writer:
            writer.write({"n": 1})
    return str(tmp_path)


def test_the_folder_of_splits_names_them(splits):
    """local= is the folder above the datasets, as mds-convert leaves it."""
    with pytest.raises(NotFoundError, match="There are datasets in train, val: give split='train'"):
        StreamingDataset(local=splits, batch_size=1)
    assert len(StreamingDataset(local=splits, split="train", batch_size=1)) == 1


@pytest.mark.parametrize("shares", [0.9, [0.8, 0.2], "train"])
def test_split_says_what_it_takes(splits, shares):
    """Shares without names would be parts that nothing tells apart."""
    dataset = StreamingDataset(local=splits, split="train", batch_size=1)
    with pytest.raises(ConfigError, match=r"a share for each name.*'train': 0\.9"):
        dataset.split(shares)
