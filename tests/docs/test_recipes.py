"""Each recipe goes from files to a falling loss, and on from the middle of an epoch."""

import pathlib

import numpy as np
import pytest
import torch

from devtools.pages import run_page

PAGES = sorted((pathlib.Path(__file__).parents[2] / "docs" / "recipes").glob("*.md"))
RECIPES = [
    pytest.param(page, marks=[pytest.mark.slow] if page.stem in {"packed", "rewind"} else [])
    for page in PAGES
]


def flat(batch):
    """A batch as comparable values, by column."""
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small are quicker on one thread, the more so beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("page", RECIPES, ids=[page.stem for page in PAGES])
def test_the_recipe_runs_learns_and_resumes(page, tmp_path, monkeypatch):
    """Top to bottom in an empty folder; what follows the checkpoint is what would have followed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    made = run_page(page)

    losses = made["losses"]
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])

    position = torch.load("checkpoint.pt", weights_only=True)["position"]
    resumed = made["make_loader"]()
    resumed.load_state_dict(position)
    rest = [flat(batch) for batch in resumed]
    whole = [flat(batch) for batch in made["make_loader"]()]
    taken = len(whole) - len(rest)
    assert 0 < taken < len(whole)
    assert position["sample_in_epoch"] == taken * resumed.batch_size
    assert rest == whole[taken:]
