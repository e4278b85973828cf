"""Changes of the order during a run: new weights, replaced samples, skipped steps.

Each change holds from a step on, on all ranks. When that step comes, a loader discards the batches
that were made ahead of it and makes them anew, so prefetching does not delay a change.

An edit is a dict, part of the state: ``{"step", "weights"}`` for weights (with ``"window"`` for
packs), ``{"epoch", "from", "drop", "why"}`` for samples (with ``"windows"`` for packs), and
``{"epoch", "from", "skip"}`` for skipped steps. ``from`` is a place of the epoch, which is a number
of samples of all ranks, or of packs with packing.

With packing, documents are packed window by window (a *window* is some thousand documents of a
canonical node), so weights and drops hold from the beginning of a window on. A `Cursor` has, for
each canonical node, the window that is read next and the number of its packs that were read.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from mds._arguments import no_attribute, shown, takes_names
from mds._dataset.steps import TrainingSteps
from mds._words import plural
from mds.errors import ConfigError
from mds.plan._edits import (
    MAX_DROPPED,
    MAX_WHY,
    check_spare_samples,
    describe_edit,
    drops_of,
    too_many_dropped,
)
from mds.plan._mixture import MAX_STEPS
from mds.plan._pack_filling import packs_of
from mds.plan._state import MAX_EDITS, MAX_EPOCHS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mds._dataset.order_state import OrderState
    from mds.plan._state import Cursor
    from mds.world import World


class OrderEdits(Sequence[str]):
    """Changes of the order of a dataset while a training runs: ``dataset.edits``.

    Each method adds changes, which hold from a step on that has not come yet; the object is the
    sequence of all of them in words, oldest first. They are part of the state. Ranks exchange
    nothing: call a method on every rank after the same step with the same arguments. Different
    arguments show in the order hash.

    >>> dataset.edits.replace_samples([77123, 88012], reason="gibberish")  # doctest: +SKIP
    >>> dataset.edits  # doctest: +SKIP
    <1 edit of the order>
    from step 1,200 on: 2 samples replaced: 77123, 88012 (gibberish)
    """

    def __init__(self, order: OrderState, world: World) -> None:
        # The order that is changed, and the nodes, ranks and workers of the run.
        self._order, self._world = order, world

    @takes_names
    def replace_samples(
        self, ids: Iterable[int], reason: str = "", *, at_step: int | None = None
    ) -> None:
        """Replace bad samples by other samples from now on.

        - ``ids`` (Iterable[int]): Numbers of the bad samples, as in ``dataset[number]``.
        - ``reason`` (str, default ''): Reason in a few words, kept in the state.
        - ``at_step`` (int | None, default None, steps): First global batch without the samples,
          counted since the run began. None is the next batch that the loader gives.

        In the place of each comes a spare sample of the same stream, which may also come at its own
        place in the epoch. All other places stay as they are. At most half of a stream can be
        replaced. With ``packing=`` the place of a document is padding, and later windows of
        documents are packed without it. Unless a StreamingDataLoader is being iterated, the samples
        are replaced from the next epoch on.

        Raises ConfigError for numbers that no sample has, for more than can be replaced, and for a
        step that is over.

        >>> dataset.edits.replace_samples([77123], reason="gibberish")  # doctest: +SKIP
        """
        numbers = _parse_numbers(ids, self._order.num_samples)
        text: Any = reason  # of any type, whatever the signature says
        if not isinstance(text, str) or len(text) > MAX_WHY:
            raise ConfigError(
                f"reason of replace_samples() must be a text of at most {MAX_WHY} letters, got "
                f"{str(text)[:60]!r}."
            )
        steps = self._steps
        if at_step is None:
            epoch, step_in_epoch = steps.next_at(*self._earliest_place())
            place = steps.place_in_epoch(epoch, step_in_epoch)
        else:
            step = self._check_step(at_step)
            epoch, place = steps.place_of(step, self._earliest_place()[0])
        if not numbers:
            return
        edit: dict[str, Any] = {"epoch": epoch, "from": place, "drop": numbers, "why": reason}
        edit |= self._kind.drop_facts(epoch, place)
        drops = drops_of([*self._order.epochs.edits, edit])
        check_spare_samples(drops, self._order.samples_by_stream())
        self._add([edit], epoch, place)

    @takes_names
    def skip_steps(self, steps: range) -> None:
        """Leave out global batches that have not come yet.

        - ``steps`` (range): Steps to leave out, counted since the training began, such as
          ``range(12300, 12400)``.

        Later steps keep their numbers: after 12,299 comes 12,400. Epochs become shorter, while
        ``len()`` counts whole epochs. It is possible right after a state was loaded, too.

        Raises ConfigError for steps that came already.

        >>> dataset.edits.skip_steps(range(12300, 12400))  # doctest: +SKIP
        """
        untyped_steps: Any = steps  # of any type, whatever the signature says
        if not isinstance(untyped_steps, range) or steps.step != 1 or not steps or steps.start < 0:
            raise ConfigError(
                f"skip_steps({shown(steps)}): give a range of global batches, counted since the "
                "training began, such as range(12300, 12400)."
            )
        if steps.stop > MAX_STEPS:
            raise ConfigError(
                f"skip_steps({shown(steps)}): a training has at most {MAX_STEPS:,} steps. Give a "
                "range that does not exceed this number."
            )
        training, (current_epoch, earliest_place) = self._steps, self._earliest_place()
        earliest = training.step_at(current_epoch, earliest_place)
        if steps.start < earliest:
            raise ConfigError(
                f"skip_steps({steps}): step {earliest - 1} has already been read, so only steps "
                f"from {earliest} can be skipped. To skip earlier steps, load an earlier state "
                "first."
            )
        edits: list[dict[str, Any]] = []  # one for each epoch that has some of the steps
        begin = epoch, place = training.place_of(steps.start, current_epoch)
        last_epoch, last_place = training.place_of(steps.stop, current_epoch)
        while (epoch, place) < (last_epoch, last_place) and len(edits) <= MAX_EDITS:
            is_last = epoch == last_epoch
            end = last_place
            if not is_last:
                end = training.place_in_epoch(epoch, training.in_epoch(epoch))
            edits.append({"epoch": epoch, "from": place, "skip": end - place})
            epoch, place = epoch + 1, 0
        if len(edits) > MAX_EDITS:
            raise ConfigError(
                f"skip_steps({steps}): the steps belong to more than {MAX_EDITS:,} epochs, which "
                "is more than a state can record. Skip fewer steps, or start a new run."
            )
        self._add(edits, *begin)

    @takes_names
    def set_weights(self, weights: Mapping[str, float], *, at_step: int | None = None) -> None:
        """Change the weights of the streams of a schedule.

        - ``weights`` (Mapping[str, float]): Weights by name, as at a milestone of the Schedule.
        - ``at_step`` (int | None, default None, steps): First global batch with the new weights,
          counted since the run began. None is the next batch that the loader gives.

        The weights hold to the end of the run, in place of later milestones and of weights that
        were set for later steps. With ``packing=``, packs of the current window of documents come
        first; ``dataset.edits`` then has the step of the first pack after them. Unless a
        StreamingDataLoader is being iterated, weights hold from the next epoch on.

        Raises ConfigError for weights that are invalid, for a step that is over, and without a
        schedule.

        >>> dataset.edits.set_weights({"web": 0.2, "math": 0.8})  # doctest: +SKIP
        """
        order = self._order
        if order.schedule is None:
            raise ConfigError(
                "set_weights() changes the weights of a schedule, but this dataset has no "
                "schedule. Pass schedule=Schedule({0: {...}}) to the dataset."
            )
        from mds.plan._pack_schedule import first_shares
        from mds.plan._schedule import check_weights

        checked = dict(check_weights(weights, "of set_weights()"))
        order.schedule.check_names(set(checked))
        step = self._check_step(at_step)
        changed = order.schedule.with_weights(step, checked)
        first_shares(changed, order.weights.choose)  # raises ConfigError for an empty stream
        epoch, place = self._steps.place_of(step, self._earliest_place()[0])
        edit: dict[str, Any] = {"step": step, "weights": checked}
        edit |= self._kind.weight_facts(step, epoch, place)
        self._add([edit], epoch, place)

    def __len__(self) -> int:
        return len(self._order.epochs.edits)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return [self._describe(edit) for edit in self._order.epochs.edits][index]

    def __repr__(self) -> str:
        count = len(self)
        return "\n".join([f"<{count:,} edit{'s' * (count != 1)} of the order>", *self])

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, "OrderEdits")

    def _describe(self, edit: Mapping[str, Any]) -> str:
        """Return an edit in words, with steps in place of the places where these are known."""
        if "weights" in edit:
            return f"from step {edit['step']:,}: weights {dict(edit['weights'])}"
        kind = self._kind
        if not self._order.spec.batch_size or edit["epoch"] > kind.last_counted_epoch:
            return describe_edit(edit)
        steps = self._steps
        epoch, place = edit["epoch"], edit["from"]
        before = steps.before(epoch)
        first = before + steps.step_in_epoch(epoch, place)
        if "skip" in edit:
            last = before + steps.step_in_epoch(epoch, place + edit["skip"]) - 1
            return (
                f"steps {first:,} to {last:,} skipped"
                if last > first
                else f"step {first:,} skipped"
            )
        ids = ", ".join(map(str, edit["drop"][:4]))
        ids += ", ..." if len(edit["drop"]) > 4 else ""
        reason = f" ({edit['why']})" if edit["why"] else ""
        count = len(edit["drop"])
        return f"from step {first:,}: {plural(count, kind.noun)} {kind.verb}: {ids}{reason}"

    @property
    def _steps(self) -> TrainingSteps:
        """Steps of the run, with the settings that the dataset has now."""
        return TrainingSteps(self._order, self._world)

    @property
    def _kind(self) -> _SampleEdits | _PackEdits:
        """What edits are in this order, of samples or of packs."""
        return _KINDS[self._order.spec.unit](self._order, self._world)

    def _add(self, edits: list[dict[str, Any]], epoch: int, place: int) -> None:
        """Record edits, and make a running loader discard the batches that they change.

        ``epoch`` and ``place`` are the first place that may have another sample.
        """
        epochs = self._order.epochs
        if len(epochs.edits) + len(edits) > MAX_EDITS:
            raise ConfigError(
                f"the order was changed {len(epochs.edits):,} times during the run; at most "
                f"{MAX_EDITS:,} edits are allowed. Combine several changes in one call."
            )
        epochs.edit(edits)
        loop = self._order.find_loop()
        if loop is not None:
            loop.change_at(epoch, place)

    def _check_step(self, at_step: Any) -> int:
        """Return the step from which a change holds. Raises ConfigError if it has begun."""
        earliest = self._steps.step_at(*self._earliest_place())
        if at_step is None:
            return earliest
        if isinstance(at_step, np.integer):
            at_step = int(at_step)  # trainers count steps in many types
        if type(at_step) is not int:
            raise ConfigError(
                f"at_step must be a whole number, got {shown(at_step)}: the first global batch of "
                "the change, counted since the training began. Leave at_step out to start with "
                "the next one."
            )
        if at_step < earliest:
            raise ConfigError(
                f"at_step must be at least {earliest}, got {shown(at_step)}: earlier steps can no "
                "longer change. Steps count global batches since the training began."
            )
        if at_step >= MAX_STEPS:
            raise ConfigError(
                f"at_step must be at most {MAX_STEPS:,}, got {shown(at_step)}. Leave at_step out "
                "to start with the next step."
            )
        return at_step

    def _earliest_place(self) -> tuple[int, int]:
        """Return the epoch, and the place in it, from which the order can still be changed.

        It is the position after the last batch that the trainer got.
        """
        loop, epochs = self._order.find_loop(), self._order.epochs
        position = loop.position if loop is not None and loop.is_exact else None
        if epochs.pending is not None:  # a state was loaded: the next iteration begins there
            position = epochs.pending.position
        if position is None:
            # Workers of another kind of loader are ahead, so no change holds before they end.
            return epochs.next_epoch, 0
        return max(position.epoch, 0), position.place


class _SampleEdits:
    """Words and facts of edits in an order of samples, which hold from any place on.

    Args:
        order: Order of the dataset.
        world: Nodes, ranks and workers of the run.

    Attributes:
        noun, verb: What samples are called that were dropped, and what happens to them.
        last_counted_epoch: Last epoch whose steps are counted to describe an edit in it.
    """

    noun, verb, last_counted_epoch = "sample", "replaced", MAX_EPOCHS

    def __init__(self, order: OrderState, world: World) -> None:
        del order, world

    def drop_facts(self, epoch: int, place: int) -> dict[str, Any]:
        """Return the entries of an edit that drops samples from a place of an epoch on."""
        del epoch, place
        return {}

    def weight_facts(self, step: int, epoch: int, place: int) -> dict[str, Any]:
        """Return the entries of an edit with weights from a step on.

        The step begins at ``place`` of ``epoch``.
        """
        del step, epoch, place
        return {}


class _PackEdits:
    """Words and facts of edits in an order of packs, which hold from a window on.

    The arguments, attributes and methods are those of `_SampleEdits`.
    """

    # Epochs before a later one would have to be packed to count their steps.
    noun, verb, last_counted_epoch = "document", "left out", 0

    def __init__(self, order: OrderState, world: World) -> None:
        self._order, self._world = order, world

    def drop_facts(self, epoch: int, place: int) -> dict[str, Any]:
        """Return the first window of each canonical node that has not begun at the place.

        It is the window of the cursor, or the next one if some of its packs were read.
        """
        cursor = self._find_cursor(epoch, place)
        windows = cursor.windows if cursor is not None else ()
        return {"windows": [window + (packs_read > 0) for window, packs_read in windows]}

    def weight_facts(self, step: int, epoch: int, place: int) -> dict[str, Any]:
        """Return the window from which weights hold, and its step, maybe later than ``step``."""
        window, first = self._next_window(step, epoch, place)
        return {"window": window, "step": first}

    def _next_window(self, step: int, epoch: int, place: int) -> tuple[int, int]:
        """Return the first window of documents that begins at or after a step, and its step.

        The step begins at ``place`` of ``epoch``.

        The window is counted since the run began, and no canonical node has begun it. Here are two
        canonical nodes, whose windows have 3 and 4 packs, and global batches of 4 packs::

            canonical node 0    window      0   0   0   1   1   1
            canonical node 1    window        0   0   0   0   1   1
                                place       0 1 2 3 4 5 6 7 8 9 10 11
                                step        0       1       2

        From step 1 on, the result is window 1 and step 1, which has its first pack.
        """
        steps = TrainingSteps(self._order, self._world)
        packs = packs_of(steps.plan(epoch).filling)
        scheduled = packs.inputs.scheduled
        assert scheduled is not None  # only a schedule has weights to set
        cursor, rows = self._find_cursor(epoch, place), len(packs.windows)
        cursors = cursor.windows if cursor is not None else ((0, 0),) * rows
        window = max(number + (packs_read > 0) for number, packs_read in cursors)
        if all(each == (window, 0) for each in cursors):  # the window begins at this step
            return scheduled.first + window, step
        # Place at which each canonical node begins the window, after its packs of earlier ones.
        begins = []
        for row, (number, packs_read) in enumerate(cursors):
            remaining = sum(len(packs.load(row, each)) for each in range(number, window))
            begins.append(place + (row - place) % rows + (remaining - packs_read) * rows)
        # After the last window of an epoch, the next one begins with the next epoch's first step.
        if window >= int(packs.windows[0]):
            step_in_epoch = steps.step_in_epoch(epoch, max(begins) - rows + 1)
        else:
            step_in_epoch = steps.step_in_epoch(epoch, min(begins) + 1) - 1
        return scheduled.first + window, steps.before(epoch) + step_in_epoch

    def _find_cursor(self, epoch: int, place: int) -> Cursor | None:
        """Return the next window and pack of each canonical node at a place of an epoch.

        It is None at the beginning of an epoch. The loaded state and the running loader have the
        cursor of their own place. For any other place, all packs of the epoch are counted, which
        may take seconds.
        """
        if not place:
            return None
        loop, pending = self._order.find_loop(), self._order.epochs.pending
        running_position = loop.position if loop is not None else None
        loaded_position = pending.position if pending is not None else None
        for position in (loaded_position, running_position):
            if position is None or not position.cursor:
                continue
            if (position.epoch, position.place) == (epoch, place):
                return position.cursor
        return packs_of(self._order.epoch_plan(epoch, self._world).filling).table.cursor(place)


#: Edits of an order by its unit, `OrderSpec.unit`.
_KINDS: dict[str, type[_SampleEdits | _PackEdits]] = {"samples": _SampleEdits, "packs": _PackEdits}


def _parse_numbers(samples: Iterable[int], count: int) -> list[int]:
    """Return the distinct sample numbers in the argument of `replace_samples`, ascending.

    ``count`` is the number of samples of the dataset. Raises ConfigError for a number that no
    sample has, for too many numbers, and for anything else.
    """
    array = np.asarray(None)  # without an axis, so it is refused below
    if isinstance(samples, np.ndarray):
        array = samples
    elif not isinstance(samples, (str, bytes, bytearray, memoryview)):
        # An object that is no iterable, or has lists of different lengths, is refused below too.
        with contextlib.suppress(TypeError, ValueError):
            # One more than allowed is enough to see that there are too many.
            array = np.asarray([*itertools.islice(samples, MAX_DROPPED + 1)])
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or not array.size):
        raise ConfigError(
            f"replace_samples() takes the numbers of samples, got {shown(samples)}. Write "
            "replace_samples([77123, 88012])."
        )
    if len(array) > MAX_DROPPED and not isinstance(samples, np.ndarray):
        raise too_many_dropped(f"more than {MAX_DROPPED:,}")
    # Ascending, so that ranks that were given a set agree on what replaces the samples.
    sorted_numbers: list[int] = np.unique(array.astype(np.int64)).tolist()
    wrong = [number for number in sorted_numbers if not 0 <= number < count]
    if wrong:
        raise ConfigError(
            f"replace_samples(): there is no sample {wrong[0]}. The {plural(count, 'sample')} of "
            "all streams are numbered from 0."
        )
    return sorted_numbers
