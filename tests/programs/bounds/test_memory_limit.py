"""Under ``ulimit -v`` mds reserves no more memory than its data need."""

import pyarrow as pa
import pyarrow.parquet as pq
from limits import run

READ = """
from mds import Samples
print(len([*Samples(sys.argv[1], format="parquet", batch_size=1)]))
"""


def test_a_second_start_reserves_what_its_files_have(tmp_path):
    """The table of files that is kept in the cache is small, however large it might be."""
    data = tmp_path / "data"
    data.mkdir()
    pq.write_table(pa.table({"a": [1, 2, 3]}), data / "x.parquet")
    cache = str(tmp_path / "cache")
    for _ in range(2):
        assert run(READ, data, memory=2000, MDS_CACHE_DIR=cache) == "3\n"
