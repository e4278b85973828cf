"""Every remedy that a message names exists, and works when copied.

`REMEDIES` creates a situation, finds the remedy in the message, applies it and checks that it
helped. `REASONS` lists the other messages that name a remedy, and why no program applies it here.
"""

import ast
import builtins
import contextlib
import functools
import importlib
import inspect
import io
import logging
import pathlib
import pkgutil
import re
import shlex
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import mds
import mds.transforms
from mds.cli import convert, main

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "docs"))

from test_troubleshooting import SITES, VARIABLE, template  # noqa: E402

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
    "mds/compat/names.py": "lists of names",
    "mds/preview/page.py": "HTML",
    "mds/readers/codegen.py": "source code",
}


def public_callables():
    """Yield every public class and function of the package, and the methods of the classes."""
    for found in pkgutil.walk_packages(mds.__path__, "mds."):
        if found.name.endswith("__main__") or ".door" in found.name:
            continue
        for name, value in vars(importlib.import_module(found.name)).items():
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
        for command in (*main.commands.values(), convert)
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return SimpleNamespace(
        functions=functions, arguments=arguments, options=options, commands=set(main.commands)
    )


#: Names of other libraries, and names that stand for names of the user.
OTHER_ARGUMENTS = {"embed_external_files", "row_group_size", "age", "train", "val", "rel"}
OTHER_OPTIONS = {"--sparse", "--no-read-sparse"}  # of tar and of bsdtar
OTHER_CALLS = {
    *dir(builtins),
    *("asarray", "astype", "item", "cpu"),
    "filled",  # of NumPy
    "rewrite_data_files",  # of Iceberg
    "get_train_dataloader",  # of transformers
}
VERBS = {
    "makes",
    "does",
    "calls",
    "any",
    "than",
    "can",
    "conversion",
}  # "mds makes no process group"


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
    assert missing(r"(?<![\w-])--[a-z][\w-]*", known.options | OTHER_OPTIONS) == []


def test_every_command_exists(known):
    """What a message writes as ``mds name`` is a command."""
    assert missing(r"\bmds ([a-z]+)", known.commands | VERBS) == []


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
        assert package.replace("-", "_") in extras[extra], f"{package} of {extra}"
    for module, line, text in all_texts():
        for extra in re.findall(r"mds-streaming\[(\w+)\]", text):
            assert extra in extras, f"{module}:{line}"


# ------------------------------------------------------------------ what is applied

REMEDIES = []


def remedy(situation, asked, applied):
    """Add an entry: a program, the remedy that its message names, and the program with it.

    ``applied`` is true when the remedy helped. It holds every argument, option and function that
    ``asked`` names. Each program is an expression, or a command line that begins with ``mds``.
    """
    REMEDIES.append((situation, asked, applied))


remedy(
    "dataset().set_weights({'web': 2})",
    "give schedule=Schedule({0: {...}})",
    "StreamingDataset(streams={'web': Stream(local=d)}, batch_size=2, "
    "schedule=Schedule({0: {'web': 1}})).set_weights({'web': 2}) >= 0",
)
remedy("dataset().drop('all')", "Write drop([77123, 88012])", "dataset().drop([3, 4]) or True")
remedy(
    "batches(dataset(packing=Packing(budget=16, lengths='tokens'), local=tokens))",
    "use batch_size=1",
    "batches(dataset(packing=Packing(budget=16, lengths='tokens'), local=tokens, batch_size=1), "
    "batch_size=1)",
)
remedy(
    "list(dataset(packing=Packing(8, lengths='tokens'), local=tokens))",
    "iterate StreamingDataLoader(dataset, pack_as='varlen')",
    "list(StreamingDataLoader("
    "dataset(packing=Packing(8, lengths='tokens'), local=tokens), pack_as='varlen'))",
)
remedy(
    "StreamingDataLoader(dataset(), batch_size=2, pack_as='varlen')",
    "give it packing=Packing(...)",
    "list(StreamingDataLoader("
    "dataset(packing=Packing(8, lengths='tokens'), local=tokens), pack_as='varlen'))",
)
remedy(
    "dataset(packing=Packing(8, lengths='tokens'), local=tokens).state_dict(num_samples=2)",
    "Use state_dict() of the StreamingDataLoader",
    "StreamingDataLoader(dataset(packing=Packing(8, lengths='tokens'), local=tokens)).state_dict()",
)
remedy(
    "dataset().select(lambda sample: sample['id'] < 5)",
    "Write select(where=function)",
    "dataset().select(where=lambda sample: sample['id'] < 5).num_samples == 5",
)
remedy(
    "dataset().select([[1, 2]])",
    "Write select([0, 7])",
    "dataset().select([0, 7]).num_samples == 2",
)
remedy(
    "dataset().select([1], where=lambda sample: True)",
    "select([0, 7]), or select(where=lambda sample: ...)",
    "dataset().select(where=lambda sample: sample['id'] in (0, 7)).num_samples == 2",
)
remedy(
    "dataset().select(where=lambda sample: True, key=3)",
    "select(where=lambda sample: ..., key='long')",
    "dataset().select(where=lambda sample: sample['id'] > 3, key='long').num_samples == 16",
)
remedy(
    "dataset().select([1, 1])",
    "use repeat= of a Stream",
    "StreamingDataset(streams=[Stream(local=d, repeat=2)], batch_size=2).epoch_size == 40",
)
remedy(
    "dataset().select(text_file)",
    "Write one with numpy.save()",
    "numpy.save(folder + '/ids.npy', [1, 2]) or "
    "dataset().select(folder + '/ids.npy').num_samples == 2",
)
remedy(
    "dataset().select(folder + '/none.npy')",
    "write select(where=...)",
    "dataset().select(where=lambda sample: sample['id'] < 5).num_samples == 5",
)
remedy(
    "StreamingDataset(local=d, batch_size=2, schedule=Schedule({0: {'web': 1}}))",
    "give streams={'web': Stream(...), ...}",
    "StreamingDataset(streams={'web': Stream(local=d)}, batch_size=2, "
    "schedule=Schedule({0: {'web': 1}}))",
)
remedy(
    "StreamingDataset(streams=[d], batch_size=2)",
    "Write Stream(remote=...) or Stream(local=...)",
    "StreamingDataset(streams=[Stream(remote=d, local=folder + '/copy')], batch_size=2)[0]",
)
remedy(
    "StreamingDataset(batch_size=2)",
    "give streams=, remote= or local=",
    "StreamingDataset(streams=[Stream(remote=d, local=d)], batch_size=2)",
)
remedy(
    "StreamingDataLoader(d)",
    "Write StreamingDataLoader(StreamingDataset(local=...), batch_size=...)",
    "StreamingDataLoader(StreamingDataset(local=d, batch_size=2), batch_size=2)",
)
remedy(
    "StreamingDataLoader(dataset(), batch_size=2, prefetch_factor=2)",
    "Give num_workers= as well",
    "batches(dataset(), num_workers=1, prefetch_factor=2)",
)
remedy(
    "StreamingDataLoader(dataset(), batch_size=2, num_workers=1, workers='threads', "
    "persistent_workers=True)",
    "say workers='processes'",
    "batches(dataset(), num_workers=1, workers='processes', persistent_workers=True)",
)
remedy(
    "batches(StreamingDataset(streams=[Stream(local=d), Stream(local=tokens)], batch_size=2))",
    "Give columns= that all have, batching_method='per_stream', or a collate_fn=",
    "[batches(StreamingDataset(streams=[Stream(local=d), Stream(local=tokens)], batch_size=2, "
    "**given), **loader) for given, loader in ((dict(columns=['id']), {}), "
    "(dict(batching_method='per_stream'), {}), ({}, dict(collate_fn=list)))]",
)
remedy(
    "batches(dataset().map(seeded(lambda sample, rng: sample)), num_workers=1, workers='threads')",
    "Use workers='processes', or draw from the argument rng of map()",
    "batches(dataset().map(seeded(dict)), num_workers=1, workers='processes') "
    "and batches(dataset().map(draw), num_workers=1, workers='threads')",
)
remedy(
    "batches(dataset().map_batches(lambda batch: batch), batch_size=None)",
    "give the loader a batch_size, or use map()",
    "batches(dataset().map(lambda sample: sample), batch_size=None)",
)
remedy(
    "dataset().map_batches(lambda batch: batch)[0]",
    "read this dataset with StreamingDataLoader",
    "list(StreamingDataLoader(dataset().map_batches(lambda batch: batch), batch_size=2))",
)
remedy(
    "batches(dataset().map(lambda sample: 3).map_batches(lambda batch: batch))",
    "let the function of map() return a dict",
    "batches(dataset().map(lambda sample: {'three': 3}).map_batches(lambda batch: batch))",
)
remedy(
    "batches(dataset().map(lambda sample: {str(sample['id'] % 2): 1}).map_batches(dict))",
    "Let the function of map() return the same keys",
    "batches(dataset().map(lambda sample: {'a': 1}).map_batches(dict))",
)
remedy(
    "batches(dataset(local=tokens), collate_fn=stack('tokens'))",
    "take pad() or ragged() for rows of different lengths",
    "batches(dataset(local=tokens), collate_fn=pad('tokens')) "
    "and batches(dataset(local=tokens), collate_fn=ragged('tokens'))",
)
remedy(
    "images('image', masks='mask', size=224)",
    "write images('image', masks=['mask'], size=224)",
    "images('image', masks=['mask'], size=224)",
)
remedy(
    "images('image', size=8, dtype='uint8', mean=(0, 0, 0), std=(1, 1, 1))",
    "leave out dtype='uint8'",
    "images('image', size=8, mean=(0, 0, 0), std=(1, 1, 1))",
)
remedy(
    "MDSWriter(out=new, columns={})",
    "Write columns={'text': 'str'}",
    "written(new, columns={'text': 'str'}, sample={'text': 'a'})",
)
remedy(
    "written(new, {'a': 'int'}, {'a': 1, 'b': 2})",
    "say strict=False (or strict=True to have an error)",
    "written(new + '2', {'a': 'int'}, {'a': 1, 'b': 2}, strict=False)  # or strict=True",
)
remedy(
    "written(new, {'a': 'int64'}, {'a': 1.5})",
    "Write round(value), or use the encoding 'float64'",
    "written(new, {'a': 'int64'}, {'a': round(1.5)}) "
    "and written(new + '2', {'a': 'float64'}, {'a': 1.5})",
)
remedy(
    "dataset().load_state_dict(3)",
    "Give what state_dict() returned",
    "dataset().load_state_dict(dataset().state_dict(num_samples=2)) is None",
)
remedy(
    "dataset().load_state_dict({})",
    "Give what state_dict() of the dataset or of the StreamingDataLoader returned",
    "dataset().load_state_dict(StreamingDataLoader(dataset(), batch_size=2).state_dict()) is None",
)
remedy(
    "dataset(local=pickles)[0]",
    "Pass allow_unsafe_types=True",
    "dataset(local=pickles, allow_unsafe_types=True)[0]['a'] == {1}",
)
remedy(
    "dataset(remote=many, local=folder + '/small', cache_limit=1)[0]",
    "Set cache_limit to {}",
    "dataset(remote=many, local=folder + '/small', cache_limit={})[0]",
)
remedy(
    "mds-convert {named} {new} --fill 5",
    "Write name=",
    "mds-convert {named} {new} --fill name=5",
)
remedy(
    "mds-convert {named} {new} --describe 5",
    "Write name=",
    "mds-convert {named} {new} --describe name=number",
)
remedy(
    "mds-convert {lines} {new} --split 5",
    "Write train=0.98,val=0.02",
    "mds-convert {lines} {new} --split train=0.98,val=0.02",
)
remedy(
    "mds-convert {archive} {new}",
    "say --as files",
    "mds-convert {archive} {new} --as files",
)
remedy("mds-convert - {new}", "say so with --as jsonl", "mds-convert - {new} --as jsonl")
remedy(
    "mds-convert {lines} {new} --labels labels.csv",
    "leave it out",
    "mds-convert {lines} {new}",
)
remedy(
    "mds-convert {two} {new} --tokenizer bytes --block 4",
    "Name one with --text-column",
    "mds-convert {two} {new} --tokenizer bytes --block 4 --text-column b",
)
remedy(
    "mds-convert {bad} {new}",
    "leave such records out with --skip-bad",
    "mds-convert {bad} {new} --skip-bad",
)
remedy(
    "mds-convert {parts} {new} --split train=0.5,val=0.5",
    "have them merged (--merge-splits)",
    "mds-convert {parts} {new} --split train=0.5,val=0.5 --merge-splits",
)
remedy(
    "mds-convert {lines} {new} --work {d}",
    "Choose another with --work",
    "mds-convert {lines} {new} --work {folder}/empty",
)
remedy(
    "StreamingDataLoader(dataset(), batch_size=2).skip(steps=3)",
    "as range(12300, 12400)",
    "StreamingDataLoader(dataset(), batch_size=2).skip(steps=range(2, 4)) or True",
)
remedy(
    "batches(dataset(packing=Packing(8, lengths='id'), local=d))",
    "Give lengths= another column",
    "batches(dataset(packing=Packing(8, lengths='tokens'), local=tokens))",
)
remedy("seeded(3)", "Write dataset.map(seeded(function))", "dataset().map(seeded(dict))[0]")
remedy(
    "dataset().drop(range(15))",
    "leave them out with select()",
    "dataset().select([15, 16, 17]).num_samples == 3",
)
remedy(
    "list(dataset(topology=(0, 64)))",
    "Use exact=True for every sample once",
    "list(dataset(topology=(0, 64), exact=True))",
)
remedy(
    "batches(dataset().map(lambda sample: sample), num_workers=1, multiprocessing_context='spawn')",
    "take multiprocessing_context='fork' or workers='threads'",
    "batches(dataset().map(dict), num_workers=1, multiprocessing_context='fork') "
    "and batches(dataset().map(dict), num_workers=1, workers='threads')",
)
remedy(
    "mds-convert - {new} --as jsonl --resume",
    "leave out --resume",
    "mds-convert - {new} --as jsonl",
)
remedy(
    "StreamingDataset(remote=odd + '/*', local=folder + '/copy', batch_size=1)",
    "give format=, one of",
    "StreamingDataset(remote=odd + '/*', local=folder + '/copy', batch_size=1, format='jsonl')[0]",
)
remedy(
    "StreamingDataset(remote=odd + '/*.odd', local=folder + '/copy', batch_size=1)",
    ".parquet, .tar, .txt: rename these",
    "StreamingDataset(remote=odd + '/*.jsonl', local=folder + '/copy', batch_size=1)[0]",
)


def draw(sample, rng):
    """Return a sample with a random number."""
    return {**sample, "draw": rng.random()}


def write_datasets(folder):
    """Write the datasets and files that the programs name."""
    paths = {
        name: str(folder / name)
        for name in (
            "d",
            "tokens",
            "pickles",
            "many",
            "new",
            "text_file",
            "lines",
            "two",
            "bad",
            "named",
        )
    }
    paths["odd"] = str(folder / "odd")
    paths["archive"] = str(folder / "photos.zip")
    paths["parts"] = str(folder / "parts")
    for name in ("lines", "two", "bad", "named"):
        paths[name] += ".jsonl"

    def write(name, columns, samples, **given):
        with mds.MDSWriter(out=paths[name], columns=columns, **given) as writer:
            for sample in samples:
                writer.write(sample)

    write("d", {"id": "int", "name": "str"}, [{"id": n, "name": "x"} for n in range(20)])
    write(
        "tokens",
        {"id": "int", "tokens": "ndarray:int32"},
        [{"id": n, "tokens": np.arange(1 + n % 5, dtype=np.int32)} for n in range(20)],
    )
    write("pickles", {"a": "pkl"}, [{"a": {1}}])
    write("many", {"id": "int"}, [{"id": n} for n in range(2000)], size_limit=2000)
    (folder / "lines.jsonl").write_text('{"id": 1}\n{"id": null}\n{"id": 2}\n')
    (folder / "two.jsonl").write_text('{"a": "x y", "b": "y z"}\n' * 9)
    (folder / "bad.jsonl").write_text('{"id": 1}\n' * 30 + "{broken\n")
    (folder / "named.jsonl").write_text('{"name": 1}\n{"name": null}\n')
    (folder / "text_file").write_text("text")
    (folder / "odd").mkdir()
    for ending in ("odd", "jsonl"):
        (folder / "odd" / f"a.{ending}").write_text('{"id": 1}\n')
    (folder / "photos.zip").write_bytes(b"PK")
    (folder / "empty").mkdir()
    for part in ("train", "val"):
        (folder / "parts" / part).mkdir(parents=True)
        (folder / "parts" / part / "a.jsonl").write_text('{"id": 1}\n' * 5)
    return paths


@pytest.fixture
def names(tmp_path):
    """Return what the programs name."""
    paths = write_datasets(tmp_path)

    def dataset(**given):
        return mds.StreamingDataset(**{"local": paths["d"], "batch_size": 2, **given})

    def batches(dataset, **given):
        return list(mds.StreamingDataLoader(dataset, **{"batch_size": 2, **given}))

    def written(out, columns, sample, **given):
        with mds.MDSWriter(out=out, columns=columns, **given) as writer:
            writer.write(sample)
        return len(mds.StreamingDataset(local=out, batch_size=1)) == 1

    return {
        **vars(mds),
        **vars(mds.transforms),
        **{name: getattr(mds, name) for name in mds.__all__},
        **{name: getattr(mds.transforms, name) for name in mds.transforms.__all__},
        **paths,
        "folder": str(tmp_path),
        "numpy": np,
        "torch": torch,
        "dataset": dataset,
        "batches": batches,
        "written": written,
        "draw": draw,
    }


def run(program, names):
    """Run a program, and return whether it succeeded with all that it said."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("mds").addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if program.startswith("mds"):
                command, *arguments = shlex.split(program.format(**names))
                called = convert if command == "mds-convert" else main
                result = CliRunner().invoke(called, arguments, input='{"id": 1}\n')
                succeeded, said = result.exit_code == 0, result.output
            else:
                try:
                    succeeded, said = bool(eval(program, names)), ""
                except Exception as error:  # noqa: BLE001 - whatever it says is looked for
                    succeeded, said = False, str(error)
    finally:
        logging.getLogger("mds").removeHandler(handler)
    return succeeded, "\n".join([said, *(str(each.message) for each in caught), log.getvalue()])


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
            if asked.startswith(("leave out", "leave it"))
            else (token in applied)
        )
    value = re.search(re.escape(asked).replace(r"\{\}", r"(\d+)"), flat(said))
    program = applied.replace("={}", f"={value[1]}") if "={}" in applied else applied
    succeeded, after = run(program, names)
    assert succeeded, after
    assert asked not in flat(after)


#: Messages without a program here, by what their situation takes. Each is a part of the message.
WITHOUT_PROGRAM = {
    "test_every_extra_has_its_package checks what is installed": [
        "need the package",
        "needs the package soundfile",
        "a manifest of Parquet needs pyarrow",
    ],
    "It takes a program of the user, which the remedy rewrites.": [
        "made before the process forked",
        "exact='mask' marks every place",
        "iterates by itself",
        "the position is not exact",
        "can stand for a batch of which nothing",
        "a type that NumPy lacks",
        "beyond 2**63 - 1",
        "have � of another kind already",
        "batches get a column 'mask'",
        "deals the samples out to ranks",
        "of streaming datasets keeps no order",
        "was never finished",
        "has a lone surrogate",
        "loses its palette",
        "class_names and",
    ],
    "It takes a state of another run.": [
        "of a loader; expected one",
        "is neither JSON nor a file of torch.save",
        "select(), limit() or split() chose",
        "and has no cursors",
        "the state is a part of one",
    ],
    "It takes a long training, or more data than a test writes.": [
        "has given all it may",
        "are too few for",
        "documents have different lengths",
        "how many tokens a step has",
        "samples would be dropped",
        "decoded it takes more than",
        "more than �. Do it once: mds index",
    ],
    "It takes files of other programs, or damaged ones.": [
        "the statistics of the file say",
        "is not a �; name another type",
        "Leave it out with",
        "none of those had it",
        "CALL system.rewrite_data_files",
        "is not of the kind of",
        "has no path",
        "is not a number of bytes",
        "run mds index anew",
        "say with content=",
        "say with format= which",
        "alone does not say which",
        "Make it anew with mds lengths",
        "arrays follow the tokens",
        "have it None there",
        "do not fit into",
        "headers of shards",
        "its recorded length is",
    ],
    "It takes pictures of an odd kind.": [
        "a mask has one whole number",
        "has a list of",
        "so their sizes must agree",
        "has annotations of the pictures",
        "seems to hold masks",
    ],
    "It takes a cloud account, a launcher, another user or another machine.": [
        "names no container",
        "An azure:// URL",
        "A dbfs:/ URL",
        "answered with a web page",
        "Alipan",
        "SLURM_PROCID",
        "Pass topology= to say",
        "another user made it",
    ],
    "It takes a conversion or a writer that was interrupted.": [
        "a conversion was begun here",
        "is not the plan of a conversion",
        "differs in",
        "take �, and � are free",
        "the work folder was deleted",
        "or the work folder",
        "a writer that did not finish",
    ],
    "It takes a source that cannot be listed, read or told apart.": [
        "Take one with --source-split",
        "some files are whole JSON",
        "nine of ten files",
        "Name it with --end-token",
        "cannot be listed",
        "of no kind that is read",
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
