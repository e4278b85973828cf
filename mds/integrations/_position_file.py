"""Position of a training loader, as a JSON file in the folder of a checkpoint."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import Any

from mds.errors import StateError
from mds.storage._files import open_regular

#: File of a checkpoint with the state of the training loader.
POSITION_FILE = "mds_state.json"


def save_position(folder: str, state: Mapping[str, Any]) -> None:
    """Save the state of a loader in the folder of a checkpoint."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, POSITION_FILE), "w", encoding="utf-8") as file:
        json.dump(state, file)


def load_position(checkpoint: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the position of a checkpoint.

    Raises StateError if the checkpoint has none, or a file that is not a whole state, and the
    errors of `open_regular`.
    """
    path = os.path.join(checkpoint, POSITION_FILE)
    try:
        with io.TextIOWrapper(open_regular(path), "utf-8") as file:
            state = json.load(file)
    except FileNotFoundError:
        raise StateError(
            f"the checkpoint {os.fspath(checkpoint)!r} has no position of a StreamingDataset "
            f"(the file {POSITION_FILE}). Resume from a checkpoint of StreamingTrainer, or load "
            "the model alone and begin a new run."
        ) from None
    except ValueError as error:  # no JSON, or no UTF-8
        raise _refusal(path, str(error)) from error
    except RecursionError:
        raise _refusal(path, "it is nested too deeply") from None
    if not isinstance(state, dict):
        raise _refusal(path, f"expected an object, got {type(state).__name__}")
    if "sample_in_epoch" not in state:
        raise _refusal(path, "sample_in_epoch is missing")
    return state


def _refusal(path: str, reason: str) -> StateError:
    """Return the error for a file that holds no state."""
    return StateError(
        f"{path!r} holds no position of a StreamingDataset: {reason}. Resume from an older "
        "checkpoint of the run, or load the model alone and begin a new run."
    )
