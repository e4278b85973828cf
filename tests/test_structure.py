"""The house stands: imports go down only, file by file, and importing is free."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "mds"

# From the ground up. Rooms on one floor never import each other.
ROOMS = [
    {"_lazy", "_version", "process", "text"},
    {"errors", "events"},
    {"arguments", "plugins"},
    {"encodings", "format", "shuffle", "storage", "units", "world"},
    {"index", "plan", "preview"},
    {"readers"},
    {"formats"},
    {"writers"},
    {"cache", "testing", "transforms"},
    {"metrics", "prefetch", "report"},
    {"dataset"},
    {"loader"},
    {"cli", "compat"},
    {"__main__"},
]

# From the ground up inside each room: files in one set never import each other.
FILES = {
    "cache": [
        {
            "checked_ids",
            "computed_files",
            "concurrency",
            "counters",
            "filesystem",
            "ledger_file",
            "open_readers",
            "origin",
            "policy",
            "rank_file",
            "seal",
            "source",
            "tuning",
        },
        {
            "adoption",
            "counter_table",
            "node_counters",
            "order_files",
            "ownership",
            "pack_files",
            "process_table",
        },
        {"folder", "ledger", "refuges"},
        {"disk_check", "versions"},
        {"catalog", "download", "index_copy", "recovery"},
        {"budget", "decode", "find_table", "peers", "ranged"},
        {"fetch", "keep_limit"},
        {"process_cache"},
        {"random_access"},
        {"shard_cache"},
        {"__init__"},
    ],
    "cli": [
        {
            "completion_command",
            "dataset_lengths",
            "files_dataset",
            "lengths_plot",
            "mixture_plot",
            "standard_input",
            "terminal",
        },
        {"dataset_info", "index_command", "keep_shards"},
        {
            "clean_command",
            "convert_command",
            "head_command",
            "info_command",
            "lengths_command",
            "merge_command",
            "verification",
        },
        {"rewind_command", "verify_command"},
        {"plan_command"},
        {"__init__"},
    ],
    "compat": [
        {
            "__init__",
            "constants",
            "imports",
            "merging",
            "options",
            "registries",
            "uncalled",
            "util",
        },
        {
            "clouds",
            "compressions",
            "dataloader",
            "iterating",
            "json_encodings",
            "orders",
            "ranks",
            "shapes",
            "shuffles",
        },
        {"encodings", "names", "readers", "shared", "writers", "xsv_encodings"},
        {"format_readers", "format_writers"},
        {"dataset_parts", "prepared"},
        {"local", "stream"},
        {"dataset"},
        {"multimodal", "streaming", "text", "vision"},
        {"__main__", "door.streaming"},
    ],
    "dataset": [
        {
            "cached_shards",
            "epoch_counter",
            "filtering",
            "indexing",
            "notebook",
            "selection",
            "selection_files",
            "settings",
        },
        {"stream"},
        {"shard_map", "worker_epoch"},
        {"data_names", "pack_counts"},
        {"explain", "lengths", "node_order", "order_state", "schema", "timed_sample"},
        {"packed_epoch", "packed_order"},
        {"facts", "local", "reading", "steps"},
        {"editing"},
        {"epoch_iterator", "subsets"},
        {"mapping"},
        {"samples"},
        {"rewind", "streaming"},
        {"run_mixture"},
        {"__init__"},
    ],
    "encodings": [
        {"base"},
        {"arrays", "registry", "scalars"},
        {"audio", "containers", "lengths", "objects", "text"},
        {"images"},
        {"__init__"},
    ],
    "format": [
        {"__init__", "decompression", "hashing", "layout"},
        {"compression"},
    ],
    "formats": [
        {
            "columns",
            "facts",
            "file_names",
            "infer",
            "json_values",
            "made_reader",
            "newlines",
            "parquet_footer",
            "place",
            "tar_members",
            "unpack",
        },
        {"arrow_types", "encode", "known_columns", "manifest", "probe", "source", "tar_samples"},
        {
            "arrow_checks",
            "arrow_values",
            "base",
            "parquet_metadata",
            "table_fields",
            "tar_bytes",
            "tar_columns",
            "tar_counts",
            "tar_places",
            "tar_values",
        },
        {"arrow_bytes", "tar_ranges", "tar_reader"},
        {"arrow_reader", "columnar", "tar_blocks"},
        {"arrow_files", "lines", "parquet", "raw_files", "registry", "table", "tar"},
        {"lake"},
        {"dataset", "delta", "iceberg"},
        {"opening", "pinned"},
        {"__init__"},
    ],
    "index": [
        {"distinct", "files_index", "schema", "unfinished"},
        {"emit", "shard_object"},
        {"parse", "table_check"},
        {"table"},
        {"binary_copy", "companion"},
        {"lengths"},
        {"column_notes"},
        {"__init__"},
    ],
    "loader": [
        {
            "__init__",
            "batch_codec",
            "batch_groups",
            "batch_maker",
            "malloc",
            "run_facts",
            "segments",
            "settings",
            "tensor_buffers",
            "threads",
            "wrapping",
        },
        {"batch_masks", "counted_batches", "pack_filling", "parcels"},
        {"custom_batches", "filtered_batches", "function_groups", "pack_columns"},
        {"pack_samples"},
        {"packed_batches"},
        {"pack_checks"},
        {"batches"},
        {"threaded_batches"},
        {"worker_batches"},
        {"dataloader"},
    ],
    "plan": [
        {"audit", "gaps", "mixture", "orders", "packing", "sampling", "state", "weights"},
        {"keyed_sampling", "pack_reading", "partition", "schedule", "spec"},
        {"edits", "pack_schedule", "passes"},
        {"pack_drops", "stream_passes"},
        {"global_batches", "scheduled_epoch"},
        {"pack_windows"},
        {"drops"},
        {"stream_batches"},
        {"scheduled_batches"},
        {"build"},
        {"epoch"},
        {"full_epoch", "pack_plan"},
        {"__init__"},
    ],
    "prefetch": [
        {"__init__", "lookahead", "served_time", "window_size"},
        {"unlimited", "use_table"},
        {"next_use"},
        {"acquire"},
        {"limited"},
        {"prefetcher"},
    ],
    "preview": [
        {"__init__", "pictures", "words"},
        {"page"},
    ],
    "process": [
        {"__init__", "fork_safe", "nameless", "parent", "stopwatch"},
        {"mmaps", "per_process"},
    ],
    "plugins": [{"installed"}, {"__init__"}],
    "readers": [
        {"base", "fields", "mmap_file"},
        {"codegen"},
        {"columnar", "split"},
        {"joint"},
        {"fixed"},
        {"gather", "sparse"},
        {"iterate"},
        {"__init__"},
    ],
    "report": [
        {"account", "setup"},
        {"remedies"},
        {"diagnosis"},
        {"__init__"},
    ],
    "shuffle": [
        {"base", "bucket_sort", "permutation"},
        {"cells", "keyed_order", "line", "shard_parts"},
        {"seekable_group", "sequential"},
        {"seekable"},
        {"naive", "py1b", "py1br", "py1e", "py1s", "py2s"},
        {"__init__"},
    ],
    "storage": [
        {"chunked", "lock_holders", "regular"},
        {"files", "options", "relative_name", "sigv4", "translate", "url", "waiting"},
        {"base", "beneath", "control_files", "directory", "s3_errors", "s3_template"},
        {
            "folder_lock",
            "fsspec",
            "local",
            "locks",
            "memory",
            "pace",
            "s3_client",
            "s3_listing",
            "transfer_times",
            "wrappers",
        },
        {"http_client", "keep_alive", "retry", "sftp"},
        {"request_gate", "s3_ranges"},
        {"azure", "databricks", "hf", "http", "oci", "registry", "s3"},
        {"__init__", "gs"},
    ],
    "testing": [
        {
            "__init__",
            "file_format_contract",
            "format_contracts",
            "input_contract",
            "shuffle_contract",
            "store_contract",
            "stores",
        },
        {"contract"},
    ],
    "text": [
        {"__init__", "near", "redaction"},
    ],
    "transforms": [
        {"columns", "links", "row_keys", "rows"},
        {"chain", "column_function", "row_generator"},
        {"costs", "image_columns", "padding", "ragged_columns", "runner", "seeding", "stacking"},
        {"__init__"},
    ],
    "writers": [
        {
            "convert.checkpoint",
            "convert.coerce",
            "convert.inputs",
            "convert.inputs.base",
            "convert.inputs.listing",
            "convert.inputs.portable",
            "convert.inputs.splits",
            "convert.shard_split",
            "convert.tokens",
            "engines.base",
            "early_file",
            "leftovers",
            "ownership",
            "presence",
            "recorded_lengths",
            "shard_buffer",
            "spec",
        },
        {
            "convert.inputs.file_input",
            "convert.read_part",
            "convert.spec",
            "convert.write_shard",
            "destination",
            "engines.local",
            "engines.ray",
            "engines.spark",
            "finalize",
            "merge_check",
        },
        {"convert.inputs.folder_classes"},
        {
            "convert.inputs.files",
            "convert.inputs.huggingface",
            "convert.inputs.mds",
            "convert.inputs.tables",
            "convert.locks",
            "engines.open",
            "merge",
            "pipeline",
        },
        {"convert.inputs.text_lines", "convert.output", "writer"},
        {
            "convert.inputs.csv",
            "convert.inputs.jsonl",
            "convert.inputs.webdataset",
            "convert.run",
            "mds",
        },
        {"convert.dataframe", "convert.inputs.images", "convert.keep_shards", "text"},
        {"convert.inputs.pairs"},
        {"__init__", "convert.inputs.registry", "engines"},
        {"convert.inputs.detect"},
        {"convert.conversion"},
        {"convert"},
    ],
}

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
FLOOR_OF_ROOM = {name: number for number, floor in enumerate(ROOMS) for name in floor}
FLOOR_OF_FILE = {
    (room, name): number
    for room, floors in FILES.items()
    for number, floor in enumerate(floors)
    for name in floor
}


def imports_of(module: str) -> set[str]:
    """Modules that a module names, under TYPE_CHECKING and inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else str(node.module))
    return {name for name in found if name in MODULES and name != module}


def room_of(module: str) -> str:
    return ([*module.split("."), ""])[1]


def file_of(module: str) -> str:
    return ".".join(module.split(".")[2:]) or "__init__"


GRAPH = {module: imports_of(module) for module in MODULES}


@pytest.mark.parametrize("module", [m for m in MODULES if m != "mds"])
def test_code_imports_downward_only(module):
    """A file names no room of its own floor or above, and no file of its own floor in its room."""
    room = room_of(module)
    assert room in FLOOR_OF_ROOM, f"{room} has no floor; give it one in {__file__}"
    own = FLOOR_OF_FILE.get((room, file_of(module)))
    assert own is not None or room not in FILES, f"{module} has no floor; give it one in {__file__}"
    for other in GRAPH[module] - {"mds"}:
        if room_of(other) != room:
            below = FLOOR_OF_ROOM[room_of(other)] < FLOOR_OF_ROOM[room]
        else:
            below = FLOOR_OF_FILE[room, file_of(other)] < (own or 0)
        assert below, f"{module} imports {other}, which is not below it"


def test_every_floor_has_its_files():
    """No floor is given to a room or file that is not there."""
    assert {room_of(m) for m in MODULES} - {""} == set(FLOOR_OF_ROOM)
    there = {(room_of(m), file_of(m)) for m in MODULES if room_of(m) in FILES}
    assert there == set(FLOOR_OF_FILE)


def test_no_import_circles():
    """No file imports itself by way of others, however the import is written."""
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for other in GRAPH[module]:
                visit(other, (*above, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_the_top_level_is_small():
    """At most nine files lie beside the rooms."""
    assert len(list(PACKAGE.glob("*.py"))) <= 9


HEAVY = ("torch", "PIL", "boto3", "google.cloud", "azure", "paramiko", "rich", "click", "zstandard")


def _loaded_after(code: str) -> set[str]:
    out = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(out.stdout.split())


def test_importing_costs_numpy_at_most():
    """``import mds`` brings in no torch, no image library, no cloud, no terminal library."""
    assert not set(HEAVY) & _loaded_after("import mds")


def test_writing_needs_no_torch():
    """A converter that writes shards never pays for torch."""
    assert "torch" not in _loaded_after("from mds import MDSWriter")


def test_public_names_are_all_there():
    """Every public name resolves and is shown by dir()."""
    import mds

    for name in mds.__all__:
        assert getattr(mds, name) is not None
        assert name in dir(mds)


def test_only_one_file_renames_into_place():
    """``os.replace`` has one home, so that nothing else can publish half a file."""
    found = [
        str(p.relative_to(PACKAGE))
        for p in MODULES.values()
        if "os.replace(" in p.read_text(encoding="utf-8")
    ]
    assert found == ["storage/files.py"]


def test_no_named_shared_memory():
    """Nothing is shared by a name that could outlive its owner."""
    for path in MODULES.values():
        if "compat" not in path.parts:
            assert "SharedMemory" not in path.read_text(encoding="utf-8"), path


def test_only_safe_lines_are_logged():
    """Every logger is made by ``get_logger``, which masks secrets and escapes what acts."""
    found = [
        str(p.relative_to(PACKAGE))
        for p in MODULES.values()
        if "logging.getLogger(" in p.read_text("utf-8")
    ]
    assert found == ["text/redaction.py"]
