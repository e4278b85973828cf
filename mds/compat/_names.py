"""Table of the modules and names of mosaicml-streaming, each with the object of mds behind it.

`MODULES` maps each module of ``streaming`` to its names, and each name to a module of mds and a
name there. It is made of two tables: `_TABLE` has the names that a module defines, `_IMPORTED` the
names that modules of mosaicml-streaming import from each other, since some code imports them there.
"""

from __future__ import annotations

#: Version of mosaicml-streaming whose names these are; code compares it.
VERSION = "0.13.0"

_WRITERS = "CSVWriter JSONWriter MDSWriter TSVWriter XSVWriter"
_DOWNLOADERS = (
    "AlipanDownloader AzureDataLakeDownloader AzureDownloader CloudDownloader DBFSDownloader "
    "DatabricksUnityCatalogDownloader GCSDownloader HFDownloader LocalDownloader OCIDownloader "
    "S3Downloader SFTPDownloader"
)
_UPLOADERS = (
    "AzureDataLakeUploader AzureUploader CloudUploader GCSUploader HFUploader LocalUploader "
    "OCIUploader S3Uploader"
)
_DOWNLOAD = (
    "download_file BOTOCORE_CLIENT_ERROR_CODES GCS_ERROR_NO_AUTHENTICATION DOWNLOADER_MAPPINGS "
    "_LOCAL_DOWNLOADER"
)
_UPLOAD = (
    "AlipanUploader DBFSUploader DatabricksUnityCatalogUploader DatabricksUploader "
    "GCSAuthentication UPLOADERS BOTOCORE_CLIENT_ERROR_CODES GCS_ERROR_NO_AUTHENTICATION"
)
_ENCODINGS = (
    "get_mds_encoded_size get_mds_encodings is_mds_encoding is_mds_encoding_safe mds_decode "
    "mds_encode _encodings _unsafe_encodings _get_coder Encoding Scalar StrEncoding List "
    "Bytes Str Int UInt8 UInt16 UInt32 UInt64 Int8 Int16 Int32 Int64 Float16 Float32 Float64 "
    "StrInt StrFloat StrDecimal NDArray PIL JPEG PNG JPEGArray PILList JPEGList PNGList Pickle JSON"
)
_TEXT_ENCODINGS = (
    "Encoding=TextEncoding Float=TextFloat Int=TextInt Str=TextStr _encodings=_text_encodings"
)
_CONSTANTS = (
    "LOCALS BARRIER NEXT_EPOCH CACHE_USAGE SHARD_STATES SHARD_ACCESS_TIMES RESUME EPOCH_SHAPE "
    "EPOCH_DATA SHM_TO_CLEAN BARRIER_FILELOCK CACHE_FILELOCK TICK DEFAULT_TIMEOUT"
)
_CONSTANTS_OF_DATASET = (
    "BARRIER BARRIER_FILELOCK CACHE_FILELOCK CACHE_USAGE EPOCH_DATA EPOCH_SHAPE NEVER NEXT_EPOCH "
    "RESUME SHARD_ACCESS_TIMES SHARD_STATES"
)
_PREFIX = (
    "_check_and_find _check_and_find_retrying _check_self _each_prefix_int _get_path "
    "_pack_locals _unpack_locals get_shm_prefix"
)
_COMPRESSIONS = (
    "compress decompress get_compression_extension get_compressions is_compression Compression "
    "LevelledCompression Brotli Bzip2 Gzip Snappy Zstandard _families _algorithms _collect"
)
_MERGING = (
    "merge_index _merge_index_from_list _merge_index_from_root _not_merged_index "
    "_format_remote_index_files"
)
_UTIL = (
    "bytes_to_int clean_stale_shared_memory get_import_exception_message get_list_arg "
    "number_abbrev_to_int retry wait_for_file_to_exist"
)
_GETTERS = "get_local_rank get_local_world_size get_rank get_world_size"
_COLLECTIVES = "all_gather all_gather_object barrier broadcast maybe_init_dist"
_BASE = "streaming.base"

#: Modules of ``streaming``, the module of mds that has their names, and the names; ``name=ours``
#: where mds calls the object otherwise.
_TABLE = (
    (f"streaming {_BASE} {_BASE}.format", "mds.compat._writers", _WRITERS),
    (f"{_BASE}.array", "mds.compat._readers", "Array"),
    (f"{_BASE}.batching {_BASE}.dataset", "mds.compat._orders", "generate_work"),
    (f"{_BASE}.batching", "mds.compat._orders", "batching_methods"),
    *(
        (
            f"{_BASE}.batching {_BASE}.batching.{method}",
            "mds.compat._orders",
            f"generate_work_{method}_batching",
        )
        for method in ("random", "stratified", "per_stream", "device_per_stream")
    ),
    (
        f"{_BASE}.compression",
        "mds.compat._compressions",
        _COMPRESSIONS,
    ),
    (f"{_BASE}.constant", "mds.compat._placeholders", _CONSTANTS),
    (
        f"{_BASE}.converters",
        "mds.writers.convert._dataframe",
        "SPARK_TO_MDS infer_dataframe_schema is_json_compatible",
    ),
    (f"{_BASE}.converters", "mds.compat._writers", "dataframe_to_mds"),
    (
        f"streaming {_BASE} {_BASE}.dataloader",
        "mds.compat._dataloader",
        "StreamingDataLoader",
    ),
    (f"streaming {_BASE} {_BASE}.dataset", "mds.compat._dataset", "StreamingDataset"),
    (f"{_BASE}.dataset", "mds.compat._placeholders", _CONSTANTS_OF_DATASET),
    (f"{_BASE}.dataset", "mds.compat._placeholders", "_Iterator _IterState _ShardState"),
    (f"{_BASE}.distributed {_BASE}.dataset", "mds.compat._ranks", _GETTERS),
    (f"{_BASE}.distributed", "mds.compat._ranks", _COLLECTIVES),
    (
        f"{_BASE}.distributed {_BASE}.dataset {_BASE}.shared.prefix",
        "torch",
        "dist=distributed",
    ),
    (f"{_BASE}.format {_BASE}.format.base", "mds.compat._readers", "FileInfo Reader"),
    (
        f"{_BASE}.format",
        "mds.compat._readers",
        "get_index_basename reader_from_json _readers",
    ),
    (
        f"{_BASE}.format.base.reader",
        "mds.compat._readers",
        "FileInfo Reader JointReader SplitReader",
    ),
    (f"{_BASE}.format.base.writer", "mds.compat._writers", "Writer JointWriter SplitWriter"),
    (f"{_BASE}.format.index", "mds.compat._readers", "get_index_basename"),
    (f"{_BASE}.format.json {_BASE}.format.json.writer", "mds.compat._writers", "JSONWriter"),
    (f"{_BASE}.format.mds {_BASE}.format.mds.writer", "mds.compat._writers", "MDSWriter"),
    (f"{_BASE}.format.mds.encodings", "mds.compat._encodings", _ENCODINGS),
    (f"{_BASE}.format.mds {_BASE}.format.mds.reader", "mds.compat._readers", "MDSReader"),
    (f"{_BASE}.format.json {_BASE}.format.json.reader", "mds.compat._readers", "JSONReader"),
    (
        f"{_BASE}.format.xsv {_BASE}.format.xsv.reader",
        "mds.compat._readers",
        "CSVReader TSVReader XSVReader",
    ),
    (
        f"{_BASE}.format.json.encodings",
        "mds.compat._encodings",
        f"{_TEXT_ENCODINGS} is_json_encoded is_json_encoding",
    ),
    (
        f"{_BASE}.format.xsv.encodings",
        "mds.compat._encodings",
        f"{_TEXT_ENCODINGS} is_xsv_encoding xsv_decode xsv_encode",
    ),
    (
        f"{_BASE}.format.xsv {_BASE}.format.xsv.writer",
        "mds.compat._writers",
        "CSVWriter TSVWriter XSVWriter",
    ),
    (
        f"{_BASE}.hashing",
        "mds.compat._compressions",
        "get_hash get_hashes is_hash _hashes _collect=_collect_hashes",
    ),
    (f"streaming {_BASE} {_BASE}.local", "mds.compat._dataset", "LocalDataset"),
    (f"{_BASE}.partition", "mds.compat._orders", "get_partitions algos=partition_algos"),
    *(
        (
            f"{_BASE}.partition {_BASE}.partition.{algo}",
            "mds.compat._orders",
            f"get_partitions_{algo}",
        )
        for algo in ("orig", "relaxed")
    ),
    (
        f"{_BASE}.registry_utils",
        "mds.compat._registries",
        "TypedRegistry construct_from_registry create_registry import_file save_registry",
    ),
    (f"{_BASE}.sampling", "mds.plan", "get_sampling"),
    (f"{_BASE}.shared {_BASE}.shared.array", "mds.compat._placeholders", "SharedArray"),
    (f"{_BASE}.shared {_BASE}.shared.barrier", "mds.compat._placeholders", "SharedBarrier"),
    (f"{_BASE}.shared {_BASE}.shared.memory", "mds.compat._placeholders", "SharedMemory"),
    (f"{_BASE}.shared {_BASE}.shared.scalar", "mds.compat._placeholders", "SharedScalar"),
    (f"{_BASE}.shared", "mds.compat._placeholders", "_get_path get_shm_prefix"),
    (f"{_BASE}.shared.prefix", "mds.compat._placeholders", f"{_PREFIX} SharedMemory"),
    (
        f"{_BASE}.shared.barrier {_BASE}.shared.memory {_BASE}.shared.prefix",
        "mds.compat._placeholders",
        "TICK",
    ),
    (f"{_BASE}.shared.barrier", "mds.compat._placeholders", "TIMEOUT"),
    (
        f"{_BASE}.shared.prefix",
        "mds.compat._placeholders",
        "BARRIER_FILELOCK CACHE_FILELOCK LOCALS SHM_TO_CLEAN",
    ),
    (f"{_BASE}.shuffle", "mds.compat._orders", "get_shuffle algos=shuffle_algos"),
    *(
        (
            f"{_BASE}.shuffle {_BASE}.shuffle.{algo}",
            "mds.compat._orders",
            f"get_shuffle_{algo}",
        )
        for algo in ("naive", "py1br", "py1e", "py1s", "py2s")
    ),
    (f"{_BASE}.spanner", "mds.compat._readers", "Spanner"),
    (
        f"{_BASE}.storage",
        "mds.compat._clouds",
        f"{_DOWNLOADERS} {_UPLOADERS} download_file",
    ),
    (
        f"{_BASE}.storage.download",
        "mds.compat._clouds",
        f"{_DOWNLOADERS} {_DOWNLOAD}",
    ),
    (
        f"{_BASE}.storage.download {_BASE}.dataset",
        "mds.compat._placeholders",
        "DEFAULT_TIMEOUT TICK",
    ),
    (
        f"{_BASE}.storage.upload",
        "mds.compat._clouds",
        f"{_UPLOADERS} {_UPLOAD}",
    ),
    (f"streaming {_BASE} {_BASE}.stream", "mds.compat._stream", "Stream"),
    (f"{_BASE}.stream {_BASE}.dataset", "mds._dataset.stream", "streams_registry"),
    (f"{_BASE}.util", "mds.compat._util", _UTIL),
    (
        f"{_BASE}.util",
        "mds.compat._util",
        _MERGING,
    ),
    (f"{_BASE}.util", "mds.compat._placeholders", "SHM_TO_CLEAN"),
    ("streaming._version", "mds.compat._names", "__version__=VERSION"),
    (f"{_BASE}.world", "mds.compat._ranks", "World"),
    (
        "streaming.multimodal streaming.multimodal.webvid",
        "mds.compat._domains",
        "StreamingInsideWebVid StreamingOutsideDTWebVid StreamingOutsideGIWebVid",
    ),
    (
        "streaming.text",
        "mds.compat._domains",
        "StreamingC4 StreamingEnWiki StreamingPile",
    ),
    ("streaming.text.c4", "mds.compat._domains", "StreamingC4"),
    ("streaming.text.enwiki", "mds.compat._domains", "StreamingEnWiki"),
    ("streaming.text.pile", "mds.compat._domains", "StreamingPile"),
    (
        "streaming.vision",
        "mds.compat._domains",
        "StreamingADE20K StreamingCIFAR10 StreamingCOCO StreamingImageNet",
    ),
    ("streaming.vision.ade20k", "mds.compat._domains", "StreamingADE20K"),
    ("streaming.vision.base", "mds.compat._domains", "StandardTransform StreamingVisionDataset"),
    ("streaming.vision.convert.base", "mds.compat._writers", "MDSWriter"),
    (f"{_BASE}.stream streaming.multimodal.webvid", "mds.compat._placeholders", "TICK"),
    ("streaming.vision.cifar10", "mds.compat._domains", "StreamingCIFAR10"),
    ("streaming.vision.coco", "mds.compat._domains", "StreamingCOCO"),
    ("streaming.vision.convert", "mds.compat._domains", ""),
    ("streaming.vision.convert.base", "mds.compat._domains", "convert_image_class_dataset"),
    ("streaming.vision.imagenet", "mds.compat._domains", "StreamingImageNet"),
)


#: Module that defines names -> names, separated by spaces -> modules that import them from there.
#: A module without ``streaming.`` is below ``streaming.base``.
_IMPORTED = {
    "array": {
        "Array": "dataset format.base.reader local",
    },
    "compression": {
        "compress get_compression_extension is_compression": "format.base.writer",
        "decompress": "stream",
    },
    "dataset": {
        "StreamingDataset": (
            "dataloader streaming.multimodal.webvid streaming.text.c4 streaming.text.enwiki "
            "streaming.text.pile streaming.vision.ade20k streaming.vision.base "
            "streaming.vision.coco"
        ),
        "_Iterator": "streaming.multimodal.webvid",
    },
    "distributed": {
        "maybe_init_dist": "dataset util",
        "barrier": "stream",
        "get_local_rank": "stream util",
    },
    "format": {
        "reader_from_json": "local stream",
    },
    "format.base.reader": {
        "FileInfo": "format.json.reader format.mds.reader format.xsv.reader stream",
        "SplitReader": "format.json.reader format.xsv.reader",
        "JointReader": "format.mds.reader",
        "Reader": "stream",
    },
    "format.base.writer": {
        "SplitWriter": "format.json.writer format.xsv.writer",
        "JointWriter": "format.mds.writer",
    },
    "format.index": {
        "get_index_basename": "dataset format.base.writer local stream util",
    },
    "format.json.encodings": {
        "is_json_encoded is_json_encoding": "format.json.writer",
    },
    "format.json.reader": {
        "JSONReader": "format",
    },
    "format.mds.encodings": {
        "is_mds_encoding_safe mds_decode": "format.mds.reader",
        "get_mds_encoded_size get_mds_encodings is_mds_encoding mds_encode": "format.mds.writer",
    },
    "format.mds.reader": {
        "MDSReader": "format",
    },
    "format.xsv.encodings": {
        "xsv_decode": "format.xsv.reader",
        "is_xsv_encoding xsv_encode": "format.xsv.writer",
    },
    "format.xsv.reader": {
        "CSVReader TSVReader XSVReader": "format",
    },
    "hashing": {
        "is_hash": "format.base.writer",
        "get_hash": "format.base.writer stream",
    },
    "partition": {
        "get_partitions": (
            "batching.device_per_stream batching.per_stream batching.random batching.stratified"
        ),
    },
    "partition.orig": {
        "get_partitions_orig": "partition.relaxed",
    },
    "registry_utils": {
        "construct_from_registry": "dataset",
        "create_registry": "stream",
    },
    "sampling": {
        "get_sampling": "dataset",
    },
    "shared.array": {
        "SharedArray": "dataset shared.barrier shared.scalar",
    },
    "shared.barrier": {
        "SharedBarrier": "dataset",
    },
    "shared.memory": {
        "SharedMemory": "dataset shared.array",
    },
    "shared.prefix": {
        "get_shm_prefix": "dataset",
        "_get_path": "dataset util",
    },
    "shared.scalar": {
        "SharedScalar": "dataset",
    },
    "shuffle": {
        "get_shuffle": (
            "batching.device_per_stream batching.per_stream batching.random batching.stratified"
        ),
    },
    "spanner": {
        "Spanner": "dataset local",
    },
    "storage.download": {
        "CloudDownloader": "stream streaming.multimodal.webvid",
    },
    "storage.upload": {
        "CloudUploader": "format.base.writer",
    },
    "stream": {
        "Stream": "dataset",
    },
    "util": {
        "number_abbrev_to_int": "dataset",
        "bytes_to_int": "dataset format.base.reader format.base.writer",
        "get_import_exception_message": "storage.download storage.upload",
        "retry": "storage.upload stream",
        "wait_for_file_to_exist": "stream",
    },
    "world": {
        "World": (
            "batching batching.device_per_stream batching.per_stream batching.random "
            "batching.stratified dataloader dataset shared.prefix stream"
        ),
    },
    "streaming.vision.base": {
        "StreamingVisionDataset": "streaming.vision.cifar10 streaming.vision.imagenet",
    },
}


def _full_name(module: str) -> str:
    return module if module.startswith("streaming.") else f"{_BASE}.{module}"


def _by_module() -> dict[str, dict[str, tuple[str, str]]]:
    """Return `MODULES`, made of both tables: module of streaming -> name -> object of mds.

    An object of mds is described by (module of mds, name in it). For example, the row
    ``("streaming streaming.base", "mds.compat._writers", "MDSWriter CSVWriter")`` of `_TABLE` gives
    both modules both names.
    """
    modules: dict[str, dict[str, tuple[str, str]]] = {}
    for streaming_modules, mds_module, names in _TABLE:
        for streaming_module in streaming_modules.split():
            objects = modules.setdefault(streaming_module, {})
            for name in names.split():
                # "Int=TextInt" means Int of streaming and TextInt of mds, "List" both.
                streaming_name, _, mds_name = name.partition("=")
                objects[streaming_name] = (mds_module, mds_name or streaming_name)
    for defining_module, imports in _IMPORTED.items():
        definitions = modules[_full_name(defining_module)]
        for names, importers in imports.items():
            for importer in map(_full_name, importers.split()):
                for name in names.split():
                    modules[importer].setdefault(name, definitions[name])
    return modules


#: Module of mosaicml-streaming -> name -> (module of mds, name in it).
MODULES = _by_module()

#: Private names of mosaicml-streaming that mds does not have; setting one raises an error.
MISSING_PRIVATE_NAMES = {
    "streaming.base.shuffle.py2s": {"_Shard", "_create_shards", "_partition", "_shards_to_samples"},
    "streaming.base.storage.download": {"_register_cloud_downloader_subclasses"},
}

#: Modules of mosaicml-streaming that mds does not have, and what to use instead.
ABSENT = {
    "streaming.text.convert": "Use the command mds-convert (see docs/convert.md).",
    "streaming.multimodal.convert": "Use the command mds-convert (see docs/convert.md).",
    "streaming.simulation": (
        "There is no simulator. What a run holds, fetches and keeps is in dataset.explain(), and "
        "the order of its samples in mds.plan.EpochPlan."
    ),
    **{
        f"streaming.vision.convert.{name}": "Use the command mds-convert (see docs/convert.md)."
        for name in ("ade20k", "cifar10", "coco", "fake_cifar10", "imagenet")
    },
}
