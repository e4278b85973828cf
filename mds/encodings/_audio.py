"""Audio: `audio` stores a WAV or FLAC file unchanged, and decodes it to samples and rate.

Samples are float32 between -1 and 1, of shape (frames, channels). WAV files of integer PCM are
decoded without a library. FLAC and other WAV files need the package soundfile.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings._base import Encoding
from mds.encodings._scalars import without_parameters
from mds.errors import EncodingError, MissingDependencyError

if TYPE_CHECKING:
    from mds.encodings._base import Data

# Most bytes of decoded audio: a few bytes of FLAC can decode to hours of silence.
MAX_DECODED = 1 << 30
_BLOCK = 1 << 16


class AudioEncoding(Encoding):
    """Encoding of a WAV or FLAC file; decodes to float32 (frames, channels) and a rate in Hz."""

    shares_memory = False
    expects = "the bytes of a WAV or FLAC file, or the path of one"

    def __init__(self, name: str) -> None:
        super().__init__(without_parameters(name, "audio"))

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a file, given as bytes or as a path."""
        if isinstance(value, (str, os.PathLike)):
            try:
                with open(value, "rb") as file:
                    value = file.read()
            except (OSError, ValueError) as error:
                raise self.refuse(value, f"{error}.") from error
        if not isinstance(value, (bytes, bytearray)):
            raise self.refuse(value)
        if _kind(value) is None:
            raise EncodingError(
                f"encoding audio: expected {self.expects}, got bytes that begin with "
                f"{bytes(value[:12])!r}"
            )
        return bytes(value)

    def decode(self, data: Data) -> tuple[np.ndarray[Any, Any], int]:
        """Return the samples, float32 of shape (frames, channels), and the rate in Hz."""
        kind = _kind(data)
        if kind is None:
            raise self.broken(data, "they are neither WAV nor FLAC")
        if kind == "wav":
            sound = self._plain_wav(data)
            if sound is not None:
                return sound
        return self._soundfile(data, kind)

    def _plain_wav(self, data: Data) -> tuple[np.ndarray[Any, Any], int] | None:
        """Decode integer PCM with Python's own module; return None for other formats."""
        import wave

        try:
            with wave.open(io.BytesIO(data)) as file:
                width = file.getsampwidth()  # bytes of a sample
                channels, rate = file.getnchannels(), file.getframerate()
                # readframes allocates memory for all frames that the header claims.
                raw = file.readframes(min(file.getnframes(), len(data)))
        except wave.Error as error:
            if str(error).startswith("unknown"):  # a format that is not integer PCM
                return None
            raise self.broken(data, error) from error
        except (EOFError, ValueError, MemoryError, RuntimeError) as error:
            raise self.broken(data, f"{type(error).__name__} {error}") from error
        if width not in {1, 2, 3, 4} or not channels:
            raise self.broken(data, f"{channels} channels of {width} bytes are not supported")
        # Without an incomplete frame at the end, as a file that is cut short has.
        raw = raw[: len(raw) // (width * channels) * (width * channels)]
        return _to_float(raw, width).reshape(-1, channels), rate

    def _soundfile(self, data: Data, kind: str) -> tuple[np.ndarray[Any, Any], int]:
        """Decode a file with the package soundfile; ``kind`` ("wav" or "flac") is for errors.

        Raises MissingDependencyError without soundfile, and EncodingError for damaged files.
        """
        try:
            import soundfile
        except ImportError:
            raise MissingDependencyError(
                f"This {kind} needs the package soundfile: pip install soundfile"
            ) from None
        blocks = []
        size = 0
        try:
            # In blocks, because the number of frames in the header may be wrong.
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                rate = int(file.samplerate)
                while True:
                    block = file.read(_BLOCK, dtype="float32", always_2d=True)
                    blocks.append(block)
                    size += block.nbytes
                    if len(block) < _BLOCK or size > MAX_DECODED:
                        break
        except (RuntimeError, ValueError, TypeError, OSError, MemoryError) as error:
            raise self.broken(data, error) from error
        if size > MAX_DECODED:
            raise self.broken(data, f"they decode to more than {MAX_DECODED} bytes")
        return np.concatenate(blocks), rate


def is_sound(data: Data) -> bool:
    """Return True for the bytes of a WAV or FLAC file, by the first of them."""
    return _kind(data) is not None


def _kind(data: Data | bytearray) -> str | None:
    """Return "wav" or "flac" by the first bytes of a file, or None for any other file."""
    head = bytes(data[:12])
    if head[:4] in {b"RIFF", b"RF64"} and head[8:] == b"WAVE":
        return "wav"
    return "flac" if head[:4] == b"fLaC" else None


def _to_float(raw: bytes, width: int) -> np.ndarray[Any, Any]:
    """Convert integer samples of ``width`` (1 to 4) bytes to float32 from -1 to 1."""
    if width == 1:  # WAV stores samples of one byte unsigned, all others signed
        samples = np.frombuffer(raw, "u1").astype(np.float32) - 128
    elif width == 3:  # NumPy has no such type: make them the upper bytes of 32 bits
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        samples = wide.view("<i4")[:, 0].astype(np.float32)
        width = 4
    else:
        samples = np.frombuffer(raw, f"<i{width}").astype(np.float32)
    samples /= np.float32(1 << (8 * width - 1))
    return samples
