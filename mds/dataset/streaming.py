"""StreamingDataset: samples in an order, as torch knows datasets."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from mds.dataset.samples import Samples


class StreamingDataset(Samples, IterableDataset[Any]):
    """Samples of one or several streams for a torch DataLoader, in a reproducible order.

    >>> dataset = StreamingDataset(remote="s3://bucket/c4", batch_size=32, shuffle=True)
    ... # doctest: +SKIP

    Where the data are; one of ``streams``, ``remote`` and ``local`` is needed:

    - ``streams`` (Sequence[Stream] | Mapping[str, Stream] | None, default None): Several places to
      mix samples from, by name where there is a schedule.
    - ``remote`` (str | None, default None): URL or path to read from.
    - ``local`` (str | None, default None): Folder that keeps what was fetched; without ``remote``
      the data are read there in place.
    - ``split`` (str | os.PathLike[str] | None, default None): Sub-folder of both, as ``"train"``.

    How they get here:

    - ``download_retry`` (int, default 2, tries): How often a failed request is repeated.
    - ``download_timeout`` (float, default 60, seconds): Longest wait for one request.
    - ``validate_hash`` (str | None, default None): Digest by which fetched files are checked.
    - ``keep_zip`` (bool, default False): Whether compressed files stay beside what they hold.

    How much is read, and how far ahead:

    - ``epoch_size`` (int | str | None, default None, samples): Length of an epoch; a text such as
      ``"100k"`` will do, and 0 is none.
    - ``predownload`` (int | None, default None, samples): How far ahead of each worker shards are
      fetched; None is 8 batches, or 64 samples.
    - ``cache_limit`` (int | str | None, default None, bytes): Most that the folder of a machine
      holds, also as a text such as ``"50gb"``.

    In which order:

    - ``sampling_method`` (str, default 'balanced'): Whether an epoch that takes a part of a stream
      draws it anew, whatever came before, or with ``"fixed"`` takes the same part.
    - ``sampling_granularity`` (int, default 1, samples): How many neighbours are taken together.
    - ``partition_algo`` (str, default 'relaxed'): How positions are dealt to ranks; ``"orig"``
      refuses worlds that ``"relaxed"`` takes.
    - ``num_canonical_nodes`` (int | None, default None): In how many shares the data stay together;
      None is one for each node, or 64.
    - ``batch_size`` (int | None, default None, samples): Size of one rank's batch.
    - ``shuffle`` (bool, default False): Whether samples are mixed.
    - ``shuffle_algo`` (str, default 'py1e'): Algorithm that mixes them: ``"py1e"``, ``"py1br"``,
      ``"py1b"``, ``"py1s"``, ``"py2s"``, ``"naive"``, ``"seekable"``, or a registered one.
    - ``shuffle_seed`` (int, default 9176): Number from which all random choices follow.
    - ``shuffle_block_size`` (int | None, default None, samples): How far samples are moved; None is
      4,000,000 over the canonical nodes, at least 262,144.
    - ``batching_method`` (str, default 'random'): How streams meet in batches: ``"random"``,
      ``"stratified"``, ``"per_stream"`` or ``"device_per_stream"``.
    - ``schedule`` (Schedule | None, default None): Shares of the streams that change in the course
      of the training, see `mds.Schedule`; an epoch is then of full global batches.

    How samples come:

    - ``allow_unsafe_types`` (bool, default False): Whether pickled columns are opened.
    - ``replication`` (int | None, default None, ranks): How many neighbouring ranks see the same
      samples.
    - ``stream_name`` (str, default 'stream'): Registered class of the stream that is made of
      ``remote`` and ``local``.
    - ``stream_config`` (Mapping[str, Any] | None, default None): More arguments for that class.
    - ``storage_options`` (Mapping[str, Any] | None, default None): Settings of the store, which
      come before the environment.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode.
    - ``exact`` (bool | str, default False): Whether every sample comes once over all ranks, with
      none repeated; ``"mask"`` fills batches up under a mask.
    - ``topology`` (Any, default None): Rank and world size, where they cannot be found.
    - ``images`` (str | Mapping[str, str], default 'pil'): How images come; ``"array"`` is decoded
      pixels, upright; ``{"image": "array"}`` says so of some columns.
    - ``on_error`` (str, default 'raise'): Whether a sample that does not decode is an error;
      ``"skip"`` leaves it out, see ``skipped``.
    - ``copy`` (bool, default True): Whether arrays are the caller's own; False gives read-only
      views of the files, and writing into one through torch ends the process.
    - ``format`` (str | Format | None, default None): What files are read as they lie, such as
      ``"parquet"`` or ``Parquet(columns=["text"])``; None goes by their endings.
    - ``packing`` (Packing | None, default None): Packs of documents instead of samples: full
      sequences without padding; ``batch_size`` counts packs then. See `Packing`.

    Raises ConfigError (a ValueError) for arguments that make no sense, IndexFileError (a
    ValueError) for a broken index, NotFoundError (a FileNotFoundError) for a missing one.
    """
