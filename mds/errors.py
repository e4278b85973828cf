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
"""

from __future__ import annotations

import copy
import re

from mds.redaction import safe

# Beginning of the text of an error that torch raises again from a worker process or thread.
_FROM_WORKER = re.compile(r"Caught \w+ in [\w :]+\.\nOriginal Traceback ")


class MdsError(Exception):
    """The root of all errors of the library.

    Its text holds no character that acts on a terminal, and no password that the library was given.
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
    """Bytes or an index that cannot be what they claim to be."""


class IndexFileError(FormatError):
    """An index.json that is broken, hostile, or of another version."""


class ShardError(FormatError):
    """A shard file whose size, offsets, counts or digests make no sense."""


class EncodingError(MdsError, ValueError):
    """A value that does not fit the encoding of its column."""


class EncodingTypeError(EncodingError, AttributeError, TypeError):
    """A value of another type than the encoding takes."""


class FixedSizeError(EncodingError, KeyError):
    """A value of another size than its fixed-size column."""


class EncodingRangeError(EncodingError, OverflowError):
    """A number that is too large or too small for its column."""


class MissingColumnError(EncodingError, KeyError):
    """A sample without one of the columns."""


class SeparatorError(EncodingError, AssertionError):
    """Text with a separator or newline in it, which the formats without quoting cannot hold."""


class UnknownEncodingError(EncodingError, TypeError, KeyError, AttributeError, AssertionError):
    """An encoding that is not registered, or whose parameters make no sense."""


class UnsafeTypeError(EncodingError):
    """A pickle column met without ``allow_unsafe_types=True``."""


class ConfigError(MdsError, ValueError):
    """An argument that makes no sense, alone or beside the others."""


class ArgumentError(ConfigError, TypeError):
    """An argument that does not exist, has no name, or is of another type."""


class PlanError(MdsError, ValueError):
    """An order that cannot be made from these numbers."""


class StreamPlanError(PlanError):
    """An order that cannot be made because of one stream.

    ``stream`` is its number, which the text names too.
    """

    def __init__(self, text: str, stream: int = 0) -> None:
        super().__init__(text)
        self.stream = stream

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.stream)


class UnknownNameError(ConfigError, PlanError, KeyError):
    """No shuffle, partition, batching or sampling method of that name."""


class StateError(MdsError, ValueError):
    """A checkpoint that does not fit the run."""


class StoreError(MdsError, OSError):
    """A request to a store that failed.

    Args:
        text: Message with the verb, the URL and the reason.
        url: URL of the object, without secrets.
        verb: Kind of the request, such as "get".
        seconds: Time until the request was given up.
        tries: Number of tries until then.
    """

    def __init__(
        self, text: str, *, url: str = "", verb: str = "", seconds: float = 0.0, tries: int = 1
    ) -> None:
        super().__init__(text)
        self.url = url
        self.verb = verb
        self.seconds = seconds
        self.tries = tries

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled by worker processes, and the default would lose keyword arguments.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class NotFoundError(StoreError, FileNotFoundError):
    """There is no such object."""


class DeniedError(StoreError, PermissionError):
    """The credentials are known and may not do this."""


class UnauthenticatedError(StoreError, PermissionError):
    """There are no credentials, or they are expired or unknown."""


class TransientError(StoreError):
    """A failure that another try may mend: throttling, a dropped connection, a server error."""

    #: Seconds after which the store asked to be tried again; 0 when it did not say.
    retry_after: float = 0.0


class StalledError(TransientError, TimeoutError):
    """A transfer that received too few bytes for too long."""


class UnreachableError(TransientError):
    """The host of a store does not resolve, refuses connections, or has no route to it."""


class CorruptError(StoreError, ValueError):
    """An object whose size or digest is not the expected one."""


class NoSpaceError(StoreError):
    """The local disk is full."""


class VanishedError(StoreError, FileNotFoundError):
    """A file, folder or object that was deleted while it was used."""


class ReplacedError(VanishedError, CorruptError):
    """An object that was replaced while it was read."""


class CacheError(MdsError, RuntimeError):
    """A cache folder that cannot be used with these settings."""


class CacheLimitError(CacheError, ValueError):
    """A ``cache_limit`` below the size of the shards that are needed at the same time."""


class IterationError(MdsError, RuntimeError):
    """An iterator that cannot continue: it was interrupted, or another process made it."""


class WriterError(MdsError, RuntimeError):
    """A writer that is used after it ended, or whose files could not be published."""


class FunctionError(MdsError, RuntimeError):
    """An exception of the caller's function, which is the ``__cause__``.

    The text names the function and the sample. From a worker process it contains the traceback.
    """

    def __str__(self) -> str:
        # `safe` escapes line breaks, so the lines of a traceback are escaped one by one.
        return "\n".join(map(safe, Exception.__str__(self).split("\n")))


class SourceError(MdsError, ValueError):
    """Something to convert that is missing, empty, or not what it seems."""


class RecordError(SourceError):
    """A record that cannot become a sample; the text names file, line and column."""


class MissingDependencyError(MdsError, ImportError):
    """An optional package that is not installed; the text has the pip command."""


class CompatError(MdsError, ImportError):
    """``import streaming`` that this library cannot provide."""


class SealedNameError(MdsError, TypeError):
    """A name of ``import streaming`` that was replaced or overridden, but is never called."""


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


def repeatable(error: BaseException, advice: str) -> Exception:
    """Return the error that every later ``next()`` of an iteration raises after ``error`` ended it.

    It is a copy without a traceback, because the frames in a traceback keep files open and threads
    running. For KeyboardInterrupt and others that are no Exception it is an IterationError, whose
    text ends with ``advice``.
    """
    if not isinstance(error, Exception):
        return IterationError(f"this iteration was ended by {type(error).__name__}. {advice}")
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 - the class is the caller's
        return error
    # A class with a __reduce__ of its own may give a copy of another class.
    return copied if type(copied) is type(error) else error
