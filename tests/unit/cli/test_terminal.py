"""What the commands print where there is no terminal: files, pipes, logs of jobs."""

import numpy as np
import pytest

from mds._cli.plots import plot_lengths
from mds._cli.terminal import console

SENTENCE = "/a/folder/of/some/depth/" * 8 + ": text documents, 3 files, 60 B"


@pytest.mark.parametrize("columns", ["80", None])
@pytest.mark.parametrize("terminal", ["dumb", "xterm", ""])
def test_a_line_of_a_log_is_not_wrapped(terminal, columns, monkeypatch, capsys):
    """A sentence is one line, however long a path in it is and whatever the environment says."""
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    console(stderr=True).print(SENTENCE)
    assert capsys.readouterr().err == SENTENCE + "\n"


def test_lengths_stand_below_each_other():
    """However many digits the longest has."""
    *lines, _ = plot_lengths(np.array([0, 3, 700, 1500, 1 << 20]))
    assert len({line.index("%") for line in lines}) == 1
    assert lines[-1].startswith("1,048,576 to 2,097,151 20.0 %")
