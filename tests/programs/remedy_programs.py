"""Programs that bring about a message, and those to which its remedy leads.

`REMEDIES` is the table; `names` makes what its programs name.
"""

import importlib
import io
import itertools
import json
import multiprocessing
import os
import pathlib
import shlex
import tarfile

import numpy as np
import torch
from click.testing import CliRunner
from PIL import Image
from torch.utils.data import ChainDataset, DataLoader, IterableDataset

import mds
import mds.transforms
from devtools import servers
from devtools.httpserver import FolderHandler, http_server
from mds._cli import convert, main
from mds.writers.convert._inputs.mds import MdsInput
from mds.writers.convert._inputs.registry import _inputs
from tests.programs.storage.test_trust import https_server

REMEDIES = []

#: Names of the library that are not in `mds`, and where they are.
PUBLIC = {
    **dict.fromkeys(
        ("ImageFiles", "JsonLines", "MetadataFiles", "Parquet", "RawFiles", "Tar"), "mds.formats"
    ),
    "register_input": "mds.writers.convert",
    "World": "mds.world",
    "open_store": "mds.storage",
    "RetryPolicy": "mds.storage",
    "merge_index": "mds.writers",
}


def remedy(situation, asked, applied):
    """Add an entry: a program, the remedy that its message names, and the program with it.

    ``applied`` is true when the remedy helped. It holds every argument, option and function that
    ``asked`` names. Each program is an expression, or a command line that begins with ``mds``.
    """
    REMEDIES.append((situation, asked, applied))


remedy(
    "dataset().edits.set_weights({'web': 2})",
    "Pass schedule=Schedule({0: {...}}) to the dataset",
    "StreamingDataset(streams={'web': Stream(local=d)}, batch_size=2, "
    "schedule=Schedule({0: {'web': 1}})).edits.set_weights({'web': 2}) or True",
)
remedy(
    "dataset().edits.replace_samples('all')",
    "Write replace_samples([77123, 88012])",
    "dataset().edits.replace_samples([3, 4]) or True",
)
remedy(
    "batches(dataset(packing=Packing(budget=16, column='tokens'), local=tokens))",
    "Use batch_size=1",
    "batches(dataset(packing=Packing(budget=16, column='tokens'), local=tokens, batch_size=1), "
    "batch_size=1)",
)
remedy(
    "StreamingDataLoader(dataset(), batch_size=2, pack_as='dense')",
    "Write Packing(..., layout='dense')",
    "batches(dataset(packing=Packing(8, column='tokens', layout='dense'), local=tokens))",
)
remedy(
    "dataset(packing=Packing(8, column='tokens'), local=tokens).state_dict(num_samples=2)",
    "Use state_dict() of the StreamingDataLoader",
    "StreamingDataLoader(dataset(packing=Packing(8, column='tokens'), local=tokens)).state_dict()",
)
remedy(
    "dataset().select([[1, 2]])",
    "Write select([0, 7])",
    "dataset().select([0, 7]).num_samples == 2",
)
remedy(
    "dataset().select([1], where=lambda sample: True)",
    "select([0, 7]) or select(where=lambda sample: ...)",
    "dataset().select(where=lambda sample: sample['id'] in (0, 7)).num_samples == 2",
)
remedy(
    "dataset().select(where=lambda sample: True, key=3)",
    "select(where=lambda sample: ..., key='long')",
    "dataset().select(where=lambda sample: sample['id'] > 3, key='long').num_samples == 16",
)
remedy(
    "dataset().select([1, 1])",
    "use repeat= of a Stream",
    "StreamingDataset(streams=[Stream(local=d, repeat=2)], batch_size=2).epoch_size == 40",
)
remedy(
    "dataset().select([7, 3])",
    "Write select(sorted(numbers))",
    "dataset().select(sorted([7, 3])).num_samples == 2",
)
remedy(
    "dataset().filter(lambda sample: sample['id'] < 5).limit(3)",
    "Write dataset.select(where=function).limit(3)",
    "dataset().select(where=lambda sample: sample['id'] < 5).limit(3).num_samples == 3",
)
remedy(
    "dataset().split(0.8)",
    "Write train, val = dataset.split([0.8, 0.2])",
    "len(dataset().split([0.8, 0.2])) == 2",
)
remedy(
    "dataset().split([0.8, '0.2'])",
    "Write split({'train': 0.9, 'val': 0.1})",
    "len(dataset().split({'train': 0.9, 'val': 0.1})) == 2",
)
remedy(
    "dataset().split([90, 10])",
    "Use shares, as in split([0.9, 0.1]), or change a number",
    "len(dataset().split([0.9, 0.1])) == 2",
)
remedy(
    "dataset().split([10, 10], by='id')",
    "Use shares, as in split([0.9, 0.1], by='id')",
    "len(dataset().split([0.9, 0.1], by='id')) == 2",
)
remedy(
    "Schedule([0, {'web': 1}])",
    "Write {0: {'web': 0.9, 'math': 0.1}, 1000: {'web': 0.5, 'math': 0.5}}",
    "Schedule({0: {'web': 0.9, 'math': 0.1}, 1000: {'web': 0.5, 'math': 0.5}})",
)
remedy(
    "Schedule({0: 1.0})",
    "Name the streams, as in StreamingDataset({'web': Stream(...), 'math': Stream(...)}), and "
    "write {'web': 0.9, 'math': 0.1}",
    "StreamingDataset({'web': Stream(d), 'math': Stream(d)}, batch_size=2, "
    "schedule=Schedule({0: {'web': 0.9, 'math': 0.1}}))",
)
remedy(
    "dataset().map(lambda sample, size: sample)",
    "Write lambda sample: ...",
    "dataset().map(lambda sample: sample)[0]",
)
remedy(
    "once(dataset(), lambda it: "
    "(next(iter(torch.utils.data.DataLoader(it, num_workers=1))), it.state_dict()))",
    "Use mds.StreamingDataLoader(dataset, num_workers=...), which counts the samples. Or call "
    "state_dict(num_samples)",
    "once(dataset(), lambda it: (next(iter(StreamingDataLoader(it, num_workers=1))), "
    "it.state_dict(), it.state_dict(2)))",
)
remedy(
    "StreamingDataLoader(dataset(), batch_size=2, workers='threads', num_workers=1)",
    "Write worker_type='threads'",
    "batches(dataset(), num_workers=1, worker_type='threads')",
)
remedy(
    "dataset().select(text_file)",
    "Write the file with numpy.save()",
    "numpy.save(folder + '/ids.npy', [1, 2]) or "
    "dataset().select(folder + '/ids.npy').num_samples == 2",
)
remedy(
    "dataset().select(folder + '/none.npy')",
    "write select(where=...)",
    "dataset().select(where=lambda sample: sample['id'] < 5).num_samples == 5",
)
remedy(
    "StreamingDataset(local=d, batch_size=2, schedule=Schedule({0: {'web': 1}}))",
    "Write streams={'web': Stream(...), ...}",
    "StreamingDataset(streams={'web': Stream(local=d)}, batch_size=2, "
    "schedule=Schedule({0: {'web': 1}}))",
)
remedy(
    "Stream(d, split='../train')",
    "Give the path from there, such as split='train'",
    "Stream(d, split='train')",
)
remedy(
    "mds.read_csv",
    "Convert the file: mds.convert('table.csv', 'data/train')",
    "open(folder + '/table.csv', 'w').write('a,b\\n1,2\\n') and "
    "mds.convert(folder + '/table.csv', folder + '/table')",
)
remedy(
    "StreamingDataset(batch_size=2)",
    "streams=, remote= or local=",
    "StreamingDataset(streams=[Stream(remote=d, local=d)], batch_size=2)",
)
remedy(
    "StreamingDataset(3)",
    "Write StreamingDataset('data/train')",
    "StreamingDataset(d, batch_size=2)[0]",
)
remedy(
    "StreamingDataset(d, streams=[Stream(d)], batch_size=2)",
    "to streams=, or leave one of the two out",
    "StreamingDataset(streams=[Stream(d), Stream(d)], batch_size=2)[0]",
)
remedy(
    "StreamingDataLoader(d)",
    "Write StreamingDataLoader(StreamingDataset(local=...), batch_size=...)",
    "StreamingDataLoader(StreamingDataset(local=d, batch_size=2), batch_size=2)",
)
remedy(
    "StreamingDataLoader(dataset(), batch_size=2, prefetch_factor=2)",
    "Give num_workers= too",
    "batches(dataset(), num_workers=1, prefetch_factor=2)",
)
remedy(
    "StreamingDataLoader(dataset(), batch_size=2, num_workers=1, worker_type='threads', "
    "persistent_workers=True)",
    "use worker_type='processes'",
    "batches(dataset(), num_workers=1, worker_type='processes', persistent_workers=True)",
)
remedy(
    "batches(StreamingDataset(streams=[Stream(local=d), Stream(local=tokens)], batch_size=2))",
    "Choose common columns with columns=, or use batching_method='per_stream' or a collate_fn=",
    "[batches(StreamingDataset(streams=[Stream(local=d), Stream(local=tokens)], batch_size=2, "
    "**given), **loader) for given, loader in ((dict(columns=['id']), {}), "
    "(dict(batching_method='per_stream'), {}), ({}, dict(collate_fn=list)))]",
)
remedy(
    "batches(dataset().map(seeded(lambda sample, rng: sample)), num_workers=1, "
    "worker_type='threads')",
    "Use worker_type='processes', or draw from the argument rng of map()",
    "batches(dataset().map(seeded(dict)), num_workers=1, worker_type='processes') "
    "and batches(dataset().map(draw), num_workers=1, worker_type='threads')",
)
remedy(
    "batches(dataset().map_batches(lambda batch: batch), batch_size=None)",
    "Give the loader a batch_size, or use map()",
    "batches(dataset().map(lambda sample: sample), batch_size=None)",
)
remedy(
    "dataset().map_batches(lambda batch: batch)[0]",
    "read this dataset with StreamingDataLoader",
    "list(StreamingDataLoader(dataset().map_batches(lambda batch: batch), batch_size=2))",
)
remedy(
    "batches(dataset().map(lambda sample: 3).map_batches(lambda batch: batch))",
    "let the function of map() return a dict",
    "batches(dataset().map(lambda sample: {'three': 3}).map_batches(lambda batch: batch))",
)
remedy(
    "batches(dataset().map(lambda sample: {str(sample['id'] % 2): 1}).map_batches(dict))",
    "Let the function of map() return the same keys",
    "batches(dataset().map(lambda sample: {'a': 1}).map_batches(dict))",
)
remedy(
    "batches(dataset(local=tokens), collate_fn=stack('tokens'))",
    "use pad() or ragged() for rows of different lengths",
    "batches(dataset(local=tokens), collate_fn=pad('tokens')) "
    "and batches(dataset(local=tokens), collate_fn=ragged('tokens'))",
)
remedy(
    "images('image', masks='mask', size=224)",
    "write images('image', masks=['mask'], size=224)",
    "images('image', masks=['mask'], size=224)",
)
remedy(
    "images('image', size=8, dtype='uint8', mean=(0, 0, 0), std=(1, 1, 1))",
    "leave out dtype='uint8'",
    "images('image', size=8, mean=(0, 0, 0), std=(1, 1, 1))",
)
remedy(
    "MDSWriter(out=new, columns={})",
    "Write columns={'text': 'str'}",
    "written(new, columns={'text': 'str'}, sample={'text': 'a'})",
)
remedy(
    "written(new, {'a': 'int'}, {'a': 1, 'b': 2})",
    "pass strict=False (or strict=True to get an error)",
    "written(new + '2', {'a': 'int'}, {'a': 1, 'b': 2}, strict=False)  # or strict=True",
)
remedy(
    "written(new, {'a': 'int64'}, {'a': 1.5})",
    "Write round(value), or use the encoding 'float64'",
    "written(new, {'a': 'int64'}, {'a': round(1.5)}) "
    "and written(new + '2', {'a': 'float64'}, {'a': 1.5})",
)
remedy(
    "batches(dataset().limit(5), batch_size=8, drop_last=True)",
    "Give drop_last=False",
    "batches(dataset(batch_size=None).limit(5), batch_size=8, drop_last=False)",
)
remedy(
    "batches(dataset(local=tokens))",
    "pass collate_fn=pad('tokens') or ragged('tokens')",
    "batches(dataset(local=tokens), collate_fn=pad('tokens')) and ragged('tokens')",
)
remedy(
    "batches(dataset(packing=Packing(16, column='tokens', "
    "packer=pairs(numpy.random.default_rng())), local=tokens))",
    "call np.random.default_rng(0) in it",
    "batches(dataset(packing=Packing(16, column='tokens', "
    "packer=pairs(lambda: numpy.random.default_rng(0))), local=tokens))",
)
remedy(
    "dataset(split='train')",
    "leave split='train' out",
    "dataset() and 'split='",
)
remedy(
    "dataset().load_state_dict(3)",
    "Give what state_dict() returned",
    "dataset().load_state_dict(dataset().state_dict(num_samples=2)) is None",
)
remedy(
    "dataset().load_state_dict({})",
    "Give what state_dict() of the dataset or of the StreamingDataLoader returned",
    "dataset().load_state_dict(StreamingDataLoader(dataset(), batch_size=2).state_dict()) is None",
)
remedy(
    "dataset(local=other_values).load_state_dict(dataset(local=values).state_dict(num_samples=2))",
    "call load_state_dict(state, other_data=True)",
    "dataset(local=other_values).load_state_dict(dataset(local=values).state_dict(num_samples=2), "
    "other_data=True) is None",
)
remedy(
    "dataset(local=other_values).load_state_dict(dataset(local=values).state_dict(num_samples=2))",
    "set state['data'] = None first",
    "dataset(local=other_values).load_state_dict("
    "{**dataset(local=values).state_dict(num_samples=2), 'data': None}) is None",
)
remedy(
    "dataset(local=pickles)[0]",
    "Pass allow_unsafe_types=True",
    "dataset(local=pickles, allow_unsafe_types=True)[0]['a'] == {1}",
)
remedy(
    "dataset(remote=many, local=folder + '/small', cache_limit=1)[0]",
    "Set cache_limit to {}",
    "dataset(remote=many, local=folder + '/small', cache_limit={})[0]",
)
remedy(
    "mds-convert {named} {new} --fill 5",
    "Write name=",
    "mds-convert {named} {new} --fill name=5",
)
remedy(
    "mds-convert {named} {new} --describe 5",
    "Write name=",
    "mds-convert {named} {new} --describe name=number",
)
remedy(
    "mds-convert {named} {new} --columns name:json",
    "Write --encodings name:json",
    "mds-convert {named} {new} --encodings name:json",
)
remedy(
    "mds.convert(named, new, columns={'name': 'json'})",
    "Write encodings={'name': 'json'}",
    "mds.convert(named, new, encodings={'name': 'json'}).samples",
)
remedy(
    "png('g/a.png') and of(folder + '/g', format='imagefolder')",
    "write format='images'",
    "png('g/a.png') and of(folder + '/g', format='images')[0]",
)
remedy(
    "png('s/train/x/a.png') and png('s/val/x/b.png') and of(folder + '/s', format='images')",
    "Read one of them with split='val'",
    "of(folder + '/s', split='val', format='images')[0]",
)
remedy(
    "png('g/a.png') and put('g/b.png', 'x') and list(of(folder + '/g', format='images'))",
    "Remove it",
    "png('h/a.png') and list(of(folder + '/h', format='images'))",
)
remedy(
    "mds-convert {lines} {new} --split 5",
    "Write train=0.98,val=0.02",
    "mds-convert {lines} {new} --split train=0.98,val=0.02",
)
remedy(
    "mds-convert {archive} {new}",
    "or take the bytes with --format files (format='files')",
    "cli('mds-convert {archive} {new} --format files') and of(archive, format='files')[0]",
)
remedy("mds-convert - {new}", "Add --format jsonl", "mds-convert - {new} --format jsonl")
remedy(
    "mds-convert {lines} {new} --labels labels.csv",
    "Leave it out",
    "mds-convert {lines} {new}",
)
remedy(
    "mds-convert {two} {new} --tokenizer bytes --block 4",
    "Name one with --text-column",
    "mds-convert {two} {new} --tokenizer bytes --block 4 --text-column b",
)
remedy(
    "mds-convert {bad} {new}",
    "(mds-convert --on-error skip)",
    "mds-convert {bad} {new} --on-error skip",
)
remedy(
    "os.remove(d + '/index.json') or dataset()",
    "write the index again: mds index ",
    "cli('mds index {d}') and dataset()[0]",
)
remedy("cli('mds index {d}')", "Check the dataset with mds verify ", "cli('mds verify {d}')")
remedy(
    "os.remove(d + '/index.json') or cli('mds index {d} {new}')",
    "Leave out OUT",
    "cli('mds index {d}')",
)
PIECES = "[written(folder + '/pieces/' + name, {'id': 'int'}, {'id': 1}) for name in '01'] and "
remedy(
    PIECES + "dataset(local=folder + '/pieces')",
    "Merge them with merge_index(",
    "merge_index(folder + '/pieces') or dataset(local=folder + '/pieces')[1]",
)
remedy(
    PIECES + "(merge_index(folder + '/pieces') or merge_index([folder + '/pieces/index.json', "
    "folder + '/pieces/0/index.json'], folder + '/pieces'))",
    "Leave it out of merge_index([...])",
    "merge_index([folder + '/pieces/0/index.json'], folder + '/pieces') or True",
)
remedy(
    PIECES + "cli('mds-convert {folder}/pieces {new}')",
    "merge parts of one dataset first: mds merge ",
    "cli('mds merge {folder}/pieces') and cli('mds-convert {folder}/pieces {new}')",
)
MIXED = (
    "[written(folder + '/mixed/' + name, {'v': kind, 'w': 'int'}, {'v': 1, 'w': 1}) "
    "for name, kind in (('0', 'int32'), ('1', '%s'))] and merge_index(folder + '/mixed') or "
)
for other, argument in (("int64", "encodings={'v': 'int64'}"), ("str_int", "drop=['v']")):
    remedy(
        MIXED % other + "mds.convert(folder + '/mixed', new)",
        "Convert its samples instead: mds.convert(mds.StreamingDataset(",
        f"mds.convert(mds.StreamingDataset(folder + '/mixed'), new, {argument}).samples == 2",
    )
remedy(
    "once(dataset(remote=values, local=folder + '/copy'), lambda run: ("
    "[os.replace(f'{other_values}/{name}', f'{values}/{name}') "
    "for name in ('index.json', 'shard.00000.mds')], run[0]))",
    "If the dataset was replaced during the run, restart to read the new data, and publish changed",
    "dataset(remote=values, local=folder + '/copy')[0]['id'] == 2",
)
remedy(
    "[written(folder + place, {'id': kind}, {'id': 1}, hashes=[]) "
    "for place, kind in (('/old', 'int32'), ('/young', 'int64'))] and "
    "once(dataset(remote=folder + '/old', local=folder + '/copy'), lambda run: "
    "(os.replace(folder + '/young/shard.00000.mds', folder + '/old/shard.00000.mds'), "
    "os.replace(folder + '/young/index.json', folder + '/old/index.json'), run[0]))",
    "The dataset was replaced during the run. Restart to read the new data",
    "dataset(remote=folder + '/old', local=folder + '/copy')[0]['id'] == 1",
)
remedy(
    "damage(values + '/shard.00000.mds', -1) or dataset(local=values, validate_hash='xxh3_64')[0]",
    "Copy the file again. List all damaged files with mds verify ",
    "not attempt('mds verify {values}')[0] and damage(values + '/shard.00000.mds', -1) or "
    "cli('mds verify {values}') and dataset(local=values, validate_hash='xxh3_64')[0]['id'] == 1",
)
TOKENIZE = (
    """put('chat.jsonl', '{"id": "a", "messages": [{"content": "b"}]}') and """
    "cli('mds-convert {folder}/chat.jsonl {new} --tokenizer bytes --block 4"
)
remedy(
    TOKENIZE + "')",
    "Name one with --text-column. messages.content joins the texts",
    TOKENIZE + " --text-column messages.content')",
)
remedy(
    TOKENIZE + " --text-column messages')",
    "Name another place with --text-column",
    TOKENIZE + " --text-column messages.content')",
)
MEASURE = (
    """put('n.jsonl', '{"n": {"a": 1}, "m": [1]}') and cli('mds-convert {folder}/n.jsonl {new} """
    "--lengths "
)
remedy(MEASURE + "n')", "Name another column with --lengths", MEASURE + "m')")
LATE = (
    "put('late.{}', '{}' + '{}' * 1500 + '{}') and cli('mds-convert {{folder}}/late.{} {{new}} {}')"
)
remedy(
    LATE.format("csv", "v\\n", "1\\n", "2.5\\n", "csv", ""),
    "Add --overwrite --encodings v:float64",
    LATE.format("csv", "v\\n", "1\\n", "2.5\\n", "csv", "--overwrite --encodings v:float64"),
)
remedy(
    LATE.format("csv", "v\\n", "1\\n", "NA\\n", "csv", ""),
    "Add --overwrite --null NA --fill v=VALUE",
    LATE.format("csv", "v\\n", "1\\n", "NA\\n", "csv", "--overwrite --null NA --fill v=5"),
)
remedy(
    LATE.format("csv", "v\\n", "1\\n", "NA\\n", "csv", ""),
    "or --overwrite --null NA --encodings 'v:optional[int]'",
    LATE.format(
        "csv", "v\\n", "1\\n", "NA\\n", "csv", "--overwrite --null NA --encodings v:optional[int]"
    ),
)
remedy(
    LATE.format("jsonl", "", '{"v": 1}\\n', '{"v": 1, "w": 2}\\n', "jsonl", ""),
    "Add --overwrite --encodings w:json",
    LATE.format(
        *("jsonl", "", '{"v": 1}\\n', '{"v": 1, "w": 2}\\n', "jsonl"),
        "--overwrite --encodings w:json",
    ),
)
remedy(
    "mds-convert {parts} {new} --split train=0.5,val=0.5",
    "merge them with --merge-splits",
    "mds-convert {parts} {new} --split train=0.5,val=0.5 --merge-splits",
)
remedy(
    "mds.convert(two, new, split_key='b')",
    "Write split={'train': 0.9, 'val': 0.1}",
    "mds.convert(two, new, split={'train': 0.5, 'val': 0.5}, split_key='b').samples",
)
remedy(
    "mds-convert {lines} {new} --work {d}",
    "choose another with --work",
    "mds-convert {lines} {new} --work {folder}/empty",
)
remedy(
    "dataset().edits.skip_steps(3)",
    "as range(12300, 12400)",
    "dataset().edits.skip_steps(range(2, 4)) or True",
)
remedy(
    "batches(dataset(packing=Packing(8, column='id'), local=d))",
    "Name another column with column= of Packing",
    "batches(dataset(packing=Packing(8, column='tokens'), local=tokens))",
)
remedy("seeded(3)", "Write dataset.map(seeded(function))", "dataset().map(seeded(dict))[0]")
remedy(
    "dataset().edits.replace_samples(range(15))",
    "Leave these samples out with select()",
    "dataset().select([15, 16, 17]).num_samples == 3",
)
remedy(
    "list(dataset(topology=(0, 64)))",
    "Use remainder='short' to see every sample once",
    "list(dataset(topology=(0, 64), remainder='short'))",
)
remedy(
    "batches(dataset().map(lambda sample: sample), num_workers=1, multiprocessing_context='spawn')",
    "use multiprocessing_context='fork' or worker_type='threads'",
    "batches(dataset().map(dict), num_workers=1, multiprocessing_context='fork') "
    "and batches(dataset().map(dict), num_workers=1, worker_type='threads')",
)
remedy(
    "mds-convert - {new} --format jsonl --resume",
    "Leave out --resume",
    "mds-convert - {new} --format jsonl",
)
remedy(
    "StreamingDataset(remote=odd + '/*', local=folder + '/copy', batch_size=1)",
    "give format=, one of",
    "StreamingDataset(remote=odd + '/*', local=folder + '/copy', batch_size=1, format='jsonl')[0]",
)
remedy(
    "StreamingDataset(remote=odd + '/*.odd', local=folder + '/copy', batch_size=1)",
    "its ending belongs to no format; give format=, one of",
    "StreamingDataset(remote=odd + '/*.odd', local=folder + '/copy', format='lines', "
    "batch_size=1)[0]",
)


# ---------------------------------------------------------------- programs of the user

remedy(
    "once(iter(dataset()), lambda it: in_child(lambda: next(it)))",
    "Call iter() in the child",
    "in_child(lambda: next(iter(dataset())))",
)
remedy(
    "batches(Half(local=d, batch_size=2, remainder='mask'))",
    "Use remainder='short'",
    "batches(Half(local=d, batch_size=2, remainder='short'))",
)
remedy(
    "batches(Wrapper(dataset()), num_workers=1, worker_type='threads')",
    "Create samples in __getitem__ of a subclass or in map(), or use worker_type='processes'",
    "batches(dataset().map(dict), num_workers=1, worker_type='threads') "
    "and batches(Wrapper(dataset()), num_workers=1, worker_type='processes')",
)
remedy(
    "batches(Half(local=tokens, batch_size=2, packing=Packing(8, column='tokens')))",
    "Give the loader the StreamingDataset, and change samples in map()",
    "batches(dataset(local=tokens, packing=Packing(8, column='tokens')).map(dict))",
)
remedy(
    "once(Half(local=d, batch_size=2), begun).state_dict()",
    "Use Packing or dataset.filter(), or save those samples in a state_dict() of Half, "
    "with num_workers=0",
    "begun(dataset().filter(lambda sample: sample['id'] % 2)).state_dict() "
    "and begun(Keeps(local=d, batch_size=2), num_workers=0).state_dict()",
)
remedy(
    "begun(Wrapper(dataset(topology=(0, 2)).filter(lambda sample: sample['id'] % 5))).state_dict()",
    "Move the code of Wrapper into dataset.map() or collate_fn",
    "begun(dataset(topology=(0, 2)).filter(lambda sample: sample['id'] % 2).map(dict), "
    "collate_fn=list).state_dict()",
)
remedy(
    "batches(dataset().filter(lambda sample: False).map(dict))",
    "Call filter() last",
    "batches(dataset().map(dict).filter(lambda sample: False))",
)
remedy(
    "batches(dataset().map(lambda sample: {'x': torch.ones(2, dtype=torch.bfloat16)}), "
    "collate_fn=pad('x'))",
    "convert them to torch.float32 in map()",
    "batches(dataset().map(lambda sample: {'x': torch.ones(2, dtype=torch.bfloat16)"
    ".to(torch.float32)}), collate_fn=pad('x'))",
)
remedy(
    "written(new, {'x': 'ndarray:uint64'}, {'x': numpy.array([1, 2**63], 'u8')}, lengths='x') "
    "and batches(dataset(local=new, packing=Packing(4, column='x')))",
    "Make it smaller in map()",
    "batches(dataset(local=new, packing=Packing(4, column='x')).map("
    "lambda sample: {'x': sample['x'] // 2}))",
)
remedy(
    "written(new, {'x': 'ndarray:int32', 'labels': 'str'}, "
    "{'x': numpy.ones(2, 'i4'), 'labels': 'cat'}, lengths='x') "
    "and batches(dataset(local=new, packing=Packing(4, column='x')))",
    "Leave these columns out with columns=",
    "batches(dataset(local=new, packing=Packing(4, column='x'), columns=['x']))",
)
remedy(
    "written(new, {'id': 'int', 'mask': 'int'}, {'id': 1, 'mask': 1}) "
    "and batches(dataset(local=new, remainder='mask'))",
    "Leave it out with columns=, or rename it in a collate function",
    "batches(dataset(local=new, remainder='mask', columns=['id'])) "
    "and batches(dataset(local=new, remainder='mask'), collate_fn=rename_mask)",
)
remedy(
    "[*DataLoader(IterableDatasetShard(dataset(topology=(0, 2))), batch_size=2)]",
    "Override get_train_dataloader() to return StreamingDataLoader(dataset, ...). Or pass "
    "topology=(0, 1) to the dataset",
    "[*DataLoader(IterableDatasetShard(dataset(topology=(0, 1))), batch_size=2)]  "
    "# get_train_dataloader() and StreamingDataLoader() have an entry of their own",
)
remedy(
    "StreamingDataLoader(ChainDataset([dataset(), dataset(local=tokens)])).state_dict()",
    "To resume, store the StreamingDataset as self.dataset, or use one StreamingDataset with "
    "several streams: streams=[Stream(...), Stream(...)]",
    "begun(Wrapper(dataset())).state_dict() and begun(StreamingDataset("
    "streams=[Stream(local=d), Stream(local=tokens)], columns=['id'], batch_size=2)).state_dict()",
)
remedy(
    "MDSWriter(out=new, columns={'a': 'int'}).write({'a': 1}) or True",
    "Use it in a `with` block, or call finish()",
    "written(folder + '/in_a_with_block', {'a': 'int'}, {'a': 1}) "
    "and once(MDSWriter(out=folder + '/finished', columns={'a': 'int'}), "
    "lambda writer: writer.write({'a': 1}) or writer.finish() or True)",
)
remedy(
    r"written(new, {'a': 'int'}, {'a': 1}, descriptions={'a': 'a\ud800'})",
    "decode the text with errors='replace'",
    r"written(new, {'a': 'int'}, {'a': 1}, descriptions={'a': b'a\xff'.decode(errors='replace')})",
)
remedy(
    "written(new, {'a': 'pil'}, {'a': picture.quantize(8)})",
    "give image.convert('RGB'), or use the encoding png",
    "written(folder + '/rgb', {'a': 'pil'}, {'a': picture.quantize(8).convert('RGB')}) "
    "and written(folder + '/png', {'a': 'png'}, {'a': picture.quantize(8)})",
)

# ---------------------------------------------------------------- states

SAVED = "json.dump(loader.state_dict(), file) or "
remedy(
    "cli('mds run step ' + put('state.json', '{}') + ' 1')",
    "Save one as JSON: json.dump(loader.state_dict(), file)",
    SAVED + "cli('mds run step {state} 1')",
)
remedy(
    "cli('mds run step ' + put('state.json', 'no JSON') + ' 1')",
    "Save the state as JSON: json.dump(loader.state_dict(), file)",
    SAVED + "cli('mds run step {state} 1')",
)
SELECTED = "put('state.json', json.dumps(begun(dataset().limit(10)).state_dict())) and "
remedy(
    SELECTED + "cli('mds run step {state} 1')",
    "Pass the argument of select() as select= or --select FILE.npy",
    SELECTED + "(numpy.save(folder + '/ids.npy', range(10)) "
    "or cli('mds run step {state} 1 --select {folder}/ids.npy')) "
    "and RunHistory(begun(dataset().select(range(10))).state_dict(), select=range(10))",
)
remedy(
    "RunHistory({name: begun(dataset()).state_dict() for name in 'ab'})",
    "Pass one of them, as loader.state_dict() returned it",
    "RunHistory(begun(dataset()).state_dict())",
)
remedy(
    "RunHistory(dataset())",
    "Write RunHistory(loader.state_dict()), or the path of a file with it",
    "RunHistory(begun(dataset()).state_dict())",
)
PACKED = "dataset(local=tokens, packing=Packing(8, column='tokens'))"
remedy(
    f"loaded({PACKED}, without(begun({PACKED}).state_dict(), 'unit'))",
    "Save and load all keys that state_dict() returned",
    f"loaded({PACKED}, json.loads(json.dumps(begun({PACKED}).state_dict())))",
)

# ---------------------------------------------------------------- orders

SPENT = "batches(StreamingDataset(streams={'web': Stream(local=d)}, batch_size=2, epoch_size=50, "
remedy(
    SPENT + "schedule=Schedule({0: {'web': 1}}, exhausted='error')))",
    "more max_passes or a smaller epoch_size, or end there with exhausted='stop'",
    SPENT + "schedule=Schedule({0: {'web': 1}}, exhausted='stop'))) and "
    + SPENT + "schedule=Schedule({0: {'web': 1}}, max_passes=9))) and "
    + SPENT.replace("50", "10") + "schedule=Schedule({0: {'web': 1}}, exhausted='error')))",
)  # fmt: skip
FEW = "list(dataset(num_canonical_nodes=1, topology=World({}, 1, 1, 0"
remedy(
    FEW.format(16) + ")))",
    "Use remainder='short', or fewer nodes",
    FEW.format(16) + "), remainder='short')) and " + FEW.format(4) + ")))",
)
SCHEDULED = (
    "batches(StreamingDataset(streams={{'web': Stream(local=tokens)}}, batch_size=2, "
    "packing=Packing({}column='tokens'), schedule=Schedule({{0: {{'web': 1}}}}, {})))"
)
remedy(
    SCHEDULED.format("8, ", "unit='samples'"),
    "Use unit='tokens'",
    SCHEDULED.format("8, ", "unit='tokens'"),
)
remedy(
    SCHEDULED.format("8, ", "unit='tokens', tokens_per_sample=9"),
    "or unit='steps'",
    SCHEDULED.format("8, ", "unit='steps'"),
)
remedy(
    SCHEDULED.format("budget=16, ", "unit='steps'").replace("batch_size=2", "batch_size=1"),
    "Use unit='tokens'",
    SCHEDULED.format("budget=16, ", "unit='tokens'").replace("=2", "=1").replace(
        ")))", ")), batch_size=1)"),
)  # fmt: skip
remedy(
    "dataset().edits.replace_samples(range(100_001))",
    "Leave these samples out with select()",
    "dataset().select([15, 16, 17]).num_samples == 3",
)

# ---------------------------------------------------------------- files

remedy(
    "of(table('a.parquet', x=[1, 300]), format=Parquet(encodings={'x': 'int8'}))[1]",
    "give another type with encodings=",
    "of(table('a.parquet', x=[1, 300]), format=Parquet(encodings={'x': 'int16'}))[1]",
)
remedy(
    "of(table('a.parquet', x=[[1, None]]), format=Parquet(encodings={'x': 'ndarray:int64'}))[0]",
    "or leave it out with columns=",
    "of(table('a.parquet', x=[[1, None]], y=[1]), format=Parquet(encodings={'x': 'json'}))[0] "
    "and of(folder + '/a.parquet', format=Parquet(encodings={'x': 'ndarray:int64'}), "
    "columns=['y'])[0]",
)
TWO_KINDS = "table('f/a.parquet', x=[1], y=[1]) and table('f/b.parquet', x=['a'], y=[2]) and "
remedy(
    TWO_KINDS + "of(folder + '/f')",
    "Leave it out with columns=, read the files as separate streams, or name an encoding for all "
    "of them, such as encodings={'x': 'json'}",
    TWO_KINDS + "of(folder + '/f', columns=['y'])[1] and StreamingDataset(batch_size=1, streams=["
    "Stream(remote=folder + '/f/a.parquet', local=folder + '/1'), "
    "Stream(remote=folder + '/f/b.parquet', local=folder + '/2')])[1] "
    "and of(folder + '/f', format=Parquet(encodings={'x': 'json'}))[1]",
)
remedy(
    "of(tar('a.tar', {'1.txt': b'a', '1.cls': b'1', '2.txt': b'b'}), format=Tar(missing='error'))",
    "Leave it out with columns=, or read None there with format=Tar(missing='null')",
    "of(folder + '/a.tar', columns=['txt'])[1] "
    "and of(folder + '/a.tar', format=Tar(missing='null'))[1]",
)
remedy(
    "table('f/a.parquet', x=[1], y=[1]) and table('f/b.parquet', x=[2]) and of(folder + '/f')[1]",
    "If this is right, give the format missing='null'; missing='error' raises an error instead",
    "table('f/a.parquet', x=[1], y=[1]) and table('f/b.parquet', x=[2]) and "
    "of(folder + '/f', format=Parquet(missing='null'))[1] and Parquet(missing='error')",
)
LATE = "of(put('a.jsonl', '{\"x\": 1}\\n' * 300 + '{\"x\": 1, \"late\": 2}\\n')"
remedy(
    LATE + ")[300]",
    "In place, name the columns that you want with columns=",
    LATE + ", columns=['x'])[300]",
)
KINDS = 'of(put(\'a.jsonl\', \'{"x": 1, "y": 1}\\n\' * 70_000 + \'{"x": true, "y": 1}\\n\')'
remedy(
    KINDS + ")[70_000]",
    "In place, write format=JsonLines(encodings={'x': 'json'})",
    KINDS + ", format=JsonLines(encodings={'x': 'json'}))[70_000]",
)
LATE_FILE = "{**{f'{n}.txt': b'a' for n in range(1000, 9000)}, '9000.txt': b'a', '9000.cls': b'1'}"
remedy(
    f"mds.convert(tar('a.tar.gz', {LATE_FILE}), new)",
    "Name the columns that you want with columns=",
    "mds.convert(folder + '/a.tar.gz', new, columns=['txt'], overwrite=True).samples == 8001",
)
FAR_TIMES = "of(table('a.parquet', x=[{'t': numpy.datetime64('20000-01-01', 'us')}], y=[1])"
remedy(
    FAR_TIMES + ")[0]",
    "leave the column out with columns=",
    FAR_TIMES + ", columns=['y'])[0]",
)
MANIFEST = "put('raw/a.bin', 'abc') and put('raw/m.csv', 'path,n,who\\na.bin,3,x\\n') and "
remedy(
    MANIFEST.replace("path,", "file,") + "of(folder + '/raw', format=RawFiles(manifest='m.csv'))",
    "name the one with the paths by path=",
    MANIFEST.replace("path,", "file,")
    + "of(folder + '/raw', format=RawFiles(manifest='m.csv', path='file'))[0]",
)
remedy(
    MANIFEST + "of(folder + '/raw', format=RawFiles(manifest='m.csv', size='who'))",
    "Name the column of sizes with size=",
    MANIFEST + "of(folder + '/raw', format=RawFiles(manifest='m.csv', size='n'))[0] and "
    "of(folder + '/raw', format=RawFiles(manifest='m.csv'))[0]",
)
remedy(
    MANIFEST.replace("who", "content") + "of(folder + '/raw', format=RawFiles(manifest='m.csv'))",
    "Choose another name for the bytes of the files with content=",
    MANIFEST.replace("who", "content")
    + "of(folder + '/raw', format=RawFiles(manifest='m.csv', content='data'))[0]",
)
remedy(
    "put('f/a.jsonl', '{\"x\": 1}\\n') and table('f/a.parquet', x=[1]) and of(folder + '/f')",
    "Choose one with --format jsonl (format='jsonl') or --format parquet (format='parquet'): the "
    "others are left out and counted. Or take every file as it is with --format files "
    "(format='files'). Or choose files with a pattern, or --include '*.jsonl'",
    "cli('mds-convert {folder}/f {new} --format jsonl') and of(folder + '/f', format='jsonl')[0] "
    "and cli('mds-convert {folder}/f {new}2 --format parquet') "
    "and of(folder + '/f', format='parquet')[0] "
    "and cli('mds-convert {folder}/f {new}3 --format files') "
    "and of(folder + '/f', format='files')[1] and of(folder + '/f/*.parquet')[0] "
    "and cli('mds-convert {folder}/f {new}4 --include *.jsonl')",
)
LABELLED = (
    "png('f/a.png') and put('f/a.csv', 'file,class\\na.png,1\\n') "
    "and put('f/b.csv', 'file,class\\nx,1\\n') and "
)
remedy(
    LABELLED + "of(folder + '/f')",
    "A table of labels is joined to pictures with --labels FILE (labels='FILE')",
    "cli('mds-convert {folder}/f {new} --labels a.csv') "
    "and of(folder + '/f', format=ImageFiles(labels='a.csv'))[0]",
)
remedy(
    LABELLED + "of(folder + '/f', format=ImageFiles(labels='b.csv'))",
    "Name another table with labels=, or give a pattern of the pictures, such as '*.jpg'",
    "of(folder + '/f', format=ImageFiles(labels='a.csv'))[0] and of(folder + '/f/*.png')[0]",
)
remedy(
    LABELLED + "of(folder + '/f', format='metadata')",
    "Name the one with the files by labels=",
    "of(folder + '/f', format=MetadataFiles(labels='a.csv'))[0]",
)
INDEXED = "cli('mds index {lines} {folder}/index') and "
remedy(
    INDEXED + "os.remove(folder + '/index/index.files.bin') or of(folder + '/index')",
    "run mds index again",
    "cli('mds index {lines} {folder}/index --overwrite') and of(folder + '/index')[0]",
)

# ---------------------------------------------------------------- lengths of documents

TWO_SIZES = (
    "written({}, {{'x': 'ndarray:int32', 's': 'str'}}, "
    "{{'x': numpy.ones(2, 'i4'), 's': 'a'}}{}) and "
)
OF_NEW = "batches(dataset(local=new, packing=Packing(4, column='x')))"
remedy(
    TWO_SIZES.format("new", ", lengths='x'")
    + "(damage(new + '/index.lengths-x.bin', -1) or "
    + OF_NEW
    + ")",
    "Write it again, or remove it",
    "cli('mds lengths {new} --column x') and " + OF_NEW,
)
remedy(
    TWO_SIZES.format("new", "") + OF_NEW,
    "Record the lengths once: mds lengths",
    "cli('mds lengths {new} --column x') and " + OF_NEW,
)
remedy(
    "written(new, {'ids': 'ndarray:int32', 'mask': 'ndarray:int32'}, "
    "{'ids': numpy.ones(2, 'i4'), 'mask': numpy.ones(2, 'i4')}) "
    "and batches(dataset(local=new, packing=4))",
    "Write packing=Packing(4, column='ids'), or name another of these columns",
    "cli('mds lengths {new} --column ids') "
    "and batches(dataset(local=new, packing=Packing(4, column='ids')))",
)
remedy(
    "written(new, {'x': 'ndarray'}, {'x': numpy.ones(2, 'i4')}, lengths='x') "
    "and batches(dataset(local=new, packing=4))",
    "Write packing=Packing(4, column='x') if this column has the tokens",
    "batches(dataset(local=new, packing=Packing(4, column='x')))",
)
FOLLOWING = (
    "written({}, {{'x': 'ndarray:int32', 'w': 'ndarray:int8'}}, "
    "{{'x': numpy.ones(2, 'i4'), 'w': numpy.ones(3, 'i1')}}, lengths='x') and "
)
remedy(
    FOLLOWING.format("new") + "batches(dataset(local=new, packing=Packing(4, column='x')))",
    "Leave the column out with columns=",
    FOLLOWING.format("new + '2'")
    + "batches(dataset(local=new + '2', packing=Packing(4, column='x'), columns=['x']))",
)
MIXED = (
    "batches(StreamingDataset(streams=[Stream(local=tokens), Stream(local=new)], batch_size=2, "
    "packing=Packing(8, column='tokens'){}))"
)
remedy(
    "written(new, {'tokens': 'ndarray:int32', 'id': 'str'}, "
    "{'tokens': numpy.ones(2, 'i4'), 'id': 'a'}, lengths='tokens') and " + MIXED.format(""),
    "Leave the column out with columns=",
    MIXED.format(", columns=['tokens']"),
)
remedy(
    "written(new, {'tokens': 'ndarray:int32'}, {'tokens': numpy.ones(2, 'i4')}, "
    "lengths='tokens') and " + MIXED.format(""),
    "Choose common columns with columns=",
    MIXED.format(", columns=['tokens']"),
)

# ---------------------------------------------------------------- pictures and masks

MASKED = "batches(dataset().map(lambda sample: {{'image': picture, 'mask': {}}}), collate_fn=CROP)"
CROP = "images('image', masks=['mask'], size=8)"
remedy(
    MASKED.format("picture").replace("CROP", CROP),
    "Convert colours to ids in map()",
    MASKED.format("numpy.asarray(picture)[..., 0]").replace("CROP", CROP),
)
PAIR = (
    "written(new, {'image': 'png', 'mask': 'png'}, "
    "{'image': picture, 'mask': picture.quantize(8)}) and batches(dataset(local=new, images="
)
remedy(
    PAIR + "'array'), collate_fn=" + CROP + ")",
    "give the dataset images={'IMAGE': 'array'}",
    PAIR.replace("new", "new + '2'") + "{'image': 'array'}), collate_fn=" + CROP + ")",
)
ENCODED = "open(png('a.png'), 'rb').read()"
remedy(
    f"batches(dataset().map(lambda sample: {{'image': {ENCODED}}}), "
    "collate_fn=images('image', size=8))",
    "Write them into a column of the encoding jpeg or png, or decode them in map()",
    f"written(new, {{'image': 'png'}}, {{'image': {ENCODED}}}) and batches(dataset(local=new), "
    "collate_fn=images('image', size=8)) and batches(dataset().map(lambda sample: "
    "{'image': Image.open(png('a.png'))}), collate_fn=images('image', size=8))",
)
CHANNELS = (
    "batches(dataset().map(lambda sample: {{'image': {}}}), collate_fn=images('image', size=8))"
)
remedy(
    CHANNELS.format("numpy.ones((3, 9, 9), 'u1')"),
    "Move them in map(): np.moveaxis(value, 0, -1)",
    CHANNELS.format("numpy.moveaxis(numpy.ones((3, 9, 9), 'u1'), 0, -1)"),
)
remedy(
    "written(new, {'a': 'tensor'}, {'a': torch.ones(2).to(torch.float8_e4m3fn)})",
    "Write value.to(torch.bfloat16), or value.view(torch.uint8) for the bytes",
    "written(new, {'a': 'tensor'}, {'a': torch.ones(2).to(torch.float8_e4m3fn)"
    ".to(torch.bfloat16)}) and written(new + '2', {'a': 'tensor'}, "
    "{'a': torch.ones(2).to(torch.float8_e4m3fn).view(torch.uint8)})",
)
remedy(
    MASKED.format("numpy.ones((4, 4), 'u1')").replace("CROP", CROP),
    "resize one in map()",
    MASKED.format("numpy.ones((16, 16), 'u1')").replace("CROP", CROP),
)
remedy(
    "batches(dataset().map(lambda sample: {'image': [picture]}), "
    "collate_fn=images('image', size=8))",
    "Choose one in map(), or make a column for each there",
    "batches(dataset().map(lambda sample: {'image': picture}), collate_fn=images('image', size=8))",
)
COCO = "png('f/a.png') and put('f/a.json', '{\"images\": [], \"annotations\": []}') and "
remedy(
    COCO + "cli('mds-convert {folder}/f {new}')",
    "leave them out with --exclude",
    COCO + "cli('mds-convert {folder}/f {new} --exclude a.json')",
)
TWO_TABLES = (
    "png('f/a.png') and put('f/metadata.csv', 'file_name,text\\na.png,x\\n') and "
    'put(\'f/metadata.jsonl\', \'{"file_name": "a.png", "text": "x"}\\n\') and '
)
remedy(
    TWO_TABLES + "cli('mds-convert {folder}/f {new} --format metadata')",
    "Keep one of them with --exclude",
    TWO_TABLES + "cli('mds-convert {folder}/f {new} --format metadata --exclude metadata.jsonl')",
)
TWO_TYPES = (
    "written(new, {{'x': '{0}'}}, {{'x': 1}}) and written(new + '2', {{'x': '{1}'}}, {{'x': 1}})"
)
remedy(
    TWO_TYPES.format("int32", "float32") + " and batches(dataset(local=None, streams=["
    "Stream(local=new), Stream(local=new + '2')]))",
    "Write all shards with one encoding",
    TWO_TYPES.format("float32", "float32").replace("new", "new + '3'")
    + " and batches(dataset(local=None, streams=[Stream(local=new + '3'), "
    "Stream(local=new + '3' + '2')]))",
)
remedy(
    TWO_TYPES.format("int32", "int64") + " and merge_index([new + '/index.json', new + "
    "'2/index.json'], folder)",
    "Write all datasets with one encoding",
    TWO_TYPES.format("int64", "int64").replace("new", "new + '3'")
    + " and (merge_index([new + '3/index.json', new + '32/index.json'], folder) or True)",
)
FROM_MEMORY = "Image.open(io.BytesIO(__import__('pathlib').Path(png('a.jpg')).read_bytes()))"
remedy(
    f"[picture := {FROM_MEMORY}, picture.load()] and written(new, {{'x': 'jpeg'}}, "
    "{'x': picture})",
    "Write the bytes of the file, or the image before anything decodes it",
    "written(new + '2', {'x': 'jpeg'}, {'x': __import__('pathlib').Path(png('a.jpg'))"
    ".read_bytes()}) and "
    f"written(new + '3', {{'x': 'jpeg'}}, {{'x': {FROM_MEMORY}}})",
)
for number, text in enumerate(("'{\"x\": 1}'", "b'{\"x\": 1}'")):
    remedy(
        f"written(new, {{'x': 'int'}}, {text})",
        "Write json.loads(sample)",
        f"written(new + '{number}', {{'x': 'int'}}, json.loads({text}))",
    )
for encoding, value, way_out, converted in (
    ("str_int", "'3'", "Write int(value)", "int('3')"),
    ("str_float", "b'3'", "Write float(value.decode())", "float(b'3'.decode())"),
    ("int32", "'3'", "Write int(value), or use the encoding 'str'", "int('3')"),
    ("float32", "None", "For a column that may be empty, write 'optional[float32]'", None),
    ("uint8", "1.5", "Write round(value), or use the encoding 'float64'", "round(1.5)"),
):
    column = encoding if converted else "optional[float32]"
    remedy(
        f"written(new, {{'x': '{encoding}'}}, {{'x': {value}}})",
        way_out,
        f"written(new + '2', {{'x': '{column}'}}, {{'x': {converted or value}}})",
    )
PICKLED = "__import__('mds.compat._encodings').compat._encodings.mds_decode('pkl', {0})"
remedy(
    PICKLED.format("mds.encodings.parse_encoding('pkl').encode({1})"),
    "Write mds.encodings.parse_encoding('pkl').decode(data) if you trust it",
    "mds.encodings.parse_encoding('pkl').decode(mds.encodings.parse_encoding('pkl').encode({1}))",
)
READER = (
    "[reader := __import__('mds.compat._readers').compat._readers.reader_from_json(pickles, '', "
    "json.loads(__import__('pathlib').Path(pickles, 'index.json').read_bytes())['shards'][0])]"
)
remedy(
    READER + " and reader[0]",
    "Call validate(True) of this reader first if you trust them",
    READER + " and [reader.validate(True)] and reader[0]",
)
MASKS = "png('f/images/a.png') and png('f/masks/a.png') and "
remedy(
    MASKS + "cli('mds-convert {folder}/f {new}')",
    "give --format images",
    MASKS + "cli('mds-convert {folder}/f {new} --format images')",
)

# ---------------------------------------------------------------- stores and launchers

remedy(
    "open_store('azure://')",
    "container/prefix and set AZURE_ACCOUNT_NAME",
    "environment(AZURE_ACCOUNT_NAME='a') or open_store('azure://container/prefix')",
)
remedy(
    "[*open_store('azure://container').list()]",
    "set AZURE_ACCOUNT_NAME, or give the storage option account_name, or write "
    "azure://account.blob.core.windows.net/container",
    "open_store('azure://account.blob.core.windows.net/container') and "
    "open_store('azure://container/prefix', options={'account_name': 'a'}) and "
    "(environment(AZURE_ACCOUNT_NAME='a') or open_store('azure://container/prefix'))",
)
remedy(
    "open_store('alipan://a/b')",
    "register your own store: mds.storage.register_store('alipan', factory)",
    "mds.storage.register_store('alipan', lambda *given: open_store(folder)) "
    "and open_store('alipan://a/b')",
)
remedy(
    "mds.storage.register_store('s3', lambda *given: open_store(folder))",
    "Use another name, or pass replace=True",
    "mds.storage.register_store('s3', lambda *given: open_store(folder), replace=True) "
    "and open_store('s3://a/b')",
)
remedy(
    "mds.formats.register_format('mine', Tar)",
    "Write name = 'mine' in the class, or register_format('tar', ...)",
    "mds.formats.register_format('mine', type('Mine', (Tar,), {'name': 'mine'}))",
)
remedy(
    "mds.plan.register_packer(numpy.arange)",
    "Write register_packer('my_name', arange), or @register_packer('my_name') above its definition",
    "mds.plan.register_packer('my_name', numpy.arange)",
)
remedy(
    "environment(SLURM_PROCID='0', SLURM_NTASKS='2') or dataset()",
    "pass SLURM_STEP_ID to containers",
    "environment(SLURM_PROCID='0', SLURM_NTASKS='2', SLURM_STEP_ID='0', SLURM_LOCALID='0', "
    "SLURM_NTASKS_PER_NODE='2') or dataset().num_samples",
)
remedy(
    "environment(RANK='0', WORLD_SIZE='3', LOCAL_WORLD_SIZE='2') or dataset()",
    "Describe the ranks with topology=",
    "environment(RANK='0', WORLD_SIZE='3', LOCAL_WORLD_SIZE='2') or dataset(topology=(0, 3))[0]",
)
remedy(
    "served(lambda url: of(url + '/d'), Login)",
    "Check the URL, and give credentials (storage_options=)",
    "served(lambda url: of("
    "url + '/d', storage_options={'headers': {'Authorization': 'x'}})[0], Login)",
)

remedy(
    "dataset(remote=many, local=folder + '/far', validate_hash='sha1')",
    "leave validate_hash out",
    "dataset(remote=many, local=folder + '/far')[0]",
)
remedy(
    "of(folder + '/f/{1..99999999}.jsonl')",
    "the maximum is 1,000,000",
    "put('f/1.jsonl', '{\"x\": 1}\\n') and of(folder + '/f/{1..1}.jsonl')[0]",
)
remedy(
    "LocalDataset(archive)",
    "Unpack it and convert its folder with mds-convert",
    "cli('mds-convert {folder}/parts/train {new}') and dataset(local=new)[0]",
)
remedy(
    "merge_index([many + '/index.json', many + '/index.json'], folder + '/merged')",
    "Give each index once, and merge into the folder above all datasets",
    "merge_index([many + '/index.json', tokens + '/index.json'], folder) or True",
)

# ---------------------------------------------------------------- what was interrupted

LONG = "put('long.jsonl', (json.dumps({'id': 1, 'text': 'x' * 300}) + '\\n') * 5000 + '{broken')"
CONVERTED = "mds-convert {folder}/long.jsonl {new} --size-limit 200kb --num-workers 1"
BROKEN = f"{LONG} and (attempt('{CONVERTED}') or True) and "
remedy(
    BROKEN + "cli('mds clean {new}')",
    "Continue with mds-convert --resume, or start again with --overwrite",
    f"cli('{CONVERTED} --resume --on-error skip')"
    f" and cli('{CONVERTED} --overwrite --on-error skip')",
)
remedy(
    "put('work/plan.json', '[]') and cli('mds-convert {lines} {new} --work {folder}/work')",
    "Choose another work folder with --work",
    "cli('mds-convert {lines} {new} --work {folder}/empty')",
)
remedy(
    BROKEN + f"cli('{CONVERTED} --resume --compression zstd --on-error skip')",
    "Resume it with the same options, or start again with --overwrite",
    BROKEN + f"cli('{CONVERTED} --overwrite --compression zstd --on-error skip')",
)
REWRITTEN = (
    "once(MDSWriter(out=({}, many), columns={{'id': 'int'}}, exist_ok=True), "
    "lambda writer: writer.write({{'id': 1}}) or writer.finish() or True)"
)
remedy(
    "os.remove(many + '/index.json') or " + REWRITTEN.format("new"),
    "Delete them with: mds clean",
    "cli('mds clean {many} --remove') and " + REWRITTEN.format("new + '2'"),
)

# ---------------------------------------------------------------- sources

SPLITS = "hub_splits(folder + '/hf') and "
remedy(
    SPLITS + "cli('mds-convert {folder}/hf {new}')",
    "Choose one split with --source-split",
    SPLITS + "cli('mds-convert {folder}/hf {new} --source-split train')",
)
remedy(
    "png('f/a.png') and cli('mds-convert {folder}/f {new} --format paired')",
    "Read the pictures with format='images', the sounds with format='audio', or every file as it "
    "is with format='files' (--format)",
    "of(folder + '/f', format='images')[0] and put('s/a.wav', 'x') "
    "and len(of(folder + '/s', format='audio')) and of(folder + '/f', format='files')[0] "
    "and cli('mds-convert {folder}/f {new} --format images')",
)
remedy(
    "register_input('csv', MdsInput)",
    "choose another name, or replace it with replace=True",
    "register_input('readings', MdsInput) or register_input('csv', MdsInput, replace=True) or True",
)
TOKENIZED = (
    "tokenizer('t.json') and cli('mds-convert {two} {new} --text-column b "
    "--tokenizer {folder}/t.json --block 2"
)
remedy(
    TOKENIZED + "')",
    "Name one with --end-token, or give --end-token '' for none",
    TOKENIZED + " --end-token x') and " + TOKENIZED.replace("{new}", "{new}2")
    + " --end-token \"\"')",
)  # fmt: skip
remedy(
    "served(lambda url: merge_index(url + '/d'))",
    "Give the indexes: merge_index([...], out)",
    "merge_index([many + '/index.json'], folder + '/merged') or True",
)
remedy(
    "cli('mds info {d}/index.json')",
    "Give the folder of a dataset, or make one with mds-convert",
    "cli('mds info {d}') and cli('mds-convert {lines} {new}') and cli('mds info {new}')",
)


class Half(mds.StreamingDataset):
    """Every second sample of the dataset, by an iteration of its own."""

    def __iter__(self):
        yield from itertools.islice(super().__iter__(), 0, None, 2)


class Keeps(Half):
    """Every second sample, and a state that says so."""

    def state_dict(self, *given, **named):
        return super().state_dict(*given, **named)


class Wrapper(IterableDataset):
    """The samples of a dataset, one after another."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        yield from self.dataset


class IterableDatasetShard(Wrapper):
    """A class as those of accelerate and transformers, which give every second sample to a rank."""

    def __iter__(self):
        yield from itertools.islice(self.dataset, 0, None, 2)


class Login(FolderHandler):
    """Answers with a web page where a request has no credentials."""

    def do_GET(self):
        if "Authorization" in self.headers:
            super().do_GET()
        else:
            self.end(200, b"<html>Log in</html>", Content_Type="text/html")


def rename_mask(samples):
    """Collate samples that have a column 'mask' of their own."""
    return {"own_mask": torch.tensor([sample["mask"] for sample in samples])}


def once(value, use):
    """Return what a function makes of a value."""
    return use(value)


def pairs(random):
    """Register a packer of two documents each, and return its name.

    ``random`` is a generator of random numbers, or a function that makes one for each call.
    """

    def pack(sizes, room):
        del room
        draw = random() if callable(random) else random
        return draw.permutation(len(sizes)) // 2, -(-len(sizes) // 2)

    mds.plan.register_packer("pairs", pack, replace=True)
    return "pairs"


def loaded(dataset, state):
    """Return the batches behind a state."""
    loader = mds.StreamingDataLoader(dataset, batch_size=2)
    loader.load_state_dict(state)
    return list(loader) or True


def begun(dataset, **given):
    """Return a loader that has given three batches."""
    loader = mds.StreamingDataLoader(dataset, **{"batch_size": 2, **given})
    loader._iterator = iter(loader)
    for _ in range(3):
        next(loader._iterator)
    return loader


def without(state, key):
    """Return a state without one of its keys."""
    return {name: value for name, value in state.items() if name != key}


def in_child(use):
    """Return what a function returns in a forked child. Raises its error."""
    ours, theirs = multiprocessing.Pipe()

    def work():
        try:
            theirs.send((repr(use()), None))
        except Exception as error:  # noqa: BLE001 - it is raised in the parent
            theirs.send((None, str(error)))

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    value, error = ours.recv()
    child.join()
    if error is not None:
        raise RuntimeError(error)
    return value


def draw(sample, rng):
    """Return a sample with a random number."""
    return {**sample, "draw": rng.random()}


# ------------------------------------------------------------------ stores

remedy(
    "served(lambda url: open_store('https' + url[4:], retry=RetryPolicy(1)).get('d/index.json'))",
    "write http:// instead of https:// in the URL",
    "served(lambda url: open_store(url, retry=RetryPolicy(1)).get('d/index.json'))",
)
remedy(
    "tls_served(lambda url, file: "
    "open_store('http' + url[5:], retry=RetryPolicy(1)).get('d/index.json'))",
    "write https:// instead of http:// in the URL",
    "tls_served(lambda url, file: open_store(url, options=dict(verify=file)).get('d/index.json'))",
)
remedy(
    "tls_served(lambda url, file: of(url + '/d'))",
    "give the storage option verify=, a file with the certificates to trust",
    "tls_served(lambda url, file: of(url + '/d', storage_options=dict(verify=file)).num_samples)",
)
remedy(
    "s3_served(lambda url, place: of(place, "
    "storage_options=dict(endpoint_url='https' + url[4:]), download_retry=1))",
    "write http:// instead of https:// in the storage option endpoint_url= (S3_ENDPOINT_URL)",
    "s3_served(lambda url, place: of(place, storage_options=dict(endpoint_url=url, "
    "aws_access_key_id='access', aws_secret_access_key='secret')).num_samples)",
)
remedy(
    "s3_served(lambda url, place: environment(S3_ENDPOINT_URL=url, "
    "AWS_ACCESS_KEY_ID='access', AWS_SECRET_ACCESS_KEY='wrong-secret') or of(place))",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "s3_served(lambda url, place: environment(S3_ENDPOINT_URL=url, "
    "AWS_ACCESS_KEY_ID='access', AWS_SECRET_ACCESS_KEY='secret') or of(place).num_samples)",
)
remedy(
    "open_store('s3://bucket', options=dict(endpoint_url='127.0.0.1:9000'))",
    "Write https://127.0.0.1:9000, or http://127.0.0.1:9000",
    "open_store('s3://bucket', options=dict(endpoint_url='http://127.0.0.1:9000'))",
)
remedy(
    "served(lambda url: of(url + '/d', split='train'))",
    "give this as remote=",
    "served(lambda url: StreamingDataset(remote=url + '/d', batch_size=2).num_samples)",
)
remedy(
    "served(lambda url: of(url + '/d/index.json'))",
    "Give the folder of the dataset",
    "served(lambda url: of(url + '/d').num_samples)",
)
remedy(
    "(write_at('memory://splits', 'train'), of('memory://splits'))",
    "give split='train'",
    "of('memory://splits', split='train').num_samples == 1",
)
remedy(
    "(write_at('memory://parts', '0', '1'), of('memory://parts'))",
    "mds.merge_index('memory://parts')",
    "(merge_index('memory://parts'), of('memory://parts'))[1].num_samples == 2",
)


def write_datasets(folder):
    """Write the datasets and files that the programs name."""
    paths = {
        name: str(folder / name)
        for name in (
            "d",
            "tokens",
            "pickles",
            "values",
            "other_values",
            "many",
            "new",
            "text_file",
            "lines",
            "two",
            "bad",
            "named",
        )
    }
    paths["odd"] = str(folder / "odd")
    paths["archive"] = str(folder / "photos.zip")
    paths["parts"] = str(folder / "parts")
    for name in ("lines", "two", "bad", "named"):
        paths[name] += ".jsonl"

    def write(name, columns, samples, **given):
        with mds.MDSWriter(out=paths[name], columns=columns, **given) as writer:
            for sample in samples:
                writer.write(sample)

    write("d", {"id": "int", "name": "str"}, [{"id": n, "name": "x"} for n in range(20)])
    write(
        "tokens",
        {"id": "int", "tokens": "ndarray:int32"},
        [{"id": n, "tokens": np.arange(1 + n % 5, dtype=np.int32)} for n in range(20)],
    )
    write("pickles", {"a": "pkl"}, [{"a": {1}}])
    for name, value in (("values", 1), ("other_values", 2)):
        write(name, {"id": "int"}, [{"id": value}] * 20, hashes=["xxh3_64"])
    write("many", {"id": "int"}, [{"id": n} for n in range(2000)], size_limit=2000)
    (folder / "lines.jsonl").write_text('{"id": 1}\n{"id": null}\n{"id": 2}\n')
    (folder / "two.jsonl").write_text('{"a": "x y", "b": "y z"}\n' * 9)
    (folder / "bad.jsonl").write_text('{"id": 1}\n' * 30 + "{broken\n")
    (folder / "named.jsonl").write_text('{"name": 1}\n{"name": null}\n')
    (folder / "text_file").write_text("text")
    (folder / "odd").mkdir()
    for ending in ("odd", "jsonl"):
        (folder / "odd" / f"a.{ending}").write_text('{"id": 1}\n')
    (folder / "photos.zip").write_bytes(b"PK")
    (folder / "empty").mkdir()
    for part in ("train", "val"):
        (folder / "parts" / part).mkdir(parents=True)
        (folder / "parts" / part / "a.jsonl").write_text('{"id": 1}\n' * 5)
    return paths


def run_command(line, names):
    """Run a command line, and return (whether it succeeded, its output)."""
    command, *arguments = shlex.split(line.format(**names))
    called = convert if command == "mds-convert" else main
    result = CliRunner().invoke(called, arguments, input='{"id": 1}\n')
    return result.exit_code == 0, result.output


def makers_of_files(folder):
    """Return the functions by which programs write files below a folder."""

    def put(name, data):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(data)
        return str(path)

    def table(name, **columns):
        parquet = importlib.import_module("pyarrow.parquet")
        (folder / name).parent.mkdir(exist_ok=True)
        parquet.write_table(importlib.import_module("pyarrow").table(columns), folder / name)
        return str(folder / name)

    def tar(name, files):
        with tarfile.open(folder / name, "w:gz" if name.endswith(".gz") else "w") as archive:
            for member, data in files.items():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return str(folder / name)

    def png(name):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), "red").save(folder / name)
        return str(folder / name)

    def tokenizer(name):
        tokenizers = importlib.import_module("tokenizers")
        words = tokenizers.models.WordLevel({"x": 0, "y": 1, "z": 2, "?": 3}, unk_token="?")
        made = tokenizers.Tokenizer(words)
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.save(str(folder / name))
        return True

    def hub_splits(place):
        datasets = importlib.import_module("datasets")
        splits = {"train": {"a": [1]}, "test": {"b": [1]}}
        made = {name: datasets.Dataset.from_dict(rows) for name, rows in splits.items()}
        datasets.DatasetDict(made).save_to_disk(place)
        return True

    def damage(path, at):
        data = bytearray(pathlib.Path(path).read_bytes())
        data[at] ^= 1
        pathlib.Path(path).write_bytes(data)

    def served(use, handler=None):
        with http_server(str(folder), handler=handler) as url:
            return use(url)

    def tls_served(use):
        with https_server(str(folder), folder, FolderHandler) as (url, certificate):
            return use(url, certificate)

    def s3_served(use):
        with servers.s3_server(str(folder.parent), auth="access,secret") as url:
            return use(url, f"s3://{folder.name}/d")

    def write_at(place, *names):
        for name in names:
            with mds.MDSWriter(f"{place}/{name}", {"id": "int"}) as writer:
                writer.write({"id": 1})

    made = (put, table, tar, png, tokenizer, hub_splits, damage, served)
    made += (tls_served, s3_served, write_at)
    return {each.__name__: each for each in made}


def make_names(folder, monkeypatch):
    """Return what the programs name: the library, and files and functions of a folder."""
    monkeypatch.setattr("mds.storage._registry._stores.entries", {})
    monkeypatch.setattr("mds.formats._registry._registry.entries", {})
    monkeypatch.setattr(
        "mds.writers.convert._inputs.registry._inputs.entries", dict(_inputs.entries)
    )
    monkeypatch.setattr("mds.plan._packers._packers.entries", {})
    paths = write_datasets(folder)
    numbers = itertools.count()

    def dataset(**given):
        return mds.StreamingDataset(**{"local": paths["d"], "batch_size": 2, **given})

    def of(place, **given):
        local = str(folder / f"cache{next(numbers)}")
        return mds.StreamingDataset(**{"remote": place, "local": local, "batch_size": 1, **given})

    def batches(dataset, **given):
        return list(mds.StreamingDataLoader(dataset, **{"batch_size": 2, **given}))

    def written(out, columns, sample, **given):
        with mds.MDSWriter(out=out, columns=columns, **given) as writer:
            writer.write(sample)
        return len(mds.StreamingDataset(local=out, batch_size=1)) == 1

    def environment(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    def cli(line):
        succeeded, said = attempt(line)
        if not succeeded:
            raise RuntimeError(said)
        print(said)
        return True

    def attempt(line):
        return run_command(line, names)

    names = {
        **vars(mds),
        **vars(mds.transforms),
        **{name: getattr(mds, name) for name in mds.__all__},
        **{name: getattr(mds.transforms, name) for name in mds.transforms.__all__},
        **paths,
        **makers_of_files(folder),
        "folder": str(folder),
        "state": str(folder / "state.json"),
        "loader": mds.StreamingDataLoader(dataset(), batch_size=2),
        "picture": Image.effect_noise((16, 16), 90).convert("RGB"),
        "Image": Image,
        "numpy": np,
        "torch": torch,
        "io": io,
        "json": json,
        "os": os,
        "mds": mds,
        "MdsInput": MdsInput,
        **{name: getattr(importlib.import_module(home), name) for name, home in PUBLIC.items()},
        **{each.__name__: each for each in (dataset, of, batches, written, environment)},
        **{each.__name__: each for each in (cli, attempt, draw, Half, Keeps, Wrapper, Login)},
        **{each.__name__: each for each in (IterableDatasetShard, ChainDataset, DataLoader)},
        "pairs": pairs,
        **{each.__name__: each for each in (rename_mask, once, loaded, begun, without, in_child)},
    }
    return names
