"""What a newcomer gets wrong is answered with the subject, the value and a way out."""

import pytest

from mds.errors import MdsError
from tests.unit.dataset import mistakes_helpers
from tests.unit.dataset.mistakes import MISTAKES

# Fixtures of both halves of these tests.
names = mistakes_helpers.names


@pytest.mark.parametrize(("call", "subject", "value", "way_out"), MISTAKES, ids=str)
def test_a_mistake_is_told_with_its_subject_its_value_and_a_way_out(
    names, call, subject, value, way_out
):
    """Nothing is taken for what it is not, and the message is enough to go on."""
    with pytest.raises(Exception) as caught:
        eval(call, names)
    assert isinstance(caught.value, (MdsError, UserWarning, AttributeError, IndexError))
    told = str(caught.value)
    for part in (subject, value, way_out):
        assert part in told, told
