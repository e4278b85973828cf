"""The file of a checkpoint with the position of its training loader."""

import pytest

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds.errors import StateError
from mds.integrations._position_file import POSITION_FILE, load_position, save_position


@pytest.fixture
def state(tmp_path):
    """State of a loader after its first batch."""
    out = str(tmp_path / "data")
    with MDSWriter(out, {"x": "int"}) as writer:
        for x in range(8):
            writer.write({"x": x})
    loader = StreamingDataLoader(StreamingDataset(out, batch_size=2, shuffle=True))
    next(iter(loader))
    return loader.state_dict()


def test_a_saved_position_is_loaded(state, tmp_path):
    save_position(str(tmp_path / "checkpoint"), state)
    assert load_position(tmp_path / "checkpoint") == state


def test_a_truncated_position_is_refused(state, tmp_path):
    """At every byte, with the path of the file and a remedy."""
    save_position(str(tmp_path), state)
    path = tmp_path / POSITION_FILE
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(StateError, match="Resume from an older checkpoint") as refusal:
            load_position(str(tmp_path))
        assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[]", "expected an object, got list"),
        (b"null", "expected an object, got NoneType"),
        (b'{"global_step": 3}', "sample_in_epoch is missing"),
        (b"\xff\xfe{}", "can't decode byte 0xff"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_of_another_program_is_refused(tmp_path, content, reason):
    (tmp_path / POSITION_FILE).write_bytes(content)
    with pytest.raises(StateError, match=reason):
        load_position(tmp_path)


def test_a_checkpoint_without_a_position_is_refused(tmp_path):
    with pytest.raises(StateError, match="has no position of a StreamingDataset"):
        load_position(tmp_path)
