"""Every code block of the docs is run by a test, or listed here with the reason why it is not."""

import contextlib
import pathlib
import re

import pytest

from devtools.clouds import stand_ins
from devtools.pages import RUN, blocks, run_page
from devtools.servers import ServerMissing
from mds.storage._registry import _stores, schemes

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# What is written for the site and not in Markdown; code is shown in plain blocks alone.
DIRECTIVES = {"{toctree}", "{eval-rst}", "{include}"}


def run_by():
    """Pages whose blocks a test of their room runs, with more to say about them: that test."""
    found = {}
    for test in sorted((ROOT / "tests").rglob("*.py")):
        if test.parent == pathlib.Path(__file__).parent:
            continue
        text = test.read_text(encoding="utf-8")
        if re.search(r"\bexec\(|subprocess\.run\(", text):
            for page in re.findall(r'(?:"docs" / |with_name\()"([\w-]+\.md)"', text):
                found[page] = str(test.relative_to(ROOT))
    return found


RUN_BY = run_by()
RECIPES = "tests/docs/test_recipes.py"
COMMAND = "a command for places that are only an example"
AUTOMODEL = "a configuration, which tests/programs/integrations/test_automodel.py builds"
ARGUMENTS = "takes arguments; tests/programs/frameworks runs it"
PROVIDER = "for the console of a provider"
# Blocks that do not run: by page and how their first line begins, the reason.
NOT_RUN = {
    ("benchmarks.md", "python -m benchmarks  "): (
        "takes an hour; the gate runs a smoke of every benchmark"
    ),
    ("contributing.md", 'pip install -e ".[dev]"'): ("runs the tests from within a test"),
    ("convert.md", "mds-convert photos s3://bucket/photos"): COMMAND,
    ("files.md", "mds index s3://bucket/laion"): COMMAND,
    ("frameworks.md", "export MASTER_ADDR"): "needs SLURM",
    ("frameworks.md", 'dataset = StreamingDataset(remote="s3:'): "the programs below it run",
    ("frameworks.md", "accelerator = Accelerator(gra"): "tests/trainers/programs has its calls",
    ("start.md", "python3 -m venv .venv"): "README's first command makes and fills an environment",
    ("index.md", "mds-convert photos data/photos"): "the README draws pictures and converts them",
    ("guides/automodel.md", "step_scheduler:"): AUTOMODEL,
    ("guides/automodel.md", "dataset:"): AUTOMODEL,
    ("guides/automodel.md", "model:"): AUTOMODEL,
    ("guides/automodel.md", "validation_dataloader:"): AUTOMODEL,
    (
        "guides/automodel.md",
        "for rank in 4",
    ): "tests/trainers/programs/automodel.py copies the files",
    ("guides/automodel.md", "for file in dataloader"): (
        "needs a checkpoint; tests/programs/integrations/test_automodel.py loads an empty position"
    ),
    ("guides/credentials.md", '{"Version": "2012-10-17"'): PROVIDER,
    ("guides/credentials.md", "Allow group Trainers"): PROVIDER,
    ("guides/credentials.md", "mds info oci://my-bucket@namespace/train"): (
        "Oracle's SDK takes no address of a server from its configuration; tests/programs/storage "
        "speaks to a server of its dialect by an option"
    ),
    ("guides/arrow.md", 'reader = dataset.to_arrow_reader(columns=["text"])'): (
        "needs DuckDB; tests/programs/dataset/test_arrow_consumers.py has it"
    ),
    ("guides/detection.md", "import os"): ARGUMENTS,
    ("guides/diffusers.md", "import os"): ARGUMENTS,
    ("guides/grain.md", "import grain"): "needs JAX; tests/programs/integrations has its calls",
    ("guides/grain.md", "import itertools"): ARGUMENTS,
    ("guides/open-clip.md", "import itertools"): ARGUMENTS,
    ("guides/ray.md", "import ray"): "needs Ray; tests/programs/integrations has its calls",
    ("guides/ray.md", "MDSDatasink(out"): "needs Ray; tests/programs/integrations has its calls",
    ("guides/spark.md", "from pyspark"): "needs Java; tests/programs/integrations has its calls",
    ("guides/spark.md", "encodings = {"): "needs Java; tests/programs/integrations has its calls",
    ("guides/timm.md", "import os"): ARGUMENTS,
    ("guides/torchtitan.md", "from torchtitan"): (
        "needs torchtitan; tests/trainers/programs has its calls"
    ),
    ("guides/olmo-core.md", "from olmo_core"): (
        "needs OLMo-core; tests/trainers/programs has its calls"
    ),
    ("guides/axolotl.md", "base_model:"): (
        "needs axolotl; tests/programs/integrations has its keys"
    ),
    ("guides/trl.md", "from trl import"): "needs a model; tests/trainers/programs has its calls",
    ("guides/trl.md", "prepared = SFTTrainer"): "needs a model",
    ("convert.md", "def tokenize(row)"): "needs a tokenizer of transformers",
    ("guides/verl.md", "from verl.utils"): "needs verl; tests/programs/integrations runs it",
    ("guides/verl.md", "python -m verl"): "needs verl; tests/programs/integrations has its keys",
    ("index.md", "from mds import StreamingDataLoader"): "README runs it, with a model",
    ("migrating.md", "- from streaming import MDSWriter"): "a change of the reader's code",
    ("migrating.md", "python -m mds.compat train.py"): (
        "starts a program of the reader's; tests/programs/compat starts some"
    ),
    ("migrating.md", "export PYTHONPATH="): (
        "changes the shell; tests/programs/compat does it for a process"
    ),
    ("guides/own-store.md", "from mds.testing import StoreContract"): (
        "a file of tests for a store of the reader's; ours are such files"
    ),
    ("writing.md", "mds clean s3://bucket/train"): COMMAND,
    ("writing.md", "mds index s3://bucket/train"): COMMAND,
}
# A block marked `text` that begins otherwise is what a program prints.
CODE = re.compile(
    r"(\S+=\S+ )?(mds|mds-convert|python3?|pip|torchrun|srun|export|from|import)\b|.*[({]$"
)
LAUNCHED = {
    "detection.md",
    "diffusers.md",
    "frameworks.md",
    "grain.md",
    "open-clip.md",
    "timm.md",
}
LAUNCHER = re.compile(r"(python train\.py|torchrun|composer) .*SHARDS FOLDER")  # by its test


def excuse(page, block):
    """The entry of the list above that is about a block, or None."""
    found = [k for k in NOT_RUN if k[0] == name_of(page) and block.title.startswith(k[1])]
    return found[0] if found else None


def runs(page, block):
    """Whether a block is for running."""
    return block.mark in RUN and excuse(page, block) is None


def name_of(page):
    """A page as the lists above call it."""
    return page.relative_to(DOCS).as_posix()


def is_recipe(page):
    """Whether a page is one of the recipes, which have a test of their own."""
    return page.parent.name == "recipes"


MINE = [
    page
    for page in PAGES
    if name_of(page) not in RUN_BY
    and not is_recipe(page)
    and any(runs(page, block) for block in blocks(page))
]


@pytest.fixture
def clouds(tmp_path, monkeypatch):
    """What runs a page beside servers of this machine for the clouds that it names."""
    with contextlib.ExitStack() as stack:

        def run(page):
            text = page.read_text(encoding="utf-8")
            try:
                found = stack.enter_context(stand_ins(text, tmp_path / "clouds"))
            except ServerMissing as error:
                pytest.skip(str(error))
            for name, value in found.variables.items():
                monkeypatch.setenv(name, value)
            run_page(page, addresses=found.addresses)

        yield run


@pytest.mark.parametrize("page", MINE, ids=name_of)
def test_the_page_runs_in_an_empty_folder(page, tmp_path, monkeypatch, clouds):
    """Top to bottom, Python and commands."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    clouds(page)


def test_every_store_is_tried_on_the_page_of_credentials():
    """Others have no server for tests."""
    code = "".join(block.code for block in blocks(DOCS / "guides" / "credentials.md"))
    remote = set(schemes()) - {"memory", "file"} - set(_stores.entries)
    untried = {scheme for scheme in remote if not re.search(rf"\b{re.escape(scheme)}:/", code)}
    assert untried == {"http", "https"}


def test_no_block_is_left_out_unsaid():
    """A block that is marked to run is run; any other is listed with its reason."""
    left = set(NOT_RUN)
    for page in PAGES:
        for block in blocks(page):
            entry = excuse(page, block)
            left.discard(entry)
            is_output = block.mark == "text" and not CODE.match(block.title)
            is_known = runs(page, block) or entry is not None or is_output
            is_launcher = page.name in LAUNCHED and LAUNCHER.match(block.title)
            assert is_known or is_launcher, f"{name_of(page)}:{block.line}: {block.title}"
    assert not left, f"there is no such block: {left}"


def test_code_is_in_plain_blocks():
    """No directive of the site holds code, where it would not be seen to be run."""
    for page in PAGES:
        for mark in re.findall(
            r"^(?:```|:::)(\{[\w-]+\})", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            assert mark in DIRECTIVES, f"{name_of(page)}: {mark}"


def test_pages_of_rooms_are_run_there():
    """The pages that had tests of their own before the others have them still."""
    assert {"cache.md", "convert.md", "frameworks.md", "order.md", "storage.md"} <= RUN_BY.keys()
    assert all(is_recipe(page) for page in (DOCS / "recipes").glob("*.md"))
    assert '"recipes"' in (ROOT / RECIPES).read_text(encoding="utf-8")
