"""Every error that the library raises, in one tree.

    MdsError
    ├── FormatError (ValueError)          bytes or an index that cannot be what they claim
    │   ├── IndexFileError                index.json: not JSON, wrong keys, impossible numbers
    │   └── ShardError                    a shard file: sizes, offsets, counts, digests
    ├── EncodingError (ValueError)        a value and its column do not fit
    │   ├── EncodingTypeError (AttributeError, TypeError)
    │   ├── EncodingRangeError (OverflowError)
    │   ├── FixedSizeError (KeyError)     a fixed-size column got another number of bytes
    │   ├── MissingColumnError (KeyError) a sample lacks a column
    │   ├── SeparatorError (AssertionError)  text that csv, tsv or xsv cannot hold
    │   ├── UnknownEncodingError (TypeError, KeyError, AttributeError, AssertionError)
    │   └── UnsafeTypeError               pickle without allow_unsafe_types=True
    ├── ConfigError (ValueError)          an argument that makes no sense
    │   └── ArgumentError (TypeError)     one of another name or type
    ├── PlanError (ValueError)            an order that cannot be made
    │   └── UnknownNameError (ConfigError, KeyError)  no such method or algorithm
    ├── StateError (ValueError)           a checkpoint that does not fit the run
    ├── StoreError (OSError)              a store; knows url, verb, seconds, tries
    │   ├── NotFoundError (FileNotFoundError)
    │   ├── DeniedError (PermissionError)
    │   ├── UnauthenticatedError (PermissionError)
    │   ├── TransientError                worth another try
    │   │   ├── StalledError (TimeoutError)
    │   │   └── UnreachableError          no host of that name, or none that answers there
    │   ├── CorruptError (ValueError)     arrived with another size or digest
    │   ├── NoSpaceError                  the local disk is full
    │   └── VanishedError (FileNotFoundError)  was there a moment ago and is gone, or is another now
    │       └── ReplacedError (CorruptError)   an object that changed under the run
    ├── CacheError (RuntimeError)
    │   └── CacheLimitError (ValueError)  cache_limit cannot hold what one moment needs
    ├── IterationError (RuntimeError)     an iterator that was interrupted, or is of another process
    ├── WriterError (RuntimeError)        a writer used after it ended, or whose upload failed
    ├── FunctionError (RuntimeError)      a function of map(), map_batches() or filter() raised
    ├── SourceError (ValueError)          something to convert that is missing, empty, or unclear
    │   └── RecordError                   one record of it that cannot become a sample
    ├── MissingDependencyError (ImportError)
    ├── CompatError (ImportError)         `import streaming` cannot be answered by this library
    └── SealedNameError (TypeError)       a name of `import streaming` whose replacement is not used

Names of builtins in parentheses are further parents, so that code keeps working which catches the
exceptions of the package `streaming`.

Examples begin with ``import mds``, and with a dataset of eight samples in the folder `data/train`.
"""

from __future__ import annotations

import copy
import re

from mds._redaction import safe

__all__ = [
    "ArgumentError",
    "CacheError",
    "CacheLimitError",
    "CompatError",
    "ConfigError",
    "CorruptError",
    "DeniedError",
    "EncodingError",
    "EncodingRangeError",
    "EncodingTypeError",
    "FixedSizeError",
    "FormatError",
    "FunctionError",
    "IndexFileError",
    "IterationError",
    "MdsError",
    "MissingColumnError",
    "MissingDependencyError",
    "NoSpaceError",
    "NotFoundError",
    "PlanError",
    "RecordError",
    "ReplacedError",
    "SealedNameError",
    "SeparatorError",
    "ShardError",
    "SourceError",
    "StalledError",
    "StateError",
    "StoreError",
    "StreamPlanError",
    "TransientError",
    "UnauthenticatedError",
    "UnknownEncodingError",
    "UnknownNameError",
    "UnreachableError",
    "UnsafeTypeError",
    "VanishedError",
    "WriterError",
]

# Beginning of the text of an error that torch raises again from a worker process or thread.
_FROM_WORKER = re.compile(r"Caught \w+ in [\w :]+\.\nOriginal Traceback ")


class MdsError(Exception):
    """The root of all errors of the library.

    Its text holds no character that acts on a terminal, and no password that the library was given.

    >>> try:
    ...     mds.StreamingDataset("nowhere")
    ... except mds.errors.MdsError as error:
    ...     print(type(error).__name__)
    NotFoundError
    """

    def __str__(self) -> str:
        # Exception.__str__, not super(): a subclass may also inherit from KeyError, which puts the
        # text in quotes.
        text = Exception.__str__(self)
        # `safe` escapes line breaks, so the lines of a traceback are escaped one by one.
        if _FROM_WORKER.match(text):
            return "\n".join(map(safe, text.split("\n")))
        return safe(text)


class FormatError(MdsError, ValueError):
    """Bytes or an index that cannot be what they claim to be.

    >>> pathlib.Path("bad.jsonl").write_text("{")
    1
    >>> mds.StreamingDataset("bad.jsonl")
    Traceback (most recent call last):
        ...
    mds.errors.FormatError: /...bad.jsonl, line 1, column 2: Expecting property name ...
    """


class IndexFileError(FormatError):
    """An index.json that is broken, hostile, or of another version.

    >>> pathlib.Path("index.json").write_text("{}")
    2
    >>> mds.LocalDataset(".")
    Traceback (most recent call last):
        ...
    mds.errors.IndexFileError: /...index.json: shards and version missing.
    """


class ShardError(FormatError):
    """A shard file whose size, offsets, counts or digests make no sense.

    >>> os.truncate("data/train/shard.00000.mds", 10)
    >>> mds.LocalDataset("data/train")[0]
    Traceback (most recent call last):
        ...
    mds.errors.ShardError: /...data/train/shard.00000.mds: the shard has 10 bytes, but ...
    """


class EncodingError(MdsError, ValueError):
    """A value that does not fit the encoding of its column.

    >>> mds.encodings.parse_encoding("int").decode(b"123")
    Traceback (most recent call last):
        ...
    mds.errors.EncodingError: encoding int: cannot decode 3 bytes: 8 are required
    """


class EncodingTypeError(EncodingError, AttributeError, TypeError):
    """A value of another type than the encoding takes.

    >>> mds.encodings.parse_encoding("str").encode(3)
    Traceback (most recent call last):
        ...
    mds.errors.EncodingTypeError: encoding str: expected a str, got int 3. Write str(value), ...
    """


class FixedSizeError(EncodingError, KeyError):
    """A value of another size than its fixed-size column.

    >>> mds.encodings.parse_encoding("ndarray:uint8:4").pack(b"abc")
    Traceback (most recent call last):
        ...
    mds.errors.FixedSizeError: encoding ndarray:uint8:4: a value must have 4 bytes, got 3 ...
    """


class EncodingRangeError(EncodingError, OverflowError):
    """A number that is too large or too small for its column.

    >>> mds.encodings.parse_encoding("uint8").encode(300)
    Traceback (most recent call last):
        ...
    mds.errors.EncodingRangeError: encoding uint8: expected a number from 0 to 255, got int 300. ...
    """


class MissingColumnError(EncodingError, KeyError):
    """A sample without one of the columns.

    >>> with mds.MDSWriter("out", {"id": "int", "text": "str"}) as writer:
    ...     writer.write({"id": 1})
    Traceback (most recent call last):
        ...
    mds.errors.MissingColumnError: column 'text' of sample 0 is missing: ...
    """


class SeparatorError(EncodingError, AssertionError):
    """Text with a separator or newline in it, which the formats without quoting cannot hold.

    >>> with mds.CSVWriter(out="out", columns={"text": "str"}) as writer:
    ...     writer.write({"text": "red, green"})
    Traceback (most recent call last):
        ...
    mds.errors.SeparatorError: sample 0: expected text without the separator ',' ...
    """


class UnknownEncodingError(EncodingError, TypeError, KeyError, AttributeError, AssertionError):
    """An encoding that is not registered, or whose parameters make no sense.

    >>> mds.encodings.parse_encoding("integer32")
    Traceback (most recent call last):
        ...
    mds.errors.UnknownEncodingError: there is no encoding 'integer32'. ...
    """


class UnsafeTypeError(EncodingError):
    """A pickle column met without ``allow_unsafe_types=True``.

    >>> with mds.MDSWriter("pickles", {"words": "pkl"}) as writer:
    ...     writer.write({"words": {"a", "b"}})
    >>> mds.StreamingDataset("pickles")
    Traceback (most recent call last):
        ...
    mds.errors.UnsafeTypeError: /...pickles: column 'words' (pkl) holds pickles, ...
    >>> len(mds.StreamingDataset("pickles", allow_unsafe_types=True))
    1
    """


class ConfigError(MdsError, ValueError):
    """An argument that makes no sense, alone or beside the others.

    >>> mds.StreamingDataset("data/train", batch_size=0)
    Traceback (most recent call last):
        ...
    mds.errors.ConfigError: StreamingDataset(batch_size=0): batch_size must be a whole number ...
    """


class ArgumentError(ConfigError, TypeError):
    """An argument that does not exist, has no name, or is of another type.

    >>> mds.StreamingDataset("data/train", shufle=True)
    Traceback (most recent call last):
        ...
    mds.errors.ArgumentError: StreamingDataset(shufle=True): ... Did you mean shuffle=?
    """


class PlanError(MdsError, ValueError):
    """An order that cannot be made from these numbers.

    >>> mds.plan.get_sampling([4, 4], choose=2, granularity=0, seed=1, epoch=0)
    Traceback (most recent call last):
        ...
    mds.errors.PlanError: sampling_granularity must be at least 1, got 0.
    """


class StreamPlanError(PlanError):
    """An order that cannot be made because of one stream.

    ``stream`` is its number, which the text names too.

    >>> streams = [{"shards": [900], "proportion": 0.99}, {"shards": [9], "proportion": 0.01}]
    >>> world = mds.World(num_nodes=1, ranks_per_node=1, workers_per_rank=1, worker=0)
    >>> try:
    ...     mds.plan.epoch_order(streams, world, batch_size=8, batching_method="stratified")
    ... except mds.errors.StreamPlanError as error:
    ...     print(error.stream)
    1
    """

    def __init__(self, text: str, stream: int = 0) -> None:
        super().__init__(text)
        self.stream = stream

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.stream)


class UnknownNameError(ConfigError, PlanError, KeyError):
    """Unknown name of a shuffle, partition, batching or sampling method.

    >>> mds.StreamingDataset("data/train", shuffle_algo="py9")
    Traceback (most recent call last):
        ...
    mds.errors.UnknownNameError: no shuffle_algo 'py9': choose one of naive, py1b, ...
    """


class StateError(MdsError, ValueError):
    """A checkpoint that does not fit the run.

    >>> mds.StreamingDataset("data/train", batch_size=2).load_state_dict({"epoch": 0})
    Traceback (most recent call last):
        ...
    mds.errors.StateError: the state has no sample_in_epoch, ...
    """


class StoreError(MdsError, OSError):
    """A request to a store that failed.

    Args:
        text: Message with the verb, the URL and the reason.
        url: URL of the object, without secrets.
        verb: Kind of the request, such as "get".
        seconds: Time until the request was given up.
        tries: Number of tries until then.

    >>> try:
    ...     mds.storage.open_store("memory://bucket").get("missing")
    ... except mds.errors.StoreError as error:
    ...     print(error.verb, error.url, error.tries)
    get memory://bucket/missing 1
    """

    def __init__(
        self, text: str, *, url: str = "", verb: str = "", seconds: float = 0.0, tries: int = 1
    ) -> None:
        super().__init__(text)
        self.url = url
        self.verb = verb
        self.seconds = seconds
        self.tries = tries
        # What shows that a setting is wrong, see storage/_translate.py; '' if nothing does.
        self.symptom = ""

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled by worker processes, and the default would lose keyword arguments.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class NotFoundError(StoreError, FileNotFoundError):
    """There is no such object.

    >>> mds.StreamingDataset("nowhere")
    Traceback (most recent call last):
        ...
    mds.errors.NotFoundError: open /...nowhere/index.json: there is no such file. ...
    """


class DeniedError(StoreError, PermissionError):
    """The credentials are known and may not do this.

    >>> mds.StreamingDataset("s3://private/train", batch_size=8)  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    mds.errors.DeniedError: get s3://private/train/index.json: ... AccessDenied ...
    """


class UnauthenticatedError(StoreError, PermissionError):
    """There are no credentials, or they are expired or unknown.

    >>> mds.StreamingDataset("s3://private/train", batch_size=8)  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    mds.errors.UnauthenticatedError: get s3://private/train/index.json: ... ExpiredToken ...
    """


class TransientError(StoreError):
    """A failure that another try may mend: throttling, a dropped connection, a server error.

    >>> try:
    ...     train(mds.StreamingDataset("s3://bucket/train", batch_size=8))  # doctest: +SKIP
    ... except mds.errors.TransientError as error:
    ...     print(f"gave up after {error.tries} tries in {error.seconds:.0f} s: {error}")
    """

    #: Seconds after which the store asked to be tried again; 0 when it did not say.
    retry_after: float = 0.0


class StalledError(TransientError, TimeoutError):
    """A transfer that received too few bytes for too long.

    >>> store = mds.storage.open_store("https://example.com/train", timeout=5)
    >>> store.get("shard.00000.mds")  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    mds.errors.StalledError: get https://example.com/train/shard.00000.mds: ...
    """


class UnreachableError(TransientError):
    """The host of a store does not resolve, refuses connections, or has no route to it.

    >>> once = mds.storage.RetryPolicy(attempts=1)
    >>> mds.storage.open_store("http://127.0.0.1:9", retry=once).get("index.json")
    Traceback (most recent call last):
        ...
    mds.errors.UnreachableError: get http://127.0.0.1:9/index.json: ...: [Errno 111] ...
    """


class CorruptError(StoreError, ValueError):
    """An object whose size or digest is not the expected one.

    >>> store = mds.storage.open_store("memory://bucket")
    >>> store.put("word", b"hello").size
    5
    >>> store.get_range("word", 3, 9)
    Traceback (most recent call last):
        ...
    mds.errors.CorruptError: get memory://bucket/word: bytes 3 to 9 were requested, but ...
    """


class NoSpaceError(StoreError):
    """The local disk is full.

    >>> try:
    ...     train(dataset)  # doctest: +SKIP
    ... except mds.errors.NoSpaceError as error:
    ...     print(f"set cache_limit=, or choose another local folder: {error}")
    """


class VanishedError(StoreError, FileNotFoundError):
    """A file, folder or object that was deleted while it was used.

    >>> try:
    ...     train(dataset)  # doctest: +SKIP
    ... except mds.errors.VanishedError as error:
    ...     print(f"who deleted {error.url}?")
    """


class ReplacedError(VanishedError, CorruptError):
    """An object or file that was replaced during a run.

    >>> with mds.MDSWriter("data/old", {"id": "int"}, hashes=[]) as writer:
    ...     writer.write({"id": 1})
    >>> dataset = mds.StreamingDataset(remote="data/old", local="cache", batch_size=2)
    >>> pathlib.Path("data/old/shard.00000.mds").write_bytes(b"another object")
    14
    >>> dataset[0]
    Traceback (most recent call last):
        ...
    mds.errors.ReplacedError: get ...data/old/shard.00000.mds: it has 14 bytes, ...
    """


class CacheError(MdsError, RuntimeError):
    """A cache folder that cannot be used with these settings.

    >>> try:
    ...     mds.StreamingDataset(remote="data/train", local="cache", cache_limit="1kb")
    ... except mds.errors.CacheError as error:
    ...     print(type(error).__name__)
    CacheLimitError
    """


class CacheLimitError(CacheError, ValueError):
    """A ``cache_limit`` below the size of the shards that are needed at the same time.

    >>> mds.StreamingDataset(remote="data/train", local="cache", cache_limit="1kb")
    Traceback (most recent call last):
        ...
    mds.errors.CacheLimitError: cache_limit=1024 (1.0 KB) is too small: ... Set cache_limit to ...
    """


class IterationError(MdsError, RuntimeError):
    """An iterator that cannot continue: it was interrupted, or another process made it.

    >>> def interrupt(sample):
    ...     raise KeyboardInterrupt
    >>> samples = iter(mds.StreamingDataset("data/train", batch_size=2).map(interrupt))
    >>> with contextlib.suppress(KeyboardInterrupt):
    ...     sample = next(samples)
    >>> next(samples)
    Traceback (most recent call last):
        ...
    mds.errors.IterationError: KeyboardInterrupt ended this iteration. ...
    """


class WriterError(MdsError, RuntimeError):
    """A writer that is used after it ended, or whose files could not be published.

    >>> with mds.MDSWriter("out", {"id": "int"}) as writer:
    ...     writer.write({"id": 1})
    >>> writer.write({"id": 2})
    Traceback (most recent call last):
        ...
    mds.errors.WriterError: this MDSWriter has finished; it takes no more samples. ...
    """


class FunctionError(MdsError, RuntimeError):
    """An exception of the caller's function, which is the ``__cause__``.

    The text names the function and the sample. From a worker process it contains the traceback.

    >>> dataset = mds.StreamingDataset("data/train", batch_size=2).map(lambda sample: 1 / 0)
    >>> dataset[0]
    Traceback (most recent call last):
        ...
    mds.errors.FunctionError: map(<lambda>) failed on sample 0: ZeroDivisionError: division by zero
    """

    def __str__(self) -> str:
        # `safe` escapes line breaks, so the lines of a traceback are escaped one by one.
        return "\n".join(map(safe, Exception.__str__(self).split("\n")))


class SourceError(MdsError, ValueError):
    """Something to convert that is missing, empty, or not what it seems.

    >>> mds.convert("nowhere", "out")
    Traceback (most recent call last):
        ...
    mds.errors.SourceError: nowhere: there is no such file or folder.
    """


class RecordError(SourceError):
    r"""A record that cannot become a sample; the text names file, line and column.

    >>> pathlib.Path("people.jsonl").write_text('{"age": 31}\n{"age": \n')
    21
    >>> mds.convert("people.jsonl", "out")
    Traceback (most recent call last):
        ...
    mds.errors.RecordError: people.jsonl, line 2, column 8: Expecting value ...
    """


class MissingDependencyError(MdsError, ImportError):
    """An optional package that is not installed; the text has the pip command.

    >>> mds.StreamingDataset("s3://bucket/train", batch_size=8)  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    mds.errors.MissingDependencyError: s3:// URLs need the package boto3: pip install ...
    """


class CompatError(MdsError, ImportError):
    """``import streaming`` that this library cannot provide.

    >>> import streaming, mds.compat.streaming  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    mds.errors.CompatError: a module 'streaming' from ... is already imported, ...
    """


class SealedNameError(MdsError, TypeError):
    """A name of ``import streaming`` that was replaced or overridden, but is never called.

    >>> import mds.compat.streaming  # doctest: +SKIP
    >>> from streaming.base.shared import SharedBarrier  # doctest: +SKIP
    >>> SharedBarrier("filelock", "barrier")  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    mds.errors.SealedNameError: SharedBarrier can be imported but not used through mds. ...
    """


def _rebuild(kind: type[StoreError], args: tuple[str], fields: dict[str, object]) -> StoreError:
    """Return a StoreError from its pickled parts; see `StoreError.__reduce__`."""
    error = kind(*args)
    error.__dict__.update(fields)
    return error


def need(package: str, extra: str | None, why: str) -> MissingDependencyError:
    """Return the error for an optional package that is not installed.

    Args:
        package: Name of the package.
        extra: Extra of this library that installs it; None if none does.
        why: What needs the package, as the subject of the sentence (a plural).

    >>> str(need("boto3", "s3", "s3:// URLs"))
    's3:// URLs need the package boto3: pip install "mds-streaming[s3]"'
    """
    target = f'"mds-streaming[{extra}]"' if extra else package
    return MissingDependencyError(f"{why} need the package {package}: pip install {target}")


def repeatable(error: BaseException, advice: str = "") -> Exception:
    """Return the error that a later ``next()`` of an iteration raises after ``error`` ended it.

    It is a copy without a traceback, because the frames in a traceback keep files open and threads
    running. Each ``next()`` raises a copy of its own: the one that an iteration keeps must not get
    the traceback of the caller, whose frame keeps the iteration. For KeyboardInterrupt and others
    that are no Exception it is an IterationError, whose text ends with ``advice``.
    """
    if not isinstance(error, Exception):
        return IterationError(f"{type(error).__name__} ended this iteration. {advice}")
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 - the class is the caller's
        return error
    # A class with a __reduce__ of its own may give a copy of another class.
    return copied if type(copied) is type(error) else error
