"""Every remedy that a message names exists, and works when copied.

`REMEDIES` creates a situation, finds the remedy in the message, applies it and checks that it
helped. `WITHOUT_PROGRAM` lists the other messages that name a remedy, with the reasons.
"""

import ast
import builtins
import contextlib
import functools
import gc
import importlib
import inspect
import io
import logging
import pathlib
import pkgutil
import re
import sys
import warnings
from types import SimpleNamespace

import pytest

import mds
import mds.transforms
from mds._cli import convert, main
from mds.errors import MissingDependencyError

ROOT = pathlib.Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "docs"), str(ROOT / "tests" / "programs")]

from remedy_programs import REMEDIES, make_names, run_command  # noqa: E402
from test_troubleshooting import SITES, VARIABLE, template  # noqa: E402

pytestmark = pytest.mark.slow

#: Words of a message that ask for something, and what is asked for up to the end of the clause.
REQUEST = re.compile(
    r"(?:^|[.:;,)] |\bor |\band )(?:or |and )?"
    r"(?:give|write|set|leave|use|pass|name|choose|raise|record|run|take|convert|add|install|keep"
    r"|say|put|make|read|call|override|unset|load|save|resume|start|go on|declare|let|define"
    r"|do it|iterate|pip install|remove that)\s[^.;]*(?:\.\w[^.;]*)*",
    re.IGNORECASE,
)
#: An argument, an option, a command, a call, an environment variable.
CODE = re.compile(r"\w=|--[a-z]|\bmds[ -][a-z]+\b|pip install|\w\(|\b[A-Z]{3,}_[A-Z]")
SUBJECT = re.compile(r"^(?:\w+ )?(?:of )?[\w.]+\([^)]*\)|^\S+=\S+")  # select(...), skip(steps=3):


def remedies_of(text):
    """List the requests of a message that name code."""
    rest = text[SUBJECT.match(text).end() :] if SUBJECT.match(text) else text
    return [found[0] for found in REQUEST.finditer(rest) if CODE.search(found[0])]


@functools.cache
def all_texts():
    """Return (module, line, text) of every text with a space in the package, but docstrings."""
    texts = []
    for path in sorted((ROOT / "mds").rglob("*.py")):
        module = str(path.relative_to(ROOT))
        if module in NOT_MESSAGES:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        statements = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        parts = {
            part
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            if is_text and node not in statements and node not in parts:
                text = template(node)
                if " " in text:
                    texts.append((module, node.lineno, text))
    return texts


NOT_MESSAGES = {
    "mds/compat/_names.py": "lists of names",
    "mds/_preview.py": "HTML",
    "mds/_readers/codegen.py": "source code",
}


def public_callables():
    """Yield every public class and function of the package, and the methods of the classes."""
    for found in pkgutil.walk_packages(mds.__path__, "mds."):
        if found.name.endswith("__main__") or ".door" in found.name:
            continue
        try:
            module = importlib.import_module(found.name)
        except MissingDependencyError:  # an integration whose library is not installed
            continue
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_"):
                yield name, value
                if inspect.isclass(value):
                    methods = inspect.getmembers(value, callable)
                    yield from ((key, each) for key, each in methods if not key.startswith("__"))


@pytest.fixture(scope="module")
def known():
    """Return the names of callables and arguments, and the commands with their options."""
    functions, arguments = set(), set()
    for name, value in public_callables():
        functions.add(name)
        with contextlib.suppress(TypeError, ValueError):
            arguments |= set(inspect.signature(value).parameters)
        if inspect.isclass(value):
            arguments |= set(getattr(value, "__annotations__", ()))
    options = {
        option
        for command in (*main.commands.values(), *main.commands["run"].commands.values(), convert)
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return SimpleNamespace(
        functions=functions, arguments=arguments, options=options, commands=set(main.commands)
    )


#: Names of other libraries, and names that stand for names of the user.
OTHER_ARGUMENTS = {
    "dataloader_drop_last",
    *("accumulate_grad_batches", "exclude_from_loading"),  # of trainers
    *("global_batch_size", "load_trainer_state", "seq_len"),
    "embed_external_files",
    "max",  # of an element of HTML
    "row_group_size",
    "age",
    "train",
    "val",
    "rel",
}
OTHER_OPTIONS = {"--sparse", "--no-read-sparse", "--shm-size"}  # of tar, of bsdtar, of docker
OTHER_CALLS = {
    *dir(builtins),
    *("asarray", "astype", "item", "cpu", "numpy"),
    *("filled", "moveaxis"),  # of NumPy
    *("to", "to_dense", "view"),  # of a tensor
    "rewrite_data_files",  # of Iceberg
    "get_context",  # of multiprocessing
    "get_train_dataloader",  # of transformers
    "skip_first_batches",  # of accelerate
    "MapDataset",  # of mds.integrations.grain
    "DataFrame",  # of pandas
    "init_process_group",  # of torch
    "default_rng",  # of NumPy
    "write_datasink",  # of Ray
}
#: Words that follow "mds" in a sentence, as in "mds creates no process group".
VERBS = """
any calls can cannot computes conversion created creates did do does fetches has lists makes must
needs never opens reads sends than to uses wrote
"""


def missing(pattern, names):
    """List the places of texts that name what does not exist."""
    return [
        f"{module}:{line} {name}: {text}"
        for module, line, text in all_texts()
        for name in re.findall(pattern, text)
        if name not in names
    ]


def test_every_argument_exists(known):
    """What a message writes as ``name=`` is an argument of something public."""
    assert missing(r"(?<![\w-])([a-z]\w*)=(?!=)", known.arguments | OTHER_ARGUMENTS) == []


def test_every_option_exists(known):
    """What a message writes as ``--name`` is an option of a command."""
    unknown = missing(r"(?<![\w-])--[a-z][\w-]*", known.options | OTHER_OPTIONS)
    # This table has options of other programs; tests/unit/cli/test_usage.py checks its remedies.
    assert [each for each in unknown if not each.startswith("mds/_cli/other_words.py:")] == []


def test_every_command_exists(known):
    """What a message writes as ``mds name`` is a command."""
    assert missing(r"\bmds ([a-z]+)", known.commands | {*VERBS.split()}) == []


def test_every_function_exists(known):
    """What a message writes as ``name()`` can be called."""
    dunders = {"__init__", "__iter__", "__getitem__", "__len__"}
    assert missing(r"([A-Za-z_]\w*)\(", known.functions | OTHER_CALLS | dunders) == []


def test_every_page_exists():
    """A page of the docs that a message names is there, with the heading that is quoted."""
    for module, line, text in all_texts():
        for page in re.findall(r"\bdocs/[\w/]+\.md", text):
            assert (ROOT / page).exists(), f"{module}:{line} {page}"
        for heading, page in re.findall(r"'([^']+)' in (docs/[\w/]+\.md)", text):
            assert heading in (ROOT / page).read_text(encoding="utf-8"), f"{module}:{line}"


def needed_packages():
    """Yield (package, extra) of every message about a package that is not installed."""
    for path in sorted((ROOT / "mds").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "need":
                yield tuple(ast.literal_eval(each) for each in node.args[:2])


def test_every_extra_has_its_package():
    """What a message has installed brings the package that was missing."""
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = settings.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = {
        name: set(re.findall(r'"([\w-]+)', packages.lower().replace("-", "_")))
        for name, packages in re.findall(r"^(\w+) = \[(.*)\]$", section, re.MULTILINE)
    }
    needed = {(package, extra) for package, extra in needed_packages() if extra}
    assert needed
    for package, extra in needed:
        name = re.split("[<>=]", package.replace("-", "_"))[0]
        assert name in extras[extra], f"{package} of {extra}"
    for module, line, text in all_texts():
        for extra in re.findall(r"mds-streaming\[(\w+)\]", text):
            assert extra in extras, f"{module}:{line}"


# ------------------------------------------------------------------ what is applied


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Give what the programs name."""
    with (tmp_path / "state.json").open("wb", buffering=0) as file:
        text = io.TextIOWrapper(file, write_through=True)
        yield {**make_names(tmp_path, monkeypatch), "file": text}
        text.detach()


def run(program, names):
    """Run a program, and return whether it succeeded with all that it said."""
    log, output = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("mds").addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(output):
            warnings.simplefilter("always")
            if re.match("mds[ -]", program):
                succeeded, said = run_command(program, names)
            else:
                try:
                    succeeded, said = bool(eval(program, names)), ""
                except Exception as error:  # noqa: BLE001 - whatever it says is looked for
                    succeeded, said = False, str(error)
            gc.collect()  # an object that is left may warn
    finally:
        logging.getLogger("mds").removeHandler(handler)
    told = [said, *(str(each.message) for each in caught), log.getvalue(), output.getvalue()]
    return succeeded, "\n".join(told)


def flat(text):
    """Return a text without the line ends of a terminal."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(("situation", "asked", "applied"), REMEDIES)
def test_a_remedy_works_as_written(names, situation, asked, applied):
    """The message names the remedy, and with it the program succeeds and says that no more."""
    _, said = run(situation, names)
    assert asked.replace("{}", "") in flat(said), said
    for token in re.findall(r"\w+=|--[a-z][\w-]*|\w+\(", asked):
        assert (
            (token not in applied)
            if asked.startswith(("leave out", "leave it", "Leave out --resume"))
            else (token in applied)
        )
    value = re.search(re.escape(asked).replace(r"\{\}", r"(\d+)"), flat(said))
    program = applied.replace("={}", f"={value[1]}") if "={}" in applied else applied
    succeeded, after = run(program, names)
    assert succeeded, after
    assert asked not in flat(after)


#: Messages without a program here, by what their situation takes. Each is a part of the message.
WITHOUT_PROGRAM = {
    "tests/programs/bounds has the situation and the remedy.": [
        "which is its limit. Raise the limit before it starts",
        "worker processes: /dev/shm is full",
    ],
    "tests/programs/formats has the situation and the remedy.": [
        "this process was forked after its parent had used deltalake",
    ],
    "tests/unit has the situation and the remedy.": [
        "which is not of canonical node",
        "a pack has several documents: use step_rows",
        "were counted before. A packer must depend",
        "Name the URL of each stream with --data",
        "keep the bytes of the files with encodings=",
        "; read the bytes with encodings=",
        "a schedule speaks of streams by name",
        "Move the dataset into a subfolder, or list its index too",
        "needs a setting: give format=",
        "a value is null",
    ],
    "test_every_extra_has_its_package checks what is installed.": [
        "need the package",
        "needs the package soundfile",
        "a manifest of Parquet needs pyarrow",
    ],
    "It takes Spark, Ray or Grain, as in tests/programs/integrations.": [
        "is a data frame of Spark",
        "is a dataset of Ray",
        "MDSDatasource takes a StreamingDataset",
        "are null, so its type is unknown",
        "another program wrote a dataset to",
        "Write MapDataset(StreamingDataset(",
        "but Grain divides the samples among them",
        "is a variant, which mds cannot store",
    ],
    "It takes a trainer, as in tests/programs/integrations.": [
        "of a training dataset gives ranks different numbers of batches",
        "of a loader of torchtitan",
        "because they are not packs. Set packing= of the dataset",
        "tokens do not fit �=",
        "tokens, for �=",
        "the data is in epoch",
        "an epoch has no step of",
        "the schedule has ended the training",
        "of a loader of OLMo-core",
        "counts tokens: give a multiple",
        "Give the config of the one that made the data",
        "Name it with column=",
        "the dataset shuffles and packs by itself",
        "its loader to have no workers",
        "this checkpoint is within a step",
        "Name that of the tokens with column=",
        "the trainer has � data-parallel ranks",
        "its last step has fewer than the others",
        "Name a column of the dataset",
        "needs a StreamingDataset, got",
        "Grain divides the samples among them",
        "because they are not packs",
        "To convert texts, use mds-convert",
        "of an evaluation dataset repeats samples",
    ],
    "It comes under python -O alone.": ["cannot keep the order of streaming datasets"],
    "It comes where a part of a state is lost that others replace.": ["a part of one"],
    "It takes several ranks or workers: test_torchdata.py, test_meshes.py.": [
        "so no position is between its packs",
        "a worker of packs with microbatches=",
        "topology= is a DeviceMesh",
        "but mds does not know the number of ranks",
        "which took the process for the only rank",
    ],
    "The tests of Arrow's record batches and of LocalDataset do it.": [
        "rows as they are stored",
    ],
    "It takes gigabytes.": [
        "replace_samples() would drop",
        "GiB when decoded",
        "more than the limit of �. Do it once: mds index",
        "take �, but only � are free",
    ],
    "It takes files that no library writes.": [
        "Write it again with mds lengths",
        "its recorded length is",
        "CALL system.rewrite_data_files",
    ],
    "It takes an account, another user or a folder that is deleted meanwhile.": [
        "A dbfs:/ URL",
        "belongs to another user. Choose",
        "the work folder was deleted",
        "or the work folder",
    ],
}


def test_every_remedy_has_a_program_or_a_reason():
    """A new message that names a remedy needs one of them."""
    listed = [part for parts in WITHOUT_PROGRAM.values() for part in parts]
    asked = [text for _, text, _ in REMEDIES]
    missing_entries = []
    for module, line, _, text in SITES:
        pieces = [
            piece.strip(" .;:,")
            for request in remedies_of(text)
            for piece in request.split(VARIABLE)
            if sum(map(str.isalpha, piece)) > 8
        ]
        is_applied = any(each in text or piece in each for each in asked for piece in pieces)
        if pieces and not is_applied and not any(part in text for part in listed):
            missing_entries.append(f"{module}:{line} {text}")
    assert missing_entries == []


def test_no_reason_is_of_a_message_that_is_gone():
    """Each part that `WITHOUT_PROGRAM` lists is in a message."""
    texts = [text for *_, text in SITES]
    for parts in WITHOUT_PROGRAM.values():
        for part in parts:
            assert any(part in text for text in texts), part
