"""Names that modules of the incumbent import from each other; some code imports them from there.

Read a line as: at these modules, from that module, these names; ``_`` is ``streaming.base``.
"""

from __future__ import annotations

#: Modules, the module that has the names, and the names.
IMPORTED = (
    (
        "_.dataset _.format.base.reader _.local",
        "_.array",
        "Array",
    ),
    (
        "_.format.base.writer",
        "_.compression",
        "compress get_compression_extension is_compression",
    ),
    (
        "_.stream",
        "_.compression",
        "decompress",
    ),
    (
        (
            "_.dataloader streaming.multimodal.webvid streaming.text.c4 streaming.text.enwiki "
            "streaming.text.pile streaming.vision.ade20k streaming.vision.base "
            "streaming.vision.coco"
        ),
        "_.dataset",
        "StreamingDataset",
    ),
    (
        "streaming.multimodal.webvid",
        "_.dataset",
        "_Iterator",
    ),
    (
        "_.dataset _.util",
        "_.distributed",
        "maybe_init_dist",
    ),
    (
        "_.stream",
        "_.distributed",
        "barrier",
    ),
    (
        "_.stream _.util",
        "_.distributed",
        "get_local_rank",
    ),
    (
        "_.local _.stream",
        "_.format",
        "reader_from_json",
    ),
    (
        "_.format.json.reader _.format.mds.reader _.format.xsv.reader _.stream",
        "_.format.base.reader",
        "FileInfo",
    ),
    (
        "_.format.json.reader _.format.xsv.reader",
        "_.format.base.reader",
        "SplitReader",
    ),
    (
        "_.format.mds.reader",
        "_.format.base.reader",
        "JointReader",
    ),
    (
        "_.stream",
        "_.format.base.reader",
        "Reader",
    ),
    (
        "_.format.json.writer _.format.xsv.writer",
        "_.format.base.writer",
        "SplitWriter",
    ),
    (
        "_.format.mds.writer",
        "_.format.base.writer",
        "JointWriter",
    ),
    (
        "_.dataset _.format.base.writer _.local _.stream _.util",
        "_.format.index",
        "get_index_basename",
    ),
    (
        "_.format.json.writer",
        "_.format.json.encodings",
        "is_json_encoded is_json_encoding",
    ),
    (
        "_.format",
        "_.format.json.reader",
        "JSONReader",
    ),
    (
        "_.format.mds.reader",
        "_.format.mds.encodings",
        "is_mds_encoding_safe mds_decode",
    ),
    (
        "_.format.mds.writer",
        "_.format.mds.encodings",
        "get_mds_encoded_size get_mds_encodings is_mds_encoding mds_encode",
    ),
    (
        "_.format",
        "_.format.mds.reader",
        "MDSReader",
    ),
    (
        "_.format.xsv.reader",
        "_.format.xsv.encodings",
        "xsv_decode",
    ),
    (
        "_.format.xsv.writer",
        "_.format.xsv.encodings",
        "is_xsv_encoding xsv_encode",
    ),
    (
        "_.format",
        "_.format.xsv.reader",
        "CSVReader TSVReader XSVReader",
    ),
    (
        "_.format.base.writer",
        "_.hashing",
        "is_hash",
    ),
    (
        "_.format.base.writer _.stream",
        "_.hashing",
        "get_hash",
    ),
    (
        (
            "_.batching.device_per_stream _.batching.per_stream _.batching.random "
            "_.batching.stratified"
        ),
        "_.partition",
        "get_partitions",
    ),
    (
        "_.partition.relaxed",
        "_.partition.orig",
        "get_partitions_orig",
    ),
    (
        "_.dataset",
        "_.registry_utils",
        "construct_from_registry",
    ),
    (
        "_.stream",
        "_.registry_utils",
        "create_registry",
    ),
    (
        "_.dataset",
        "_.sampling",
        "get_sampling",
    ),
    (
        "_.dataset _.shared.barrier _.shared.scalar",
        "_.shared.array",
        "SharedArray",
    ),
    (
        "_.dataset",
        "_.shared.barrier",
        "SharedBarrier",
    ),
    (
        "_.dataset _.shared.array",
        "_.shared.memory",
        "SharedMemory",
    ),
    (
        "_.dataset",
        "_.shared.prefix",
        "get_shm_prefix",
    ),
    (
        "_.dataset _.util",
        "_.shared.prefix",
        "_get_path",
    ),
    (
        "_.dataset",
        "_.shared.scalar",
        "SharedScalar",
    ),
    (
        (
            "_.batching.device_per_stream _.batching.per_stream _.batching.random "
            "_.batching.stratified"
        ),
        "_.shuffle",
        "get_shuffle",
    ),
    (
        "_.dataset _.local",
        "_.spanner",
        "Spanner",
    ),
    (
        "_.stream streaming.multimodal.webvid",
        "_.storage.download",
        "CloudDownloader",
    ),
    (
        "_.format.base.writer",
        "_.storage.upload",
        "CloudUploader",
    ),
    (
        "_.dataset",
        "_.stream",
        "Stream",
    ),
    (
        "_.dataset",
        "_.util",
        "number_abbrev_to_int",
    ),
    (
        "_.dataset _.format.base.reader _.format.base.writer",
        "_.util",
        "bytes_to_int",
    ),
    (
        "_.storage.download _.storage.upload",
        "_.util",
        "get_import_exception_message",
    ),
    (
        "_.storage.upload _.stream",
        "_.util",
        "retry",
    ),
    (
        "_.stream",
        "_.util",
        "wait_for_file_to_exist",
    ),
    (
        (
            "_.batching _.batching.device_per_stream _.batching.per_stream _.batching.random "
            "_.batching.stratified _.dataloader _.dataset _.shared.prefix _.stream"
        ),
        "_.world",
        "World",
    ),
    (
        "streaming.vision.cifar10 streaming.vision.imagenet",
        "streaming.vision.base",
        "StreamingVisionDataset",
    ),
)
