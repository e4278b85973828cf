"""Arguments that need something else to have an effect are refused without it.

Every argument of a public call is listed: in `NEEDS` with a call that lacks what it needs, or in
`ALONE` if it has an effect by itself. A new argument fails `test_every_argument_is_listed` until it
is entered in one of them. Arguments of mosaicml-streaming, `INCUMBENT`, are accepted in silence.
"""

import inspect
import json
import re

import click
import numpy as np
import PIL.Image
import pytest
from click.testing import CliRunner
from PIL import Image

import mds
from mds import LocalDataset, MDSWriter, Packing, Schedule, Stream, StreamingDataset
from mds import StreamingDataLoader as Loader
from mds._cli import convert as convert_command
from mds._cli import main
from mds.errors import ConfigError
from mds.formats import (
    Arrow,
    AudioFiles,
    Delta,
    Iceberg,
    ImageFiles,
    JsonLines,
    Megatron,
    Parquet,
    RawFiles,
    Tar,
    TextFiles,
    TextLines,
)
from mds.storage import open_store
from mds.transforms import images, pad, ragged, stack
from mds.writers import dataframe_to_mds, merge_index

COLUMNS = {"id": "int", "text": "str", "tokens": "ndarray:int32"}
ROWS = [{"id": number, "text": "a"} for number in range(4)]
STREAMS = {"a": "data", "b": "two"}
OPTIONS = {"endpoint_url": "http://x", "anonymous": True}


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory):
    """Change to a folder with datasets and sources that the calls below name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("dependent"))
        for name in ("data", "two"):
            with MDSWriter(name, COLUMNS) as writer:
                for number in range(8):
                    tokens = np.arange(number + 1, dtype=np.int32)
                    writer.write({"id": number, "text": "a", "tokens": tokens})
        with MDSWriter("pictures", {"image": "jpeg", "id": "int"}) as writer:
            writer.write({"image": Image.new("RGB", (8, 8)), "id": 1})
        with open("state.json", "w", encoding="utf-8") as file:
            json.dump(StreamingDataset("data", batch_size=2).state_dict(), file)
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table({"id": [1, 2], "text": ["a", "b"]})
        parquet.write_table(table, "table.parquet")
        with open("table.csv", "w", encoding="utf-8") as file:
            file.write("id,text\n1,a\n2,b\n")
        yield


def convert(source, **options):
    return mds.convert(source, "converted", **options)


def writer(**options):
    return MDSWriter("written", {"id": "int"}, **options)


def parquet(**settings):
    return StreamingDataset("table.parquet", format=Parquet(**settings))


def pictures_without_table():
    PIL.Image.new("RGB", (4, 4)).save("picture.png")
    return StreamingDataset(".", format=ImageFiles(null=["NA"]), batch_size=1)


def parquet_with(**options):
    return StreamingDataset("table.parquet", **options)


def loader(**options):
    return Loader(StreamingDataset("data", batch_size=2), **options)


NO_EFFECT = "would have no effect"
NO_COLUMN = "there is no column 'nope'"
ABOUT_TOKENS = "is for tokens: give a tokenizer too"
ABOUT_FILES = "applies to files only, but the source is <list>"

#: Calls that lack what an argument needs: the call's name, the argument, the call, and a part of
#: the error.
NEEDS = [
    (
        "RawFiles",
        "companions",
        lambda: RawFiles(manifest="labels.csv", companions=False),
        NO_EFFECT,
    ),
    # a URL
    (
        "StreamingDataset",
        "storage_options",
        lambda: StreamingDataset("data", storage_options=OPTIONS),
        NO_EFFECT,
    ),
    (
        "StreamingDataset",
        "storage_options",
        lambda: StreamingDataset(remote="data", local="cache", storage_options=OPTIONS),
        NO_EFFECT,
    ),
    (
        "StreamingDataset",
        "storage_options",
        lambda: StreamingDataset([Stream("data"), "two"], storage_options=OPTIONS),
        NO_EFFECT,
    ),
    (
        "StreamingDataset",
        "storage_options",
        lambda: parquet_with(storage_options=OPTIONS),
        NO_EFFECT,
    ),
    (
        "Stream",
        "storage_options",
        lambda: StreamingDataset([Stream("data", storage_options=OPTIONS)]),
        r"Stream\(storage_options=...\): 'endpoint_url', 'anonymous' would have no effect",
    ),
    (
        "MDSWriter",
        "storage_options",
        lambda: writer(storage_options=OPTIONS),
        "settings of the store of a URL",
    ),
    (
        "convert",
        "storage_options",
        lambda: convert(ROWS, storage_options=OPTIONS),
        "settings of the store of a URL",
    ),
    (
        "merge_index",
        "storage_options",
        lambda: merge_index("data", storage_options=OPTIONS),
        "settings of the store of a URL",
    ),
    ("open_store", "options", lambda: open_store("data", options=OPTIONS), NO_EFFECT),
    # columns of images
    ("StreamingDataset", "images", lambda: StreamingDataset("data", images="array"), NO_EFFECT),
    (
        "StreamingDataset",
        "images",
        lambda: StreamingDataset("data", images={"text": "array"}),
        NO_EFFECT,
    ),
    (
        "StreamingDataset",
        "images",
        lambda: StreamingDataset("data", images={"nope": "array"}),
        NO_COLUMN,
    ),
    (
        "StreamingDataset",
        "images",
        lambda: StreamingDataset("pictures", images="array", columns=["id"]),
        "add 'image' to columns=, or leave images= out",
    ),
    ("LocalDataset", "images", lambda: LocalDataset("data", images="array"), NO_EFFECT),
    ("LocalDataset", "images", lambda: LocalDataset("data", images={"nope": "array"}), NO_COLUMN),
    # a column of that name
    ("StreamingDataset", "columns", lambda: StreamingDataset("data", columns=["nope"]), NO_COLUMN),
    ("LocalDataset", "columns", lambda: LocalDataset("data", columns=["nope"]), NO_COLUMN),
    ("Parquet", "encodings", lambda: parquet(encodings={"nope": "int"}), NO_COLUMN),
    ("Parquet", "columns", lambda: parquet(columns=["nope"]), NO_COLUMN),
    ("ImageFiles", "null", pictures_without_table, "null= applies to cells of a table of labels"),
    ("MDSWriter", "lengths", lambda: writer(lengths="nope"), NO_COLUMN),
    ("MDSWriter", "class_names", lambda: writer(class_names={"nope": ["a"]}), NO_COLUMN),
    ("MDSWriter", "descriptions", lambda: writer(descriptions={"nope": "a"}), NO_COLUMN),
    ("convert", "columns", lambda: convert(ROWS, columns="nope"), NO_COLUMN),
    ("convert", "drop", lambda: convert("table.csv", drop="nope"), NO_COLUMN),
    ("convert", "lengths", lambda: convert(ROWS, lengths="nope"), NO_COLUMN),
    ("convert", "encodings", lambda: convert("table.csv", encodings={"nope": "int"}), NO_COLUMN),
    ("convert", "fill", lambda: convert(ROWS, fill={"nope": 1}), "'nope' is not a column"),
    (
        "convert",
        "describe",
        lambda: convert(ROWS, describe={"nope": "a"}),
        "'nope' is not a column",
    ),
    # several streams with names, packs, workers
    (
        "StreamingDataset",
        "schedule",
        lambda: StreamingDataset("data", schedule={0: {"a": 1}}),
        "needs streams with names",
    ),
    (
        "StreamingDataset",
        "format",
        lambda: StreamingDataset(STREAMS, format="mds"),
        "does not work with format=",
    ),
    (
        "Schedule",
        "tokens_per_sample",
        lambda: Schedule({0: {"a": 1}}, tokens_per_sample=3),
        "together",
    ),
    (
        "StreamingDataLoader",
        "worker_type",
        lambda: loader(worker_type="threads"),
        "Give num_workers= too",
    ),
    (
        "StreamingDataLoader",
        "microbatches",
        lambda: loader(batch_size=None, microbatches=2),
        "divides steps into batches",
    ),
    (
        "StreamingDataLoader",
        "worker_type",
        lambda: loader(worker_type="processes"),
        "Give num_workers= too",
    ),
    # a text column, files, a table, splits, a tokenizer
    ("convert", "format", lambda: convert(ROWS, format="csv"), ABOUT_FILES),
    ("convert", "include", lambda: convert(ROWS, include="*.py"), ABOUT_FILES),
    ("convert", "exclude", lambda: convert(ROWS, exclude="*.py"), ABOUT_FILES),
    ("convert", "labels", lambda: convert(ROWS, labels="a.csv"), ABOUT_FILES),
    ("convert", "config", lambda: convert(ROWS, config="en"), ABOUT_FILES),
    ("convert", "source_split", lambda: convert(ROWS, source_split="train"), ABOUT_FILES),
    ("convert", "encoding", lambda: convert(ROWS, encoding="cp1252"), ABOUT_FILES),
    ("convert", "no_header", lambda: convert(ROWS, no_header=True), ABOUT_FILES),
    ("convert", "null", lambda: convert(ROWS, null="NA"), ABOUT_FILES),
    (
        "convert",
        "labels",
        lambda: convert("table.csv", labels="a.csv"),
        "--labels does not apply",
    ),
    ("convert", "config", lambda: convert("table.csv", config="en"), "--config does not apply to"),
    (
        "convert",
        "source_split",
        lambda: convert("table.csv", source_split="a"),
        "--source-split does not apply to",
    ),
    (
        "convert",
        "encoding",
        lambda: convert("data", encoding="cp1252"),
        "--encoding does not apply to",
    ),
    (
        "convert",
        "no_header",
        lambda: convert("data", no_header=True),
        "--no-header does not apply to",
    ),
    (
        "convert",
        "null",
        lambda: convert("table.parquet", null="NA"),
        "applies to cells of CSV and TSV files",
    ),
    ("convert", "split_key", lambda: convert(ROWS, split_key="id"), "has no effect without split="),
    (
        "convert",
        "merge_splits",
        lambda: convert(ROWS, merge_splits=True),
        "has no splits",
    ),
    (
        "convert",
        "merge_splits",
        lambda: convert("table.csv", merge_splits=True),
        "has no splits",
    ),
    (
        "convert",
        "keep_shards",
        lambda: convert(ROWS, keep_shards=True),
        "needs files in a known format",
    ),
    ("convert", "block", lambda: convert(ROWS, block=128), ABOUT_TOKENS),
    ("convert", "end_token", lambda: convert(ROWS, end_token=""), ABOUT_TOKENS),
    ("convert", "text_column", lambda: convert(ROWS, text_column="text"), ABOUT_TOKENS),
    ("convert", "drop_last", lambda: convert(ROWS, drop_last=True), ABOUT_TOKENS),
    (
        "convert",
        "columns",
        lambda: convert(ROWS, tokenizer="bytes", columns="id"),
        "has no effect with",
    ),
    ("convert", "drop", lambda: convert(ROWS, tokenizer="bytes", drop="id"), "has no effect with"),
    (
        "convert",
        "fill",
        lambda: convert(ROWS, tokenizer="bytes", fill={"id": 1}),
        "has no effect with",
    ),
    (
        "convert",
        "encodings",
        lambda: convert(ROWS, tokenizer="bytes", encodings={"id": "int32"}),
        "has no effect with",
    ),
    (
        "convert",
        "describe",
        lambda: convert(ROWS, tokenizer="bytes", describe={"id": "a"}),
        "has no effect with",
    ),
    # an argument of a method or a function
    (
        "select",
        "key",
        lambda: StreamingDataset("data").select([1], key="a"),
        "names the selection of where=",
    ),
    ("split", "by", lambda: StreamingDataset("data").split([0.5, 0.5], by="nope"), NO_COLUMN),
    ("pad", "value", lambda: pad("x", value={"nope": 1}), "has the columns"),
]


#: Arguments that have an effect by themselves, by call.
ALONE = {
    "StreamingDataset": "on_error copy remainder topology packing place",
    "Stream": "format place",
    "LocalDataset": "allow_unsafe_types copy",
    "StreamingDataLoader": "dataset",
    "Packing": "capacity column overflow balance budget window packer separator layout labels",
    "Schedule": "knots between unit exhausted max_passes",
    "RunHistory": "state data select",
    "MDSWriter": "samples_per_shard durable strict",
    "convert": "source out limit on_error split compression hashes size_limit tokenizer num_workers"
    " engine resume overwrite work durable progress portable",
    "merge_index": "",
    "dataframe_to_mds": "",
    "open_store": "url retry timeout",
    "Arrow": "columns missing encodings",
    "Delta": "columns missing encodings version",
    "Iceberg": "columns missing encodings snapshot",
    "ImageFiles": "columns missing encodings samples_per_shard labels",
    "JsonLines": "columns missing encodings shard_size encoding",
    "Megatron": "columns missing encodings shard_size",
    "Parquet": "missing",
    "AudioFiles": "columns missing encodings samples_per_shard",
    "MetadataFiles": "columns missing encodings labels null samples_per_shard",
    "PairedFiles": "columns missing encodings encoding samples_per_shard",
    "RawFiles": "columns missing encodings manifest path content size companions samples_per_shard",
    "Tar": "columns missing encodings",
    "TextFiles": "columns missing encodings encoding samples_per_shard",
    "TextLines": "columns missing encodings shard_size encoding",
    "images": "names masks size resize crop flip mean std dtype channels_first",
    "pad": "names multiple side add",
    "ragged": "names nested",
    "stack": "names",
    "select": "choice where",
    "limit": "samples",
    "split": "shares seed",
    "clean": "place remove as_json",
    "info": "dataset file_format as_json",
    "lengths": "dataset column as_json",
    "verify": "dataset file_format no_decode num_workers quiet as_json",
    "merge": "parts out overwrite as_json",
    "index": "source out kind overwrite as_json",
    "head": "dataset file_format limit columns as_json html",
    "run step": "state step rank show places as_json select",
    "run sample": "state number places as_json select",
    "run diff": "first second places as_json select",
    "run mixture": "state plot until places as_json",
}

#: Arguments of mosaicml-streaming, which stay accepted in silence.
INCUMBENT = {
    "StreamingDataset": "streams remote local split download_retry download_timeout validate_hash"
    " keep_zip epoch_size predownload cache_limit sampling_method sampling_granularity"
    " partition_algo num_canonical_nodes batch_size shuffle shuffle_algo shuffle_seed"
    " shuffle_block_size batching_method allow_unsafe_types replication stream_name stream_config",
    "Stream": "remote local split proportion repeat choose download_retry download_timeout"
    " validate_hash keep_zip",
    "LocalDataset": "local split",
    "StreamingDataLoader": "args kwargs",
    "MDSWriter": "columns out keep_local compression hashes size_limit progress_bar max_workers"
    " retry exist_ok",
    "merge_index": "args kwargs index_file_urls out keep_local download_timeout",
    "dataframe_to_mds": "dataframe merge_index mds_kwargs udf_iterable udf_kwargs",
}

CALLS = {
    "RunHistory": mds.RunHistory,
    "convert": mds.convert,
    "select": StreamingDataset.select,
    "limit": StreamingDataset.limit,
    "split": StreamingDataset.split,
    **{
        each.__name__: each
        for each in (
            *(StreamingDataset, Stream, LocalDataset, Loader, Packing, Schedule, MDSWriter),
            *(Arrow, Delta, Iceberg, ImageFiles, JsonLines, Megatron, Parquet, RawFiles, Tar),
            *(
                AudioFiles,
                TextFiles,
                TextLines,
                merge_index,
                dataframe_to_mds,
                open_store,
                images,
                pad,
                ragged,
                stack,
            ),
        )
    },
}

COMMANDS = {
    **{name: each for name, each in main.commands.items() if name not in {"run", "convert"}},
    **{f"run {name}": each for name, each in main.commands["run"].commands.items()},
}

#: Command lines that lack what an option needs, with a part of the error.
COMMAND_LINES = [
    *[
        (f"{command} --storage-option endpoint_url=x", "is a path. Leave the option out")
        for command in (
            *("clean data", "info data", "lengths data", "verify data", "merge data", "head data"),
            "index table.parquet",
            *("run step state.json 0 --data data", "run sample state.json 0 --data data"),
            *("run diff state.json state.json --data data", "run mixture state.json --data data"),
        )
    ],
    ("index data/shard.00000.mds --set columns=id", "--set needs --format"),
    ("index table.parquet --split train", "--split needs OUT"),
    ("head data --columns id --html page.html", "--columns and --html"),
    ("head data --columns nope", "there is no column 'nope'"),
    ("lengths data --column nope", "there is no column 'nope'"),
    ("convert table.csv out --split-key id", "has no effect without split="),
    ("convert table.csv out --block 2048", "is for tokens"),
    ("convert table.csv out --merge-splits", "has no splits"),
    ("convert table.csv out --storage-option endpoint_url=x", "is a path"),
]


def arguments(call):
    """Return the names of the arguments of a class, function or method."""
    parameters = inspect.signature(call).parameters
    return {name for name, parameter in parameters.items() if name != "self"}


@pytest.mark.parametrize("call", CALLS)
def test_every_argument_is_listed(call):
    """A new argument is entered in `NEEDS` or `ALONE`."""
    listed = {*ALONE[call].split(), *INCUMBENT.get(call, "").split()}
    listed |= {argument for owner, argument, _, _ in NEEDS if owner == call}
    assert arguments(CALLS[call]) - listed == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_listed(command):
    """A new option of a command is entered in `COMMAND_LINES` or `ALONE`."""
    lines = [line for line, _ in COMMAND_LINES if line.startswith(command)]
    given = {word for line in lines for word in line.split() if word.startswith("--")}
    options = {
        parameter.name
        for parameter in COMMANDS[command].params
        if not given & {*getattr(parameter, "opts", ())}
    }
    assert options - {*ALONE[command].split(), "help", "version"} == set()


def test_the_command_line_converts_with_the_options_of_the_function():
    """So what `NEEDS` says of `convert` holds for the command."""
    options = {each.name for each in convert_command.params if isinstance(each, click.Option)}
    ours = {"no_durable", "dry_run", "quiet", "as_json", "help", "version", "kind"}
    assert options - ours <= arguments(mds.convert)


@pytest.mark.parametrize(
    ("call", "message"),
    [entry[2:] for entry in NEEDS],
    ids=[f"{owner}-{argument}-{number}" for number, (owner, argument, *_) in enumerate(NEEDS)],
)
def test_an_argument_without_effect_is_refused(call, message):
    """The error names the argument and says what to write."""
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(("line", "message"), COMMAND_LINES)
def test_an_option_without_effect_is_refused(line, message):
    """The exit code is 2, and the error names the option."""
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code == 2, done.output
    assert re.search(message, " ".join(done.output.split())), done.output


def test_what_has_an_effect_is_accepted():
    """The same arguments beside what they need."""
    assert StreamingDataset("pictures", images="array")[0]["image"].shape == (8, 8, 3)
    assert LocalDataset("pictures", images={"image": "array"})[0]["image"].shape == (8, 8, 3)
    options = {"compare_versions": False}  # of every store, so of a path that is fetched from, too
    assert StreamingDataset(remote="data", local="copy", storage_options=options)[0]["id"] == 0


def test_settings_of_a_dataset_whose_streams_have_their_own_are_refused():
    """Settings of all stores are taken for a path that is fetched."""
    options = {"concurrency": 4}
    stream = Stream(remote="data", local="copy2", storage_options=options)
    with pytest.raises(ConfigError, match="every stream has its own settings"):
        StreamingDataset([stream], storage_options={"concurrency": 2})


def test_settings_of_a_store_need_the_url_of_a_run():
    arguments = ["run", "step", "state.json", "0", "--storage-option", "region=a"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Name the URL of each stream with --data." in result.output.replace("\n", " ")
    with open_store("memory://x", options={"concurrency": 3}):
        assert open_store("data", options={"part_size": 1 << 20}).head("index.json").size
    assert len(parquet(encodings={"id": "int32"})) == 2
    summary = mds.convert({"train": ROWS, "val": ROWS}, "merged", merge_splits=True)
    assert summary.samples == 8


def test_a_limit_of_a_cache_that_does_not_exist_is_explained():
    """``cache_limit`` is accepted for data that are read in place, as in mosaicml-streaming."""
    text = StreamingDataset("data", cache_limit="1gb", batch_size=2).explain()
    assert "no effect: there is no cache" in text
