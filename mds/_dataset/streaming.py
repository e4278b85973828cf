"""StreamingDataset: `Samples` as an IterableDataset of torch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from mds._dataset.samples import Samples


class StreamingDataset(Samples, IterableDataset[Any]):
    """Samples of one or several streams for a torch DataLoader, in a reproducible order.

    >>> dataset = StreamingDataset("s3://bucket/c4", batch_size=32, shuffle=True)
    ... # doctest: +SKIP

    Place of the data; one of ``place``, ``streams``, ``remote`` and ``local`` is needed:

    - ``place`` (path, URL or streams, default None): Path or URL of the data, given first and
      without a name. A path is read in place, as with ``local``; a URL, or a path beside ``local``,
      is fetched, as with ``remote``. A list or dict of places is ``streams``.
    - ``streams`` (list or dict of Stream, str or os.PathLike[str], default None): Several places to
      mix samples from, in a list or by name. A dict in place of a Stream has its arguments, and
      ``{"data/web": 0.7, "data/math": 0.3}`` the proportions of paths or URLs.
    - ``remote`` (str | os.PathLike[str] | None, default None): URL or path to read from.
    - ``local`` (str | os.PathLike[str] | None, default None): Folder that keeps what was fetched;
      without ``remote`` the data are read there in place.
    - ``split`` (str | os.PathLike[str] | None, default None): Sub-folder of both, as ``"train"``.

    Downloads:

    - ``download_retry`` (int, default 2, tries): Least number of tries of a request that fails. mds
      gives up after these tries if no byte has arrived for five minutes. 0 and 1 mean one try.
    - ``download_timeout`` (float, default 60, seconds): Time without a byte after which a try
      fails.
    - ``validate_hash`` (str | None, default None): Digest by which fetched files are checked, such
      as ``"sha1"`` or ``"xxh3_64"``, of those that the writer stored (``hashes=``).
    - ``keep_zip`` (bool, default False): Whether compressed files are kept beside the decompressed
      ones.

    Amounts:

    - ``epoch_size`` (int | str | None, default None, samples): Length of an epoch; a text such as
      ``"100k"`` is accepted, and 0 gives an empty epoch.
    - ``predownload`` (int | None, default None, samples): How far ahead of each worker shards are
      fetched; None is 8 batches, or 64 samples.
    - ``cache_limit`` (int | str | None, default None, bytes): Maximum size of the cache folder of a
      machine, also as a text such as ``"50gb"`` or ``"50 GiB"``. A kb is 1,024 bytes.

    Order:

    - ``sampling_method`` ("balanced" or "fixed", default 'balanced'): How an epoch draws a part of
      a stream: ``"balanced"`` draws another part in each epoch, ``"fixed"`` always the same.
    - ``sampling_granularity`` (int, default 1, samples): Number of neighbours drawn together.
    - ``partition_algo`` ("relaxed" or "orig", default 'relaxed'): How positions are dealt to ranks;
      ``"orig"`` refuses some numbers of nodes that ``"relaxed"`` accepts.
    - ``num_canonical_nodes`` (int | None, default None): Number of parts of the data that are
      shuffled separately, which the order depends on. None is one for each node, or 64 for each
      with the shuffles ``"py1s"`` and ``"py2s"``.
    - ``batch_size`` (int | None, default None, samples): Size of one rank's batch.
    - ``shuffle`` (bool, default False): Whether samples are shuffled.
    - ``shuffle_algo`` (str, default 'py1e'): Algorithm of the shuffle: ``"py1e"``, ``"py1br"``,
      ``"py1b"``, ``"py1s"``, ``"py2s"``, ``"naive"``, ``"seekable"``, or a registered one.
    - ``shuffle_seed`` (int, default 9176): Seed of all random choices.
    - ``shuffle_block_size`` (int | None, default None, samples): Range within which samples are
      moved. None is 4,000,000 over the canonical nodes, at least 262,144.
    - ``batching_method`` (str, default 'random'): How streams are mixed in batches: ``"random"``,
      ``"stratified"``, ``"per_stream"`` or ``"device_per_stream"``.
    - ``schedule`` (Schedule | Mapping | None, default None): Shares of the streams that change
      during the training, see `mds.Schedule`; a dict is its milestones, as in ``{0: {"web": 9,
      "math": 1}}``. An epoch then consists of full global batches.

    Samples:

    - ``allow_unsafe_types`` (bool, default False): Whether pickled columns are decoded, which runs
      code that the writer of the data chose.
    - ``replication`` (int | None, default None, ranks): Number of neighbouring ranks that get the
      same samples.
    - ``stream_name`` (str, default 'stream'): Registered class of the stream that is made from
      ``remote`` and ``local``.
    - ``stream_config`` (Mapping[str, Any] | None, default None): More arguments for that class.
    - ``storage_options`` (Mapping[str, Any] | None, default None): Settings of the store of a URL,
      which take precedence over the environment. Refused beside paths only.
    - ``columns`` (Sequence[str] | None, default None): Columns to decode; None is all.
    - ``remainder`` ("repeat", "short" or "mask", default 'repeat'): How ranks share samples that do
      not divide evenly: ``"repeat"`` repeats some, so that all ranks get equally many. With
      ``"short"`` and ``"mask"`` each sample comes once over all ranks: ``"short"`` gives some ranks
      fewer, and ``"mask"`` fills the last batches with samples under a mask.
    - ``topology`` (Any, default None): Data-parallel rank and number of these ranks, such as
      ``(0, 2)``, if they cannot be found; or the data-parallel dimensions of a DeviceMesh, such as
      ``mesh["dp"]`` or ``mesh["dp_replicate", "dp_shard"]``.
    - ``images`` ("pil" or "array", or a mapping to them, default 'pil'): Form of images: ``"pil"``,
      or ``"array"`` for decoded, upright pixels. ``{"image": "array"}`` sets it for some columns.
    - ``on_error`` ("raise" or "skip", default 'raise'): Whether a sample that cannot be decoded is
      an error; ``"skip"`` leaves it out, see ``skipped``. Then the pixels of images are decoded at
      once, to find damaged ones.
    - ``copy`` (bool, default True): Whether arrays are copies. False gives read-only views of the
      files; writing into one through torch ends the process.
    - ``format`` (str | Format | None, default None): Format of files that are read without
      conversion, such as ``"parquet"`` or ``Parquet(columns=["text"])``. None chooses by the
      endings of the files, and MDS for all others.
    - ``packing`` (Packing | int | None, default None): Packs of documents instead of samples, which
      are full sequences without padding; ``batch_size`` then counts packs, and a loop over the
      dataset itself gives one pack after the other. A number is the tokens of a pack: ``8192`` is
      ``Packing(8192)``. ``len()`` counts documents all the same.

    Raises ConfigError (a ValueError) for invalid arguments, IndexFileError (a
    ValueError) for a broken index, NotFoundError (a FileNotFoundError) for a missing one.
    """
