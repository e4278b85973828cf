"""A state that meets other data with as many samples in each shard is told, and is not refused."""

import pytest

from tests.states import changed
from tests.unit.dataset.other_data_helpers import state_of, write


@pytest.mark.parametrize(
    "data",
    [None, {}, {"streams": 3}, {"streams": [3, {}]}, {"streams": [{"at": 5, "index": [1]}]}],
    ids=str,
)
def test_what_a_state_says_of_its_data_may_be_anything(tmp_path, data):
    """It refuses nothing."""
    write(str(tmp_path / "a"), 0)
    dataset, state = state_of(str(tmp_path / "a"), tmp_path / "one")
    dataset.load_state_dict(changed(state, {"data": data}))
    assert len(list(dataset)) == 32
