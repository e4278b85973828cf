"""Files of many lines, and shards that turn out larger than planned."""

import gzip

import pytest

from mds import StreamingDataset
from mds.errors import FormatError
from mds.formats._newlines import Probe
from tests.unit.formats.test_own_format import of


@pytest.mark.parametrize("step", [1000, 70_001, 1 << 20, 1 << 26])
def test_what_is_probed_does_not_depend_on_chunks(step):
    """Lines of the beginning, of 4 MB and of 8 MB on, whole ones, with their bytes."""
    data = b"".join(b"%09d\n" % n for n in range(900_000))
    probe = Probe()
    for _ in probe.watch(data[at : at + step] for at in range(0, len(data), step)):
        pass
    found = probe.lines(skips_blank=True)
    assert len(found) == 750
    assert all(at == 10 * int(line) for at, line in found)
    assert [at for at, _ in found[::250]] == [0, 4_194_310, 8_388_610]


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [
        ("1", "true", "expected a whole number, got bool True"),
        ("1.5", "true", "expected a number, got bool True"),
        ("1.5", str(2**53 + 1), "int 9007199254740993 would become 9007199254740992.0"),
        ("1.5", str(10**400), "int too large to convert to float"),
    ],
)
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_number_that_comes_late_is_not_made_another_one(tmp_path, name, first, last, reason):
    """True is no 1, and what no float64 is exactly is not rounded."""
    lines = [f'{{"x": {first}}}\n'] * 70_000 + [f'{{"x": {last}}}\n'] + [f'{{"x": {first}}}\n'] * 9
    data = "".join(lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(FormatError, match=rf"line 70001, column .x. .*: {reason}"):
        StreamingDataset(local=str(tmp_path), batch_size=1)[70_000]


def test_a_limit_holds(tmp_path):
    """Shards turn out larger than planned, and the folder stays below its limit."""
    folder = tmp_path / "many"
    folder.mkdir()
    for name in range(40):
        (folder / f"{name:03}.numbers").write_text("".join(f"{n:>200000}\n" for n in range(4)))
    dataset = of(folder, tmp_path / "c", cache_limit=4_500_000, predownload=4, shuffle=True)
    count = 0
    for _ in dataset:
        assert dataset.stats()["used_bytes"] <= 4_500_000
        count += 1
    assert count == 160
    assert dataset.stats()["evicted_shards"] > 5
