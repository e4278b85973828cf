"""Words of other libraries are answered with what to write here."""

import copy
import inspect
import pickle
import re

import pytest

import mds
from mds import (
    LocalDataset,
    MDSWriter,
    Packing,
    RunHistory,
    Samples,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from mds._dataset.order_edits import OrderEdits
from mds._foreign_words import ARGUMENTS as WORDS
from mds._foreign_words import ATTRIBUTES as ATTRIBUTE_WORDS
from mds._foreign_words import NAMES_OF_THE_PACKAGE
from mds.errors import ArgumentError

CLASSES = {
    "OrderEdits": OrderEdits,
    "Samples": Samples,
    "Stream": Stream,
    "StreamingDataLoader": StreamingDataLoader,
    "Writer": MDSWriter,
    "Packing": Packing,
    "RunHistory": RunHistory,
    "Schedule": Schedule,
    "LocalDataset": LocalDataset,
    "": mds,
}


@pytest.fixture
def folder(tmp_path):
    """A dataset of ten samples."""
    with MDSWriter(tmp_path / "data", {"id": "int"}) as writer:
        for number in range(10):
            writer.write({"id": number})
    return str(tmp_path / "data")


def words_of(table):
    """All words of a table, whose advice has the form of a sentence."""
    for advice in table.values():
        assert advice.format(owner="Own", name="word", value="1").endswith(".")
    return [word for words in table for word in words.split()]


@pytest.mark.parametrize("kind", WORDS)
def test_a_word_is_no_argument_of_ours(kind):
    """It would never get its advice. Each is in a table once."""
    words = words_of(WORDS[kind])
    assert len({*words}) == len(words)
    owner, _, method = kind.partition(".")
    function = getattr(CLASSES[owner], method) if method else CLASSES[owner]
    assert not {*words} & inspect.signature(function).parameters.keys() - {"place"}


@pytest.mark.parametrize("kind", [*ATTRIBUTE_WORDS, ""])
def test_a_word_is_no_attribute_of_ours(kind):
    """It would never get its advice. Each is in a table once."""
    words = words_of({**ATTRIBUTE_WORDS, "": NAMES_OF_THE_PACKAGE}[kind])
    assert len({*words}) == len(words)
    assert not {*words} & {*dir(CLASSES[kind])}


ARGUMENTS = [
    ("Own(d, cache_dir='c')", "Write local='c'"),
    ("Own(d, max_cache_size='1GB')", "Write cache_limit='1GB'."),
    ("Own(input_dir='x')", "without a name: Own('x')."),
    ("Own(url='s3://b/x')", "without a name: Own('s3://b/x')."),
    ("Own(d, seed=7)", "Write shuffle_seed=7."),
    ("Own(d, shuffle_buffer=100)", "Write shuffle=True"),
    ("Own(d, transform=len)", "Write Own(...).map(len)."),
    ("Own(d, collate_fn=len)", "StreamingDataLoader(dataset, collate_fn=len)"),
    ("Own(d, drop_last=True)", "StreamingDataLoader(dataset, drop_last=True)"),
    ("Own(d, limit=10)", "Write Own(...).limit(10)."),
    ("Own(d, subsample=0.1)", "Own(...).split([0.1, 1 - 0.1])[0] for"),
    ("Own(d, weights=[1])", "Stream(..., proportion=...)"),
    ("Own(d, rank=0)", "topology=(rank, world_size)"),
    ("Own(d, client=object())", "storage_options={'endpoint_url': ..."),
    ("Own(d, endpoint_url='http://x')", "storage_options={'endpoint_url': 'http://x'}."),
    ("Own(d, aws_secret_access_key='hunter22')", "{'aws_secret_access_key': ...}."),
    ("Own(d, region='eu')", "storage_options={'region_name': 'eu'}."),
    ("Own(d, ignore_errors=True)", "Write on_error='skip'."),
    ("Own(d, max_seq_length=8)", "Write packing=8, the number of tokens of a pack."),
    ("Own(d, file_format='csv')", "Write format='csv'."),
    ("Own(d).map(len, batched=True)", "Own.map(batched=True)"),
    ("Own(d).map(len, batched=True)", "dataset.map_batches(function)"),
    ("Own(d).map(len, num_proc=4)", "StreamingDataLoader(dataset, num_workers=4)"),
    ("Own(d).filter(len, input_columns=['text'])", "the whole sample"),
    (
        "Own(d).map(lambda s: s).map_batches(len, batch_size=4)",
        "the function takes a batch of the loader",
    ),
    ("Own(d).map(fn=len)", "Give the function first: Own.map(len)."),
    ("Own(d).map(len, 4)", "See help(Own.map)."),
    ("Own(d).map()", "Own.map() needs function="),
    ("Stream(d, weight=0.5)", "Write proportion=0.5."),
    ("Stream(d, shuffle=True)", "StreamingDataset(streams=[...], shuffle=True)"),
    ("Stream(d, name='web')", "StreamingDataset({'web': Stream(...)})"),
    ("Stream(d, key='hunter22')", "storage_options={'aws_access_key_id': ...}."),
    ("StreamingDataLoader(Own(d), num_proc=2)", "Write num_workers=2."),
    ("StreamingDataLoader(Own(d), seed=1)", "shuffle_seed=1"),
    ("StreamingDataLoader(Own(d), cache_limit=1)", "StreamingDataset(..., cache_limit=1)"),
    ("Own(d, repeat=False)", "remainder='short' no sample repeats"),
    ("Own(d, epoch=3)", "Write dataset.next_epoch = 3"),
    ("Own(d).select('id', 'label')", "StreamingDataset(..., columns=['id', 'label'])"),
    ("Own(d).select(ids=[1])", "It takes choice, key, where."),
    ("Own(d).split(0.8, 0.1, 0.1)", "Give the parts in a list: split([0.8, 0.1, 0.1])"),
    ("Own(d).limit(n=5)", "It takes samples."),
    ("MDSWriter(path='x', columns={})", "Write out='x'."),
    ("MDSWriter('x')", "needs columns=, but got out="),
    ("MDSWriter('x')", "MDSWriter(out, {'text': 'str', 'label': 'int'}), or mds.convert("),
    ("MDSWriter('s3://b/x', {'a': 'int'}, endpoint_url='u')", "{'endpoint_url': 'u'}."),
    ("MDSWriter('s3://b/x', {'a': 'int'}, aws_secret_access_key='hunter22')", "_key': ...}."),
    ("MDSWriter('s3://b/x', {'a': 'int'}, client=object())", "storage_options={'endpoint_url'"),
    ("StreamingDataLoader(Own(d), collate_fn='pad')", "Write collate_fn=mds.transforms.pad('tok"),
    ("Own(d).shuffle(100, seed=7)", "shuffle is a setting with the value False, not a method."),
    ("Own(d).shuffle(seed=7)", "Write StreamingDataset(..., shuffle=True, shuffle_seed=7)"),
    ("JSONWriter(out='x', columns={'a': 'int'}, chunk_bytes=1)", "Write size_limit=1."),
    ("MDSWriter('x', {'a': 'int'}, overwrite=True)", "Write exist_ok=True"),
    ("Packing(max_length=8)", "first: Packing(8), as"),
    ("Packing(8, block_size=8)", "Give the number of tokens first: Packing(8), as"),
    ("Packing(8, lengths='ids')", "Write column='ids'"),
    ("Packing(8, pack_as='dense')", "Write layout='dense'."),
    ("Packing(8, pad_id=0)", "With layout='dense', each pack is a row"),
    ("StreamingDataLoader([1], pack_as='varlen')", "Write Packing(..., layout='varlen')"),
    ("Packing(8, eos_id=1)", "Write separator=1."),
    ("Schedule({0: {'a': 1}}, interpolation='linear')", "Write between='linear'."),
    ("Own(d, profile=True)", "Write print(loader.report())"),
    ("Own('s3://b/x', profile='dev')", "storage_options={'profile_name': 'dev'}."),
    ("Own(d, cache_dir='c', max_cache_size=5)", "Write local='c'"),
    (
        "Own(d, cache_dir='c', max_cache_size=5)",
        "There is no argument 'max_cache_size', either. Write cache_limit=5.",
    ),
    ("Own(d, history='h')", "mds.RunHistory(loader.state_dict())"),
    ("StreamingDataLoader(Own(d), num_epochs=2)", "each loop over the loader is the next epoch"),
    ("convert([{'a': 1}], 'x', len)", "write mds.convert(map(function, samples), out)"),
    ("convert([{'a': 1}], 'x', splits={'a': 1})", "Write split={'a': 1}."),
    ("LocalDataset(d, shufle=True)", "there is no argument 'shufle'"),
]


class Own(StreamingDataset):
    """A class of a user, whose name errors have."""


@pytest.mark.parametrize(("call", "way_out"), ARGUMENTS)
def test_unknown_arguments(folder, call, way_out):
    """The error has the argument, and what to write in its place."""
    with pytest.raises(ArgumentError) as caught:
        eval(call, {**{name: getattr(mds, name) for name in mds.__all__}, "Own": Own, "d": folder})
    assert way_out in str(caught.value)
    assert "hunter22" not in str(caught.value)


def test_a_slip_of_the_pen_is_still_found(folder):
    """Words that no table has are compared by their spelling."""
    with pytest.raises(ArgumentError, match=r"Did you mean shuffle=\?"):
        StreamingDataset(folder, shufle=True)


ATTRIBUTES = [
    ("take", "dataset.limit(n)"),
    ("head", "dataset[:n]"),
    ("batch", "StreamingDataLoader(dataset, batch_size=...)"),
    ("to_tuple", "dataset.map(lambda sample:"),
    ("remove_columns", "Own(..., columns="),
    ("train_test_split", "train, test = dataset.split([0.9, 0.1])"),
    ("set_epoch", "next_epoch"),
    ("column_names", "dataset.columns, the list"),
    ("features", "dataset.schema, a dict"),
    ("collect", "list(dataset)"),
]


@pytest.mark.parametrize(("name", "way_out"), ATTRIBUTES)
def test_unknown_attributes_of_a_dataset(folder, name, way_out):
    """Also of one with a function; `hasattr` and a default say that there is none."""
    for dataset in (Own(folder), Own(folder).map(len), Own(folder).filter(len)):
        with pytest.raises(AttributeError) as caught:
            getattr(dataset, name)
        assert way_out in str(caught.value)
        assert not hasattr(dataset, name)
        assert getattr(dataset, name, 7) == 7


def test_unknown_attributes_of_others(folder):
    """A LocalDataset and a loader answer, too."""
    with pytest.raises(AttributeError, match=r"Write dataset\.limit\(n\), or dataset\[:n\]"):
        LocalDataset(folder).take(5)
    loader = StreamingDataLoader(StreamingDataset(folder, batch_size=2))
    with pytest.raises(AttributeError, match=r"loader\.dataset\.stats\(\)"):
        loader.stats()
    assert not hasattr(loader, "stats")


def test_unknown_attributes_of_a_writer(tmp_path):
    """Methods of other writers."""
    with MDSWriter(tmp_path / "out", {"id": "int"}) as writer:
        writer.write({"id": 1})
        for name, way_out in {"close": r"finish\(\)", "append": r"write\(sample\)"}.items():
            with pytest.raises(AttributeError, match=f"Write writer.{way_out}"):
                getattr(writer, name)
        with pytest.raises(AttributeError, match=r"has no attribute 'column_names'$"):
            writer.column_names  # noqa: B018 - raises


def test_shuffle_is_a_bool_that_cannot_be_called(folder):
    """It is read, compared, printed, pickled and assigned as a bool."""
    for value in (True, False):
        dataset = StreamingDataset(folder, shuffle=value)
        assert dataset.shuffle == value
        assert bool(dataset.shuffle) is value
        assert repr(dataset.shuffle) == str(dataset.shuffle) == f"{dataset.shuffle}" == repr(value)
        assert pickle.loads(pickle.dumps(dataset.shuffle)) is value
        other = StreamingDataset(folder, shuffle=dataset.shuffle)
        other.shuffle = dataset.shuffle
        assert other.shuffle == value
        with pytest.raises(TypeError, match=f"a setting with the value {value}, not a method"):
            dataset.shuffle()


@pytest.mark.parametrize(
    ("owner", "name", "setting"),
    [
        ("StreamingDataset(d)", "seed", "shuffle_seed"),
        ("StreamingDataset(d)", "max_cache_size", "cache_limit"),
        ("StreamingDataset(d)", "epoch", "next_epoch"),
        ("StreamingDataset(d)", "exact", "remainder"),
        ("StreamingDataLoader(StreamingDataset(d), batch_size=2)", "workers", "num_workers"),
        ("Stream(d)", "weight", "proportion"),
    ],
)
def test_assignments_of_words_that_mean_a_setting(folder, owner, name, setting):
    """The table of arguments has them."""
    with pytest.raises(AttributeError, match=rf"no setting {name!r}. Did you mean {setting}\?"):
        setattr(eval(owner, {**vars(mds), "d": folder, "Stream": Stream}), name, 1)


@pytest.mark.parametrize("kind", [StreamingDataset, LocalDataset])
def test_other_attributes_are_python_s_errors(folder, kind):
    """With the object, so that Python can suggest a name; copies and pickles work."""
    dataset = kind(folder)
    with pytest.raises(AttributeError, match=r"has no attribute 'num_sample'$") as caught:
        dataset.num_sample  # noqa: B018 - raises
    assert (caught.value.name, caught.value.obj) == ("num_sample", dataset)
    for other in (copy.copy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert other.num_samples == 10
        assert other[3]["id"] == 3


PACKAGE = [
    ("load_dataset", "mds.StreamingDataset('data/train')"),
    ("interleave_datasets", "mds.Stream('a', proportion=0.7)"),
    ("random_split", "dataset.split("),
    ("col", "dataset.filter(lambda sample: sample['id'] < 10)"),
    ("from_dict", "mds.convert(({"),
    ("base", "with 'import mds.compat.streaming'"),
    ("pad", "Write from mds.transforms import pad."),
    ("JsonLines", "Write from mds.formats import JsonLines."),
    ("ConfigError", "Write from mds.errors import ConfigError."),
]


@pytest.mark.parametrize(("name", "way_out"), PACKAGE)
def test_names_of_the_package(name, way_out):
    """As an attribute and by an import; `hasattr` is False."""
    with pytest.raises(AttributeError) as as_attribute:
        getattr(mds, name)
    with pytest.raises(ImportError) as by_import:
        exec(f"from mds import StreamingDataset, {name}", {})
    assert way_out in str(as_attribute.value)
    assert str(by_import.value).startswith(f"cannot import name {name!r} from 'mds'")
    assert way_out in str(by_import.value)
    assert not hasattr(mds, name)


@pytest.mark.parametrize(
    ("module", "name", "way_out"),
    [
        ("transforms", "Compose", "dataset.map(first).map(second)"),
        ("storage", "list", "open_store("),
    ],
)
def test_names_of_packages(module, name, way_out):
    """Packages in `mds` answer words, too."""
    with pytest.raises(AttributeError, match=re.escape(way_out)):
        getattr(getattr(mds, module), name)


def test_other_names_of_the_package_are_python_s_errors():
    """Nothing is added to them."""
    with pytest.raises(ImportError, match=r"cannot import name 'Streamer' from 'mds' \("):
        exec("from mds import Streamer", {})
    with pytest.raises(AttributeError, match=r"module 'mds' has no attribute 'Streamer'"):
        mds.Streamer  # noqa: B018 - raises
