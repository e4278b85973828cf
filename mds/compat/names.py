"""Which names live at which dotted path of the incumbent, and where they live here.

Read a line as: at these modules, from this module of ours, these names (``name=ours`` where ours is
called otherwise).
"""

from __future__ import annotations

#: The version of the incumbent whose names these are; code compares it.
VERSION = "0.13.0"

_CLASSES = (
    "CSVWriter JSONWriter LocalDataset MDSWriter Stream StreamingDataLoader StreamingDataset "
    "TSVWriter XSVWriter"
)
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
_ENCODINGS = (
    "get_mds_encoded_size get_mds_encodings is_mds_encoding is_mds_encoding_safe mds_decode "
    "mds_encode _encodings Encoding Bytes Str Int UInt8 UInt16 UInt32 UInt64 Int8 Int16 Int32 "
    "Int64 Float16 Float32 Float64 StrInt StrFloat StrDecimal NDArray PIL JPEG PNG JPEGArray "
    "Pickle JSON"
)
_UTIL = (
    "bytes_to_int clean_stale_shared_memory get_import_exception_message get_list_arg "
    "number_abbrev_to_int retry wait_for_file_to_exist"
)
_COLLECTIVES = (
    "all_gather all_gather_object barrier broadcast get_local_rank get_local_world_size "
    "get_rank get_world_size maybe_init_dist"
)
_BASE = "streaming.base"

_TABLE = (
    (f"streaming {_BASE}", "mds", _CLASSES),
    (f"{_BASE}.array", "mds.compat.shapes", "Array"),
    (f"{_BASE}.batching", "mds.compat.orders", "batching_methods generate_work"),
    (
        f"{_BASE}.compression",
        "mds.compat.codecs",
        "compress decompress get_compression_extension get_compressions is_compression",
    ),
    (f"{_BASE}.constant", "mds.compat.shapes", "TICK"),
    (
        f"{_BASE}.converters",
        "mds.writers.engines",
        "SPARK_TO_MDS dataframe_to_mds infer_dataframe_schema is_json_compatible",
    ),
    (f"{_BASE}.dataloader", "mds", "StreamingDataLoader"),
    (f"{_BASE}.dataset", "mds", "StreamingDataset"),
    (
        f"{_BASE}.distributed",
        "mds.compat.ranks",
        _COLLECTIVES,
    ),
    (f"{_BASE}.format", "mds", _WRITERS),
    (f"{_BASE}.format", "mds.compat.shapes", "FileInfo Reader get_index_basename reader_from_json"),
    (f"{_BASE}.format.base", "mds.compat.shapes", "FileInfo Reader"),
    (f"{_BASE}.format.base.reader", "mds.compat.shapes", "FileInfo Reader"),
    (f"{_BASE}.format.base.writer", "mds.writers", "Writer"),
    (f"{_BASE}.format.index", "mds.compat.shapes", "get_index_basename"),
    (f"{_BASE}.format.json {_BASE}.format.json.writer", "mds", "JSONWriter"),
    (f"{_BASE}.format.mds {_BASE}.format.mds.writer", "mds", "MDSWriter"),
    (f"{_BASE}.format.mds.encodings", "mds.compat.codecs", _ENCODINGS),
    (
        f"{_BASE}.format.xsv {_BASE}.format.xsv.writer",
        "mds",
        "CSVWriter TSVWriter XSVWriter",
    ),
    (f"{_BASE}.hashing", "mds.compat.codecs", "get_hash get_hashes is_hash"),
    (f"{_BASE}.local", "mds", "LocalDataset"),
    (f"{_BASE}.partition", "mds.plan", "get_partitions"),
    (f"{_BASE}.partition", "mds.compat.orders", "algos=partition_algos"),
    (
        f"{_BASE}.registry_utils",
        "mds.compat.registries",
        "TypedRegistry construct_from_registry create_registry import_file save_registry",
    ),
    (f"{_BASE}.sampling", "mds.plan", "get_sampling"),
    (f"{_BASE}.shuffle", "mds.shuffle", "get_shuffle"),
    (f"{_BASE}.shuffle", "mds.compat.orders", "algos=shuffle_algos"),
    (f"{_BASE}.spanner", "mds.compat.shapes", "Spanner"),
    (
        f"{_BASE}.storage",
        "mds.compat.clouds",
        f"{_DOWNLOADERS} {_UPLOADERS} download_file",
    ),
    (f"{_BASE}.storage.download", "mds.compat.clouds", f"{_DOWNLOADERS} download_file"),
    (
        f"{_BASE}.storage.upload",
        "mds.compat.clouds",
        f"{_UPLOADERS} AlipanUploader DBFSUploader DatabricksUnityCatalogUploader",
    ),
    (f"{_BASE}.stream", "mds.stream", "Stream streams_registry"),
    (f"{_BASE}.util", "mds.compat.util", _UTIL),
    (f"{_BASE}.util", "mds.writers", "merge_index"),
    (f"{_BASE}.world", "mds", "World"),
    (
        "streaming.multimodal streaming.multimodal.webvid",
        "mds.compat.multimodal",
        "StreamingInsideWebVid StreamingOutsideDTWebVid StreamingOutsideGIWebVid",
    ),
    (
        "streaming.text",
        "mds.compat.text",
        "StreamingC4 StreamingEnWiki StreamingPile",
    ),
    ("streaming.text.c4", "mds.compat.text", "StreamingC4"),
    ("streaming.text.enwiki", "mds.compat.text", "StreamingEnWiki"),
    ("streaming.text.pile", "mds.compat.text", "StreamingPile"),
    (
        "streaming.vision",
        "mds.compat.vision",
        "StreamingADE20K StreamingCIFAR10 StreamingCOCO StreamingImageNet",
    ),
    ("streaming.vision.ade20k", "mds.compat.vision", "StreamingADE20K"),
    ("streaming.vision.base", "mds.compat.vision", "StreamingVisionDataset"),
    ("streaming.vision.cifar10", "mds.compat.vision", "StreamingCIFAR10"),
    ("streaming.vision.coco", "mds.compat.vision", "StreamingCOCO"),
    ("streaming.vision.convert", "mds.compat.vision", ""),
    ("streaming.vision.convert.base", "mds.compat.vision", "convert_image_class_dataset"),
    ("streaming.vision.imagenet", "mds.compat.vision", "StreamingImageNet"),
)


def _by_module() -> dict[str, dict[str, tuple[str, str]]]:
    modules: dict[str, dict[str, tuple[str, str]]] = {}
    for places, home, names in _TABLE:
        found = {}
        for name in names.split():
            there, _, here = name.partition("=")
            found[there] = (home, here or there)
        for place in places.split():
            modules.setdefault(place, {}).update(found)
    return modules


#: Module of the incumbent -> name -> (module of ours, name in it).
MODULES = _by_module()

#: Modules that have no counterpart, and what to do about it.
ABSENT = {
    "streaming.base.shared": (
        "Nothing is shared by name here, so there is nothing to lock, to count or to clean up: "
        "drop the import."
    ),
    "streaming.text.convert": "Use the command mds-convert (see docs/convert.md).",
    "streaming.multimodal.convert": "Use the command mds-convert (see docs/convert.md).",
    "streaming.simulation": "Use the command mds simulate.",
    **{
        f"streaming.vision.convert.{name}": "Use the command mds-convert (see docs/convert.md)."
        for name in ("ade20k", "cifar10", "coco", "fake_cifar10", "imagenet")
    },
}
