"""Calls that make no sense, each by what it says, and how it ends: under 0.13 and through the door.

Run by either Python it prints, for each call, "fine" or the builtin types of the error, as JSON.
"""

import json
import os
import signal
import sys
import tempfile
import warnings

# Each call is an expression; `tmp` is a folder with datasets: `d` of 20 samples in raw shards, `z`
# compressed, `gone` without its first shard, `blank` with an empty index, `none` without shards.
CALLS = """
StreamingDataset(batch_size=2)
StreamingDataset(streams=[Stream(local=d)], local=d, batch_size=2)
StreamingDataset(streams=[], batch_size=2)
StreamingDataset(local=tmp + '/nowhere', batch_size=2)
StreamingDataset(remote=tmp + '/nowhere', local=tmp + '/new', batch_size=2)
StreamingDataset(local=tmp + '/blank', batch_size=2)
StreamingDataset(local=tmp + '/none', batch_size=2)
StreamingDataset(local=tmp + '/gone', batch_size=2)[0]
StreamingDataset(d)
StreamingDataset(local=d, batch_size=2, surplus=1)
StreamingDataset(local=d, batch_size=2, split='nowhere')
StreamingDataset(local=d, batch_size=2, epoch_size=-1)
StreamingDataset(local=d, batch_size=2, epoch_size='many')
StreamingDataset(local=d, batch_size=2, cache_limit='much')
StreamingDataset(remote=d, local=tmp + '/small', batch_size=2, cache_limit=1)
StreamingDataset(local=d, batch_size=2, sampling_method='other')
StreamingDataset(local=d, batch_size=2, sampling_granularity=0)
list(StreamingDataset(local=d, batch_size=2, partition_algo='other'))
list(StreamingDataset(local=d, batch_size=2, num_canonical_nodes=-1))
list(StreamingDataset(local=d, batch_size=-1))
list(StreamingDataset(local=d, batch_size=2, shuffle=True, shuffle_algo='other'))
list(StreamingDataset(local=d, batch_size=2, shuffle_algo='other'))
list(StreamingDataset(local=d, batch_size=2, shuffle='yes'))
StreamingDataset(local=d, batch_size=2, shuffle_seed=-1)
list(StreamingDataset(local=d, batch_size=2, shuffle=True, shuffle_block_size=-1))
StreamingDataset(local=d, batch_size=2, batching_method='other')
StreamingDataset(local=d, batch_size=2, replication=0)
StreamingDataset(local=d, batch_size=2, replication=2)
StreamingDataset(local=d, batch_size=2, stream_name='other')
StreamingDataset(local=d, batch_size=2, stream_config={'surplus': 1})
StreamingDataset(local=d, batch_size=2, download_retry=-1)
StreamingDataset(local=d, batch_size=2, download_timeout=-1)
StreamingDataset(local=d, batch_size=2, validate_hash='other')[0]
list(StreamingDataset(local=d))
StreamingDataset(local=d, batch_size=2)[20]
StreamingDataset(local=d, batch_size=2)[-21]
StreamingDataset(local=d, batch_size=2)['x']
StreamingDataset(local=d, batch_size=2)[1.5]
StreamingDataset(local=d, batch_size=2)[None]
StreamingDataset(local=d, batch_size=2)[[25]]
StreamingDataset(local=d, batch_size=2)['a':'b']
StreamingDataset(local=d, batch_size=2).load_state_dict({})
StreamingDataset(local=d, batch_size=2).prepare_shard(99)
StreamingDataset(local=d, batch_size=2).evict_shard(99)
StreamingDataLoader(StreamingDataset(local=d, batch_size=2), batch_size=2, shuffle=True)
StreamingDataLoader(StreamingDataset(local=d, batch_size=2))._get_batch_size({})
LocalDataset(tmp + '/nowhere')
LocalDataset(tmp + '/gone')[0]
Stream()
Stream(local=d, proportion=1, repeat=2)
Stream(local=d, proportion=-1)
Stream(local=d, repeat=-1)
Stream(local=d, choose=-1)
Stream(local=d, download_retry=-1)
MDSWriter(columns={'a': 'other'}, out=tmp + '/w1')
MDSWriter(columns={'a': 'int'}, out=d)
MDSWriter(columns={'a': 'int'}, out=tmp + '/w2', compression='other')
MDSWriter(columns={'a': 'int'}, out=tmp + '/w3', compression='zstd:99')
MDSWriter(columns={'a': 'int'}, out=tmp + '/w4', hashes=['other'])
MDSWriter(columns={'a': 'int'}, out=tmp + '/w5', hashes=['xxh64', 'sha1'])
MDSWriter(columns={'a': 'int'}, out=tmp + '/w6', size_limit=-1)
MDSWriter(columns={'a': 'int'}, out=tmp + '/w7', size_limit=0).finish()
MDSWriter(columns={'a': 'int'}, out=tmp + '/w8', size_limit=1 << 33)
MDSWriter(columns={'a': 'int'}, out=tmp + '/w9', surplus=1)
MDSWriter(columns={'a': 'int'}, out=('one',))
MDSWriter(columns={'a': 'int'}, out='nonsense://bucket/key')
write(MDSWriter, {'a': 'int'}, {'a': 'x'})
write(MDSWriter, {'a': 'int'}, {'a': 1.5})
write(MDSWriter, {'a': 'int'}, {})
write(MDSWriter, {'a': 'uint8'}, {'a': 300})
write(MDSWriter, {'a': 'str'}, {'a': 1})
write(MDSWriter, {'a': 'ndarray:int32:2'}, {'a': np.zeros(3, np.int32)})
write(MDSWriter, {'a': 'ndarray:int32'}, {'a': [1, 2]})
write(CSVWriter, {'a': 'str'}, {'a': 'x,y'})
write(CSVWriter, {'a': 'str'}, {'a': 1})
write(JSONWriter, {'a': 'int'}, {'a': 'x'})
CSVWriter(columns={'a': 'jpeg'}, out=tmp + '/c1')
XSVWriter(columns={'a': 'str'}, out=tmp + '/c2')
reader_from_json(d, None, {**entry, 'version': 3})
reader_from_json(d, None, {**entry, 'format': 'other'})
reader_from_json(d, None, {**entry, 'surplus': 1})
CloudDownloader.get('nonsense://bucket/key')
CloudDownloader.get(None).download(None, tmp + '/x1')
CloudDownloader.get(None).download(tmp + '/gone/x', tmp + '/x2')
S3Downloader().download('gs://bucket/key', tmp + '/x3')
CloudUploader.get('nonsense://bucket/key')
CloudUploader.get(('a', 'b', 'c'))
CloudUploader.get(d)
compress('other', b'')
get_compression_extension('other')
get_hash('other', b'')
mds_encode('other', 1)
get_mds_encoded_size('other')
get_shuffle('other', np.array([3]), 1, 0, 0)
get_partitions('other', 10, 1, 1, 1, 1, 2)
bytes_to_int('much')
number_abbrev_to_int('many')
merge_index()
merge_index(1, 2)
merge_index([], d)
merge_index([tmp + '/nowhere/index.json'], tmp + '/m1')
World(2, 8, 4, 5).replicate(3)
Spanner(np.array([3, 4]))[7]
"""


def prepare(tmp):
    """The datasets of the calls, and the names that they use."""
    import numpy as np
    import streaming
    from streaming.base import compression, partition, shuffle, storage, util
    from streaming.base.format import reader_from_json
    from streaming.base.format.mds import encodings
    from streaming.base.hashing import get_hash
    from streaming.base.spanner import Spanner
    from streaming.base.world import World

    for name in ("d", "gone"):
        out = os.path.join(tmp, name)
        with streaming.MDSWriter(columns={"a": "int"}, out=out, size_limit=200) as writer:
            for n in range(20):
                writer.write({"a": n})
    os.unlink(os.path.join(tmp, "gone", "shard.00000.mds"))
    for name, text in (("blank", ""), ("none", '{"version": 2, "shards": []}')):
        os.makedirs(os.path.join(tmp, name))
        with open(os.path.join(tmp, name, "index.json"), "w") as file:
            file.write(text)
    with open(os.path.join(tmp, "d", "index.json")) as file:
        entry = json.load(file)["shards"][0]

    def write(kind, columns, sample):
        with kind(columns=columns, out=tempfile.mkdtemp(dir=tmp) + "/out") as writer:
            writer.write(sample)

    space = {}
    for module in (streaming, compression, partition, shuffle, storage, util, encodings):
        space.update((name, getattr(module, name)) for name in dir(module) if name[0] != "_")
    return {
        **space,
        "tmp": tmp,
        "d": os.path.join(tmp, "d"),
        "entry": entry,
        "np": np,
        "write": write,
        "reader_from_json": reader_from_json,
        "get_hash": get_hash,
        "World": World,
        "Spanner": Spanner,
    }


def end_of(call, space):
    """How a call ends: "fine", or the builtin types of its error."""
    signal.alarm(300)
    try:
        eval(call, dict(space))
    except Exception as error:  # noqa: BLE001 - how it ends is what is asked
        return [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    finally:
        signal.alarm(0)
    return "fine"


def main():
    """Print how each call ends."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as tmp:
        space = prepare(tmp)
        ends = {call: end_of(call, space) for call in CALLS.strip().splitlines()}
    json.dump(ends, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
