"""Words of other libraries, and what to write for them in this one.

Errors about unknown arguments, attributes and names of the package consult these tables before they
compare spellings. A word is in a table if its meaning in torch, `datasets`, litdata, webdataset,
tf.data or mosaicml-streaming is clear. To add one, write it beside the words of the same meaning.

An advice is a sentence in which ``{value}`` is the value that was given, ``{name}`` the word, and
``{owner}`` the name of the user's class. Each class has a table, since the same word may have
another remedy in another class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mds import errors

_PLACE = {
    "input_dir data_dir dataset_dir base_dir dir path paths data_path dataset_path folder dirname "
    "directory root source src url urls uri filename file files data_files name_or_path location "
    "place": "Give the path or the URL first, without a name: {owner}({value}).",
    "cache_dir cache_folder cache_path cachedir local_dir local_path local_cache download_dir": (
        "Write local={value}, the folder for fetched files."
    ),
    "remote_dir remote_path remote_url cloud": "Write remote={value}.",
    "subset subdir": "Write split={value}, a folder below.",
    "file_format filetype file_type data_format data_type": "Write format={value}.",
    "retries max_retries num_retries retry": "Write download_retry={value}.",
    "timeout request_timeout read_timeout": "Write download_timeout={value}, in seconds.",
    "checksum verify_checksum hash hashes": "Write validate_hash='xxh3_64', or another digest.",
}
_CLIENTS = {
    "client s3_client fs filesystem session boto_session store": (
        "A client cannot be copied to other threads and processes. Write its settings instead: "
        "storage_options={{'endpoint_url': ..., 'aws_access_key_id': ..., "
        "'aws_secret_access_key': ...}}."
    ),
    "client_kwargs s3_kwargs fs_kwargs filesystem_kwargs config_kwargs session_options "
    "client_options gcs_kwargs": "Write storage_options={{...}}; docs/storage.md lists the names.",
}
#: Storage options that are given as arguments, and their names in ``storage_options``.
_STORAGE_OPTIONS = {
    **dict.fromkeys(
        ("endpoint_url", "endpoint", "aws_endpoint_url", "s3_endpoint"), "endpoint_url"
    ),
    **dict.fromkeys(("region", "region_name", "aws_region"), "region_name"),
    **dict.fromkeys(("profile", "profile_name", "aws_profile"), "profile_name"),
    **dict.fromkeys(("anon", "anonymous", "no_sign_request", "unsigned"), "anonymous"),
    **dict.fromkeys(
        ("key", "access_key", "access_key_id", "aws_access_key_id"), "aws_access_key_id"
    ),
    **dict.fromkeys(
        ("secret", "secret_key", "secret_access_key", "aws_secret_access_key"),
        "aws_secret_access_key",
    ),
    **dict.fromkeys(("session_token", "aws_session_token"), "aws_session_token"),
    **dict.fromkeys(("token", "hf_token"), "token"),
    **{name: name for name in ("requester_pays", "account_name", "account_key", "sas_token")},
    **{name: name for name in ("connection_string", "credentials_file", "revision")},
}
_RANKS = (
    "rank world_size num_replicas dp_rank dp_world_size process_index process_count num_processes "
    "shard_id num_shards shard_count distributed_env"
)
_TOPOLOGY = "The launcher sets the ranks; topology=(rank, world_size) replaces them."
_CAUGHT = (
    "Catch the exception in the function, return a marker for such a sample, and drop it with "
    "filter(function)."
)
_BAD_SAMPLES = (
    "ignore_errors skip_errors skip_bad handler on_bad_lines error_handler error_handling errors "
    "ignore_corrupt skip_corrupt bad_samples"
)
_LENGTH_OF_PACKS = (
    "max_length seq_len seq_length max_seq_len max_seq_length sequence_length context_length "
    "max_tokens block_size chunk_size"
)
#: Arguments of a dataset and of a loader; each is refused by the other class.
_OF_A_DATASET = (
    "cache_limit columns epoch_size format images local packing predownload remote "
    "replication schedule shuffle_algo shuffle_block_size shuffle_seed streams storage_options "
    "topology"
)
OF_A_LOADER = (
    "num_workers prefetch_factor pin_memory persistent_workers drop_last collate_fn worker_init_fn "
    "multiprocessing_context microbatches worker_type"
)

_REPORT = "Write print(loader.report()) after some batches of a StreamingDataLoader."
_HISTORY = (
    "A run records no samples: mds.RunHistory(loader.state_dict()) computes the "
    "samples of every step."
)

#: Arguments of `map`, `filter` and `map_batches`.
_OF_FUNCTIONS = {
    "batched batch_size": (
        "Write StreamingDataLoader(dataset.map_batches(function), batch_size=...): the function "
        "takes a batch of the loader, as a dict of columns."
    ),
    "num_proc num_parallel_calls num_workers max_workers": (
        "The workers of the loader call it: StreamingDataLoader(dataset, num_workers={value})."
    ),
    "fn func f callback predicate": "Give the function first: {owner}({value}).",
    "remove_columns": (
        "The function returns the complete new sample, as in lambda sample: "
        "{{'id': sample['id']}}. Leave the columns out of its dict."
    ),
    "input_columns": "The function takes the whole sample, as in lambda sample: sample['text'].",
    "with_indices with_rank": (
        "The function gets only the sample. Store its number as a column, as in "
        "mds.convert(({{**sample, 'index': i}} for i, sample in enumerate(dataset)), out)."
    ),
    "fn_kwargs": "Write functools.partial(function, ...).",
    f"{_BAD_SAMPLES} on_error": _CAUGHT,
    "seed": (
        "A function with an argument rng gets a random generator; shuffle_seed= of the dataset "
        "seeds it."
    ),
    "load_from_cache_file cache_file_name keep_in_memory writer_batch_size desc features": (
        "Leave it out: samples are changed when they are read, and are not stored."
    ),
}

#: Advice for words that were given as arguments: by class, and by words separated by spaces.
ARGUMENTS: dict[str, dict[str, str]] = {
    "OrderEdits.replace_samples": {
        "why": "Write reason={value}.",
        "samples numbers indices sample_ids": "Give the numbers of the samples first.",
        "step from_step": "Write at_step={value}.",
    },
    "OrderEdits.skip_steps": {"range start stop": "Give the steps first, as in range(a, b)."},
    "OrderEdits.set_weights": {"step from_step": "Write at_step={value}."},
    **dict.fromkeys(
        ("Samples.map", "Samples.filter", "Samples.map_batches", "LocalDataset.map"), _OF_FUNCTIONS
    ),
    "Samples": {
        **_PLACE,
        **_CLIENTS,
        "max_cache_size cache_size max_cache_bytes cache_size_limit max_size cache_bytes "
        "disk_limit": "Write cache_limit={value}.",
        "seed random_seed random_state": "Write shuffle_seed={value}.",
        "buffer_size shuffle_buffer shuffle_buffer_size shuffle_size shuffle_files "
        "reshuffle_each_iteration": (
            "Write shuffle=True: it needs no buffer, and each epoch has a different order."
        ),
        "transform transforms map_fn preprocess processor map_function transform_fn": (
            "Write {owner}(...).map({value})."
        ),
        "collate": "Write StreamingDataLoader(dataset, collate_fn={value}).",
        OF_A_LOADER: "The loader takes it: StreamingDataLoader(dataset, {name}={value}).",
        "num_proc workers": "Write StreamingDataLoader(dataset, num_workers={value}).",
        "limit take n max_samples num_samples n_samples sample_limit max_examples": (
            "Write {owner}(...).limit({value})."
        ),
        "subsample fraction frac": (
            "Write {owner}(...).split([{value}, 1 - {value}])[0] for about this share, or "
            ".limit(n)."
        ),
        "weights weight probabilities probs proportions proportion": (
            "Write streams=[Stream(..., proportion=...), Stream(..., proportion=...)]."
        ),
        "choose": "Write streams=[Stream(..., {name}={value})].",
        "repeat": (
            "Each loop over the dataset is an epoch, and with remainder='short' no sample repeats. "
            "streams=[Stream(..., repeat=2)] reads a stream twice in an epoch."
        ),
        _RANKS: _TOPOLOGY,
        _BAD_SAMPLES: "Write on_error='skip'.",
        "exact": (
            "Write remainder='short' instead of True, remainder='mask' instead of 'mask', and "
            "remainder='repeat' instead of False."
        ),
        "allow_repeats no_repeats pad padding": "Write remainder='short': no sample is repeated.",
        "batch bs batchsize": "Write batch_size={value}.",
        "prefetch prefetch_size max_pre_download": "Write predownload={value}, in samples.",
        "fields usecols select_columns keys": "Write columns={value}.",
        "epochs num_epochs": "Leave it out: each loop over the dataset is the next epoch.",
        "epoch": "Write dataset.next_epoch = {value} after creating the dataset.",
        "streaming": "Leave it out: samples are always fetched when they are needed.",
        "allow_pickle trust_remote_code unsafe": "Write allow_unsafe_types={value}.",
        "algo shuffle_type": "Write shuffle_algo={value}.",
        _LENGTH_OF_PACKS: "Write packing={value}, the number of tokens of a pack.",
        "item_loader pack": (
            "Write packing=8192 for packs of 8,192 tokens. Each pack is a dict with a key 'tokens'."
        ),
        "pack_as layout": "Write packing=Packing(..., layout={value}).",
        "start_step skip_steps resume resume_from state": (
            "Write loader.load_state_dict(state), with the state of loader.state_dict()."
        ),
        "profile profile_batches": _REPORT,
        "history run_history": _HISTORY,
        "return_index return_indices with_index with_indices": (
            "Store the number of a sample as a column when you write the dataset."
        ),
    },
    "Stream": {
        **_PLACE,
        **_CLIENTS,
        "weight weights probability ratio fraction share p": "Write proportion={value}.",
        "epochs times upsample": "Write repeat={value}.",
        "num_samples samples limit take n max_samples": "Write choose={value}.",
        "batch_size shuffle cache_limit columns images on_error predownload shuffle_seed": (
            "The dataset takes it: StreamingDataset(streams=[...], {name}={value})."
        ),
        "seed random_seed": (
            "The dataset takes it: StreamingDataset(streams=[...], shuffle_seed={value})."
        ),
        "name": "Give the streams by name: StreamingDataset({{{value}: Stream(...)}}).",
        "transform map_fn": "Write StreamingDataset(...).map({value}).",
    },
    "StreamingDataLoader": {
        "batch bs batchsize": "Write batch_size={value}.",
        "num_proc n_workers num_threads threads max_workers workers": (
            "Write num_workers={value}."
        ),
        "collate": "Write collate_fn={value}.",
        "prefetch prefetch_batches": "Write prefetch_factor={value}, batches of each worker.",
        "seed random_seed": (
            "The dataset shuffles: StreamingDataset(..., shuffle=True, shuffle_seed={value})."
        ),
        "buffer_size shuffle_buffer shuffle_buffer_size": (
            "The dataset shuffles, without a buffer: StreamingDataset(..., shuffle=True)."
        ),
        "transform transforms map_fn": "Write StreamingDataLoader(dataset.map({value})).",
        "limit max_samples num_samples": "Write StreamingDataLoader(dataset.limit({value})).",
        "on_error": (
            "Give it to the dataset, for samples that cannot be read: StreamingDataset(..., "
            f"on_error={{value}}). For errors of a function: {_CAUGHT[0].lower()}{_CAUGHT[1:]}"
        ),
        _OF_A_DATASET: "The dataset takes it: StreamingDataset(..., {name}={value}).",
        _RANKS: (
            "The launcher sets the ranks; topology=(rank, world_size) of the dataset replaces them."
        ),
        _BAD_SAMPLES: (
            "Give it to the dataset: StreamingDataset(..., on_error='skip') leaves out samples "
            "that cannot be read."
        ),
        _LENGTH_OF_PACKS: "The dataset makes packs: StreamingDataset(..., packing={value}).",
        "pack_as layout": (
            "Write Packing(..., layout={value}) for the argument packing of the dataset."
        ),
        "profile profile_batches": "Write print(loader.report()) after some batches.",
        "history run_history": _HISTORY,
        "epochs num_epochs": "Leave it out: each loop over the loader is the next epoch.",
        "drop_remainder drop_incomplete": "Write drop_last={value}.",
        "start_step skip_steps resume resume_from state state_dict": (
            "Write loader.load_state_dict(state), with the state of loader.state_dict()."
        ),
    },
    "Writer": {
        **_CLIENTS,
        "path dir dirname folder directory output output_dir output_path out_dir out_path dest "
        "destination root url remote local filename data_dir": "Write out={value}.",
        "schema features fields dtypes encodings column_types": "Write columns={value}.",
        "chunk_bytes max_shard_size shard_size shard_bytes maxsize max_size max_bytes": (
            "Write size_limit={value}."
        ),
        "chunk_size maxcount samples_per_file rows_per_shard max_samples": (
            "Write samples_per_shard={value}."
        ),
        "codec compress": "Write compression={value}.",
        "hash checksum checksums digest": "Write hashes=['xxh3_64'], or other digests.",
        "num_workers workers num_proc threads num_threads": "Write max_workers={value}.",
        "overwrite force": "Write exist_ok={value}: the old dataset is deleted.",
        "mode append": (
            "A dataset cannot be appended to. Write a second one next to it, then "
            "mds.merge_index(folder)."
        ),
        "retries max_retries num_retries": "Write retry={value}.",
        "progress verbose tqdm": "Write progress_bar={value}.",
    },
    "Packing": {
        f"{_LENGTH_OF_PACKS} size pack_size": (
            "Give the number of tokens first: {owner}({value}), as in "
            "StreamingDataset(..., packing={owner}({value})). With layout='dense', packs are rows "
            "of one length."
        ),
        "split": (
            "Write overflow='split', which cuts only long documents, or packer='concat', which "
            "fills every pack."
        ),
        "lengths length columns field token_column": "Write column={value}, the column of tokens.",
        "strategy algorithm algo method policy": "Write packer={value}, one of docs/packing.md.",
        "eos eos_id eos_token_id sep_token_id": "Write separator={value}.",
        "truncate truncation": "Write overflow='truncate'.",
        "pad pad_id pad_token_id padding": (
            "Leave it out: packs are full. With layout='dense', each pack is a row with padding at "
            "its end."
        ),
        "pack_as": "Write layout={value}.",
    },
    "RunHistory": {
        "places place remote local streams url urls paths": "Write data={value}.",
        "checkpoint file path state_dict loader": "Give the state first: {owner}({value}).",
    },
    "Schedule": {
        "steps boundaries weights proportions": (
            "Give the weights by milestone first: {owner}({{0: {{'web': 0.9, 'math': 0.1}}, "
            "1000: {{'web': 0.5, 'math': 0.5}}}})."
        ),
        "interpolation interpolate mode curve kind": "Write between={value}.",
        "units": "Write unit={value}.",
        "on_exhausted stopping_strategy": "Write exhausted={value}.",
        "spent": "Write exhausted={value}, with 'repeat' instead of 'again'.",
    },
}

#: Advice for arguments that are missing, by class.
MISSING = {
    "Writer": {
        "columns": (
            "Write {owner}(out, {{'text': 'str', 'label': 'int'}}), or mds.convert(samples, out), "
            "which finds the columns itself."
        )
    }
}
#: Advice for methods that are called with several values in place of a list; ``{value}`` is it.
SURPLUS = {
    "Samples.select": (
        "Give the numbers of samples in a list. For columns, write StreamingDataset(..., "
        "columns={value})."
    ),
    "Samples.split": (
        "Give the parts in a list: split({value}) for about these shares. Numbers of samples, as "
        "in split([100, 20]), are exact."
    ),
}

_LIMIT = "Write dataset.limit(n), or dataset[:n] for a list of samples."
_LOADER = "Write StreamingDataLoader(dataset, batch_size=...)."
_COLUMNS = "Write {owner}(..., columns=['image', 'label'])."
_MAP = "Write dataset.map(function)."
_SPLIT = (
    "Write train, test = dataset.split([0.9, 0.1]) for about these shares, or split([100, 20]) for "
    "these exact numbers; split({{'train': 0.9, 'test': 0.1}}) returns a dict."
)
_STREAMS = "Write StreamingDataset([Stream('a'), Stream('b')])."
_SAMPLES_OF_A_STEP = (
    "Write [row.sample for row in mds.RunHistory(loader.state_dict()).step(step)] for the numbers "
    "of its samples."
)
_BATCH_OF_A_STEP = (
    "Write [dataset[row.sample] for row in mds.RunHistory(loader.state_dict()).step(step)] for its "
    "samples."
)
_STEPS_OF_A_SAMPLE = (
    "Write [use.step for use in mds.RunHistory(loader.state_dict()).sample(number)] for the steps "
    "that read it."
)
_STATE = "Write loader.load_state_dict(state)."
_CONVERT = "Write mds.convert(samples, out), where samples are dicts, a table or files."

#: Advice for words that were read or called as attributes, in the same form.
ATTRIBUTES: dict[str, dict[str, str]] = {
    "Samples": {
        "take head first": _LIMIT,
        "skip": (
            "Write dataset.select(range(n, dataset.num_samples)) to leave out the first n, or "
            "dataset.edits.skip_steps(range(a, b)) for steps of a running training."
        ),
        "drop": (
            "Write dataset.filter(function) for a dataset without some samples, {owner}(..., "
            "columns=[...]) for fewer columns, or dataset.edits.replace_samples(ids) while a "
            "training runs."
        ),
        "replace_samples skip_steps": "Write dataset.edits.{name}(...).",
        "batch batched to_loader": _LOADER,
        "iter_batches to_batches": f"{_LOADER} A tensor of its batches has .numpy().",
        "padded_batch": (
            "Write StreamingDataLoader(dataset, collate_fn=pad('tokens')), with pad of "
            "mds.transforms."
        ),
        "to_tuple": "Write dataset.map(lambda sample: (sample['image'], sample['label'])).",
        "with_format set_format with_transform set_transform": (
            "Batches of a StreamingDataLoader are tensors; dataset.map(function) changes samples."
        ),
        "select_columns": _COLUMNS,
        "remove_columns drop_columns": (
            "Write {owner}(..., columns=['image', 'label']), with the columns to keep."
        ),
        "rename_column rename_columns rename": (
            "Write dataset.map(lambda sample: {{'new': sample['old'], ...}})."
        ),
        "train_test_split random_split": _SPLIT,
        "shard split_by_node split_by_worker split_dataset_by_node": (
            "Samples are divided among ranks and workers automatically. {owner}(..., "
            "batch_size=..., topology=(rank, world_size), remainder='short') gives the part of "
            "one rank."
        ),
        "set_epoch with_epoch": (
            "Each loop over the dataset is automatically the next epoch; dataset.next_epoch = n "
            "sets its number."
        ),
        "repeat": "Write a loop: each is the next epoch. Stream(..., repeat=2) repeats samples.",
        "cache persist": "Fetched shards stay in local=; cache_limit= sets its maximum size.",
        "prefetch": "Write {owner}(..., predownload=samples).",
        "column_names": "Write dataset.columns, the list of names.",
        "features dtypes encodings column_types column_encodings": (
            "Write dataset.schema, a dict with the encodings."
        ),
        "exact": "Write dataset.remainder, which is 'short' instead of True.",
        "num_rows nrows n_samples": "Write dataset.num_samples.",
        "rows iter_rows iter as_numpy_iterator": (
            "Write for sample in dataset, or for batch in StreamingDataLoader(dataset, "
            "batch_size=...)."
        ),
        "collect to_list": "Write list(dataset).",
        "to_pandas to_df to_polars to_arrow": "Write pandas.DataFrame(list(dataset)), for example.",
        "sample shuffle_dataset": (
            "Write {owner}(..., shuffle=True, epoch_size=n): each epoch takes n samples at random."
        ),
        "clear_cache delete_cache empty_cache cleanup_cache_files": (
            "Delete the folder local= when no process uses it; cache_limit= keeps it small."
        ),
        "group_by groupby partition_by": (
            "Write dataset.select(where=lambda sample: sample['label'] == 0) for each part."
        ),
        "concatenate concat zip interleave chain": _STREAMS,
        "ignore_errors": (
            "Write {owner}(..., on_error='skip') to leave out samples that cannot be read. For "
            f"errors of a function: {_CAUGHT[0].lower()}{_CAUGHT[1:]}"
        ),
        "apply pipe compose map_dict transform": _MAP,
        "pack": "Write {owner}(..., packing=8192).",
        "save save_to_disk to_parquet push_to_hub": "Write the samples with an MDSWriter.",
        "set_weights set_proportions update_weights": (
            "Write dataset.edits.set_weights([0.9, 0.1]) for a dataset with a schedule such as "
            "schedule={{0: [0.5, 0.5]}}."
        ),
        "profile diagnose why_slow report": _REPORT,
        "samples_at samples_at_step samples_of_step sample_ids lookup": _SAMPLES_OF_A_STEP,
        "get_batch": _BATCH_OF_A_STEP,
        "step_of steps_of find_sample": _STEPS_OF_A_SAMPLE,
        "order epoch_order sample_order permutation indices": (
            f"{_SAMPLES_OF_A_STEP[:-1]}, for each step of an epoch."
        ),
        "resume restore load_state set_state": _STATE,
        "get_state": "Write loader.state_dict().",
        "seed": "Write dataset.shuffle_seed.",
        "weights proportions": "Write [stream.proportion for stream in dataset.streams].",
        "path place root location": "Write dataset.streams[0].remote, or .local for its folder.",
    },
    "LocalDataset": {
        "take head first": _LIMIT,
        "skip": "Write dataset.select(range(n, len(dataset))).",
        "batch batched iter_batches": _LOADER,
        "select_columns remove_columns": _COLUMNS,
        "column_names": "Write dataset.columns, the list of names.",
        "features dtypes encodings column_types column_encodings": (
            "Write dataset.schema, a dict with the encodings."
        ),
        "num_rows nrows": "Write dataset.num_samples.",
        "state_dict load_state_dict explain map_batches": (
            "Write StreamingDataset(folder), which has it."
        ),
        "shuffle sample": "Write StreamingDataset(folder, shuffle=True).",
        "train_test_split random_split": "Write StreamingDataset(folder).split([0.9, 0.1]).",
        "shard split_by_node": "Write dataset[rank::world_size], a list of samples.",
        "group_by groupby partition_by": (
            "Write dataset.select(where=lambda sample: sample['label'] == 0) for each part."
        ),
        "to_pandas to_df to_polars to_arrow": "Write pandas.DataFrame(list(dataset)), for example.",
    },
    "StreamingDataLoader": {
        "set_epoch with_epoch": (
            "Each loop over the loader is automatically the next epoch; "
            "loader.dataset.next_epoch = n sets its number."
        ),
        "stats explain": "Write loader.dataset.{name}(), or loader.report() about waiting.",
        "profile diagnose why_slow summary throughput metrics timings": (
            "Write print(loader.report()) after some batches."
        ),
        "skip skip_steps": (
            "Write dataset.edits.skip_steps(range(a, b)) for the dataset of the loader."
        ),
        "replace_samples set_weights edits": "Write loader.dataset.edits, which has it.",
        "samples_at samples_at_step samples_of_step sample_ids lookup": _SAMPLES_OF_A_STEP,
        "get_batch": _BATCH_OF_A_STEP,
        "step_of steps_of find_sample": _STEPS_OF_A_SAMPLE,
        "resume restore load_state load set_state": _STATE,
        "get_state": "Write loader.state_dict().",
        "map filter limit select split shuffle take": (
            "Call it on the dataset before you create the loader."
        ),
    },
    "Writer": {
        "close end done save commit complete finalize": (
            "Write writer.finish(), or 'with {owner}(...) as writer:', which calls it."
        ),
        "add append add_item add_sample add_row put push write_sample write_row writerow": (
            "Write writer.write(sample)."
        ),
        "extend add_all add_items write_all write_batch write_many write_rows writerows "
        "write_samples write_table": (
            "Write 'for sample in samples: writer.write(sample)', or mds.convert(samples, out)."
        ),
    },
    "RunHistory": {
        "rows samples_at samples_at_step samples_of_step lookup get_batch steps": (
            "Write history.step(number)."
        ),
        "find step_of steps_of samples find_sample": "Write history.sample(number).",
        "compare difference differences": "Write history.diff(other).",
        "weights shares plan read_mixture": "Write history.mixture().",
    },
}

ATTRIBUTES["OrderEdits"] = {
    "drop drop_samples remove_samples replace exclude": "Write replace_samples(ids, reason=...).",
    "skip": "Write skip_steps(range(a, b)).",
    "set_proportions weights update_weights": "Write set_weights({{'web': 0.9, 'math': 0.1}}).",
    "undo revert remove clear pop": (
        "Steps that were read cannot change: load a state from before the edit, and continue "
        "without it."
    ),
}

#: Advice for names that were imported from the package, or read as its attributes.
NAMES_OF_THE_PACKAGE = {
    "open load load_dataset load_from_disk read Dataset MDSDataset from_mds IterableDataset "
    "WebDataset StreamingTextDataset from_folder ImageFolder read_parquet read_json "
    "read_jsonl scan_parquet read_images": (
        "Write mds.StreamingDataset('data/train'), which also reads Parquet, JSON Lines and tar "
        "files in place, and folders of images with format='images'."
    ),
    "read_csv from_csv open_csv scan_csv": (
        "Convert the file: mds.convert('table.csv', 'data/train'). Then write "
        "mds.StreamingDataset('data/train')."
    ),
    "MapDataset Subset": (
        "Write mds.StreamingDataset(path), which has samples by number, or mds.LocalDataset(path)."
    ),
    "DataLoader Loader Dataloader": "Write mds.StreamingDataLoader(dataset).",
    "Writer Shardwriter ShardWriter TarWriter": "Write mds.MDSWriter(out, columns).",
    "col lit Field": (
        "Write functions instead, as in dataset.filter(lambda sample: sample['id'] < 10)."
    ),
    "base vision text multimodal": (
        "The classes of streaming.base are in mds, such as mds.MDSWriter. For others, keep 'from "
        "streaming...' and begin the program with 'import mds.compat.streaming'."
    ),
    "pad ragged stack": "Write from mds.transforms import {name}.",
    "Parquet Tar JsonLines TextLines ImageFiles AudioFiles TextFiles RawFiles Arrow Delta Iceberg "
    "Megatron MetadataFiles PairedFiles": ("Write from mds.formats import {name}."),
    "mix interleave interleave_datasets sample_from_datasets RandomMix CombinedStreamingDataset "
    "MixedDataset": (
        "Write mds.StreamingDataset([mds.Stream('a', proportion=0.7), mds.Stream('b', "
        "proportion=0.3)], shuffle=True). Without shuffle=True, the whole first stream comes "
        "first. For shares that change, write schedule={{0: [0.7, 0.3], 1000: [0.5, 0.5]}}."
    ),
    "concat concat_datasets concatenate concatenate_datasets ConcatDataset ChainDataset chain": (
        "Write mds.StreamingDataset([mds.Stream('a'), mds.Stream('b')])."
    ),
    "train_test_split random_split": _SPLIT,
    "split_dataset_by_node split_by_node split_by_worker": (
        "Samples are divided among ranks and workers automatically. mds.StreamingDataset(..., "
        "batch_size=..., topology=(rank, world_size), remainder='short') gives the part of one "
        "rank."
    ),
    "warn_and_continue ignore_and_continue reraise_exception": (
        "Write mds.StreamingDataset(..., on_error='skip') to leave out samples that cannot be "
        f"read. For errors of a function: {_CAUGHT[0].lower()}{_CAUGHT[1:]}"
    ),
    "from_dict from_columns": (
        "Write mds.convert(({{'x': x, 'y': y}} for x, y in zip(xs, ys)), out), with a dict for "
        "each sample."
    ),
    "write save to_mds from_list from_generator from_pandas from_polars from_arrow "
    "from_iterable dump write_dataset convert_dataset": _CONVERT,
    "optimize": (
        "Write mds.convert(map(function, inputs), out, num_workers=...), where the function "
        "returns a sample as a dict."
    ),
    "info inspect describe": (
        "Write dataset.num_samples and dataset.schema, or print(dataset.explain()), of "
        "mds.StreamingDataset(path)."
    ),
    "profile": _REPORT,
    "samples_at": _SAMPLES_OF_A_STEP,
    "Rewind rewind History Run": "Write mds.RunHistory(state).",
    "compare compare_states compare_runs": "Write mds.RunHistory(state).diff(other_state).",
    "TokensLoader": (
        "Write mds.StreamingDataset(..., packing=8192): each pack is a dict with its 'tokens'."
    ),
}

#: The same by package.
NAMES_OF_PACKAGES = {
    "mds": NAMES_OF_THE_PACKAGE,
    "mds.storage": {
        "list ls exists get put download upload copy delete open read write": (
            "Write open_store(url); its Store has methods such as list() and get_file()."
        ),
        "S3Store GCSStore AzureStore FileSystem filesystem": "Write open_store(url).",
    },
    "mds.transforms": {
        "Compose Sequential compose": "Write dataset.map(first).map(second).",
        "ToTensor Normalize Resize CenterCrop RandomResizedCrop": (
            "Write StreamingDataLoader(dataset, collate_fn=images('image', size=224)), or "
            "dataset.map(function) with a function of torchvision."
        ),
    },
}


def argument_advice(kind: str, owner: str, name: str, value: str) -> str:
    """Return a sentence, with a space before it, for an unknown argument; '' for other names.

    Args:
        kind: Class of `mds` from which the user's class is derived, such as "Samples" or
            "MDSWriter". All writers have the table "Writer".
        owner: Name of the user's class.
        name: Name of the argument.
        value: Its value as the error shows it.

    >>> argument_advice("Samples", "StreamingDataset", "seed", "7")
    ' Write shuffle_seed=7.'
    """
    # `StreamingDataset` of the door (mds/compat) has a constructor of its own.
    kind = "Samples" if kind == "StreamingDataset" else kind
    table = "Writer" if kind.endswith("Writer") else kind
    has_options = table in ("Samples", "Stream", "Writer") and name in _STORAGE_OPTIONS
    advice = _find(ARGUMENTS.get(table, {}), name)
    is_text = value[:1] in "'\"."  # as in 'default', or ... for a secret
    if has_options and (is_text or not advice):
        option = _STORAGE_OPTIONS[name]
        advice = f"Write storage_options={{{{{option!r}: {{value}}}}}}."
    return f" {advice.format(owner=owner, name=name, value=value)}" if advice else ""


def missing_advice(kind: str, owner: str, name: str) -> str:
    """Return a sentence, with a space before it, for an argument that was not given; '' for most.

    The arguments are those of `argument_advice`.

    >>> missing_advice("MDSWriter", "MDSWriter", "columns")[:60]
    " Write MDSWriter(out, {'text': 'str', 'label': 'int'}), or m"
    """
    advice = MISSING.get("Writer" if kind.endswith("Writer") else kind, {}).get(name, "")
    return f" {advice.format(owner=owner)}" if advice else ""


def surplus_advice(kind: str, values: str) -> str:
    """Return a sentence, with a space before it, for too many values without a name; '' for most.

    ``kind`` is the class and method, and ``values`` are all values as the error shows a list.

    >>> surplus_advice("Samples.split", "[0.8, 0.2]")[:45]
    ' Give the parts in a list: split([0.8, 0.2]),'
    """
    advice = SURPLUS.get(kind, "")
    return f" {advice.format(value=values)}" if advice else ""


def setting_meant(kinds: Sequence[str], name: str) -> str:
    """Return the setting that a word of another library means; '' if there is none.

    ``kinds`` are the names of a class and its bases, of which one has a table.

    >>> setting_meant(["StreamingDataset", "Samples"], "seed")
    'shuffle_seed'
    """
    advice = next((_find(ARGUMENTS[kind], name) for kind in kinds if kind in ARGUMENTS), "")
    match = re.match(r"Write (?:dataset\.)?(\w+) ?= ?(?:\{value\}|')", advice)
    return match[1] if match else ""


def attribute_advice(kind: str, owner: str, name: str) -> str:
    """Return a sentence, with a space before it, for a missing attribute; '' for other names.

    ``kind`` is the class of the table, and ``owner`` the name of the user's class.

    >>> attribute_advice("Samples", "StreamingDataset", "collect")
    ' Write list(dataset).'
    """
    advice = _find(ATTRIBUTES.get(kind, {}), name)
    return f" {advice.format(owner=owner, name=name)}" if advice else ""


def package_advice(name: str, package: str = "mds") -> str:
    """Return a sentence, with a space before it, for a name that a package lacks; '' for others.

    >>> package_advice("optimize")[:45]
    ' Write mds.convert(map(function, inputs), out'
    """
    advice = _find(NAMES_OF_PACKAGES.get(package, {}), name)
    if not advice and package == "mds" and isinstance(getattr(errors, name, None), type):
        advice = "Write from mds.errors import {name}."
    return f" {advice.format(name=name)}" if advice else ""


def _find(table: Mapping[str, str], name: str) -> str:
    """Return the advice of the words that include ``name``; '' if there is none."""
    return next((advice for words, advice in table.items() if name in words.split()), "")
