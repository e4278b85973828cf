"""Functions and collate functions in worker processes, forked and spawned."""

import pytest

from tests.unit.transforms import test_collate_functions as collating
from tests.unit.transforms import test_map as mapping
from tests.unit.transforms import test_map_batches as batch_mapping
from tests.unit.transforms.test_collate_functions import (
    photos,
    segmented,
    test_masks_keep_their_ids_and_follow_their_picture,
    test_padded_rows_are_those_of_the_samples,
    test_pictures_work_in_a_loader_by_themselves,
    test_ragged_rows_lie_end_to_end,
    test_random_cuts_depend_on_the_place_in_the_order_alone,
)
from tests.unit.transforms.test_map import (
    HOWS,
    Own,
    OwnItem,
    draw,
    drawn,
    ranks,
    test_a_function_makes_the_samples_of_batches,
)

__all__ = [
    "photos",
    "segmented",
    "test_a_function_makes_the_samples_of_batches",
    "test_masks_keep_their_ids_and_follow_their_picture",
    "test_padded_rows_are_those_of_the_samples",
    "test_pictures_work_in_a_loader_by_themselves",
    "test_ragged_rows_lie_end_to_end",
    "test_random_cuts_depend_on_the_place_in_the_order_alone",
]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_random_numbers_depend_on_the_place_in_the_order_alone(make, count):
    """With two forked workers on each of ``count`` ranks."""
    mapping.test_random_numbers_depend_on_the_place_in_the_order_alone(
        make, count, HOWS["processes"]
    )


@pytest.mark.parametrize("count", [1, 3])
def test_keys_depend_on_the_place_in_the_order_alone(make, count):
    """With two forked workers on each of ``count`` ranks."""
    batch_mapping.test_keys_depend_on_the_place_in_the_order_alone(make, count, "processes")


def test_random_numbers_of_spawned_workers_are_the_same(make):
    """A chain travels by pickle as it does by fork."""
    wanted = drawn(ranks(make, 1, lambda d: d.map(draw)))
    assert drawn(ranks(make, 1, lambda d: d.map(draw), HOWS["spawned"])) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Own, OwnItem])
def test_functions_see_what_a_subclass_makes(make, kind):
    """In spawned workers, which import the class by its name."""
    mapping.test_functions_see_what_a_subclass_makes(make, kind, HOWS["spawned"])


@pytest.mark.slow
def test_seeded_functions_draw_the_same_in_every_world(make):
    """In forked and spawned workers as in the process of the loader."""
    worlds = ({}, {"num_workers": 2}, collating.HOWS["spawned"])
    collating.test_seeded_functions_draw_the_same_in_every_world(make, worlds)
