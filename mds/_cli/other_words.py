"""Commands and options of other programs, and earlier ones of mds, with what to write instead.

Each table has what to write in front and the words that mean it behind. Words that are spelled
like a command or option of mds need no entry: click suggests those.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator

_SHUFFLED = (
    "Samples are written in the order of the source, and shuffled when they are read: "
    "StreamingDataset(..., shuffle=True, shuffle_seed=1)."
)
_MEASURED = (
    "Write in Python: loader = mds.StreamingDataLoader(mds.StreamingDataset('data/train'), "
    "batch_size=8); list(loader); print(loader.report())"
)
_LOOKED_UP = (
    "Write: mds run step STATE STEP, for the samples of a step, or mds head DATASET, for the first "
    "samples."
)
_SPLIT = (
    "Write: mds convert SOURCE OUT --split train=0.8,val=0.2, where SOURCE may be a dataset. A "
    "hash chooses the split of each sample, so sizes are near the shares."
)
_CACHED = (
    "A cache is a folder: local=, or one below $MDS_CACHE_DIR, or ~/.cache/mds. Limit it with "
    "cache_limit=, and delete the folder to clear it."
)
_WITHOUT_OPTION = "Give its value alone, without an option: {usage}"

#: The option to write (and perhaps a value), or a sentence, and words for it. A command takes the
#: first row that has the word and an option of this command, or a sentence.
_OPTIONS = (
    ("--limit", "--samples --sample --count --num --num-samples --max-samples --max-items"),
    ("--limit", "--max-rows --rows --head --first --take --lines"),
    ("--num-workers", "--workers --n-workers --num-proc --num-procs --processes --nproc"),
    ("--num-workers", "--jobs --threads --parallel --cpus --concurrency"),
    ("--on-error skip", "--skip-bad --skip-errors --skip-invalid --on-bad --errors --keep-going"),
    ("--on-error skip", "--ignore-errors --ignore-bad --ignore"),
    ("--overwrite", "--force --replace --clobber --yes -f -y"),
    ("--remove", "--delete --force --yes --rm -f -y"),
    ("--columns", "--fields --only --select --select-columns --keep --include-columns"),
    ("--column", "--columns --field --key --name"),
    ("--drop", "--exclude-columns --remove-columns --drop-columns --without"),
    ("--format", "--as --kind --type --from --input-format --source-format -t"),
    ("--compression", "--compress --codec --zstd --gzip -z"),
    ("--size-limit", "--shard-size --max-shard-size --chunk-size --chunk-bytes --shard-bytes"),
    ("--hash", "--hashes --checksum --checksums --digest"),
    ("--dry-run", "--plan --simulate --what-if --noop --preview"),
    ("--quiet", "--silent --no-progress --no-progress-bar --disable-progress -s"),
    ("--json", "--as-json --output-format --format"),
    ("--tokenizer", "--tokenize --encoder --tokenizer-name"),
    (
        "--block",
        "--block-size --seq-len --seq-length --max-length --context-length --concat-tokens",
    ),
    ("--end-token", "--eos --eos-token --eos-text"),
    ("--text-column", "--text-field --text-key --content-column"),
    ("--include", "--glob --pattern --extension --extensions --ext"),
    ("--config", "--subset --config-name"),
    (
        "--split train=0.8,val=0.2",
        "--splits --split-ratio --train --val --train-split --val-split --test-size",
    ),
    ("--resume", "--continue --restart"),
    ("--no-decode", "--fast --quick --shallow"),
    ("--plot", "--chart --graph"),
    ("--until", "--steps --max-steps --step"),
    ("--show", "--samples --rows --text --limit -n"),
    ("--data", "--local --remote --dataset --url --path"),
    ("--set", "--option --setting --param"),
    ("--version", "-V"),
    ("--storage-option", "--storage-options --store-option"),
    ("--storage-option endpoint_url=https://...", "--endpoint-url --endpoint"),
    ("Set the environment variable AWS_ENDPOINT_URL.", "--endpoint-url --endpoint"),
    ("--storage-option profile_name=NAME", "--profile"),
    ("--storage-option region_name=NAME", "--region"),
    ("--storage-option anonymous=true", "--no-sign-request --anon --anonymous"),
    (_SHUFFLED, "--shuffle --seed --shuffle-seed --random --shuffle-algo"),
    (_WITHOUT_OPTION, "--input --in --source --src --output --out --dest --target -i -o"),
    (_WITHOUT_OPTION, "--state --checkpoint --step --sample --local --remote --dataset --path"),
    (
        "Write in Python: mds.convert(filter(function, samples), OUT).",
        "--filter --where --query --predicate",
    ),
    (
        "Batches are made when samples are read: StreamingDataset(..., batch_size=8).",
        "--batch-size --bs",
    ),
)

#: What the arguments of a command are, to be filled in.
_ARGUMENTS = {
    "info": "DATASET",
    "head": "DATASET",
    "verify": "DATASET",
    "lengths": "DATASET",
    "clean": "PLACE",
    "index": "SOURCE [OUT]",
    "convert": "SOURCE OUT",
    "merge": "PARTS... OUT",
    "run step": "STATE STEP",
    "run sample": "STATE NUMBER",
    "run diff": "STATE STATE",
    "run mixture": "STATE",
}

#: The command to write, or a sentence, and words for it.
_COMMANDS = (
    ("info", "inspect ls list stat stats describe summary summarize schema count size"),
    ("info", "meta metadata columns"),
    ("head", "cat show view peek print preview less take first dump tail"),
    ("verify", "validate check fsck test integrity checksum"),
    ("convert", "build create write make import ingest prepare pack shard tokenize"),
    ("convert", "transform from copy cp sync upload"),
    ("merge", "join concat concatenate combine union merge-index"),
    ("clean", "gc prune rm remove cleanup purge delete"),
    ("index", "pin scan catalog register"),
    ("lengths", "length token-lengths"),
    ("run step", "step"),
    ("run sample", "find"),
    ("run diff", "compare diff"),
    ("run mixture", "plan mixture"),
    (_LOOKED_UP, "lookup samples sample batch"),
    ("Write: mds run step STATE STEP. mds run --help lists more.", "rewind history replay state"),
    (_SPLIT, "split train-test-split"),
    (_SHUFFLED, "shuffle"),
    (_MEASURED, "bench benchmark profile perf doctor speed report diagnose why time slow"),
    ("Write in Python: print(dataset.explain()).", "explain order"),
    (_CACHED, "cache cache-clear clear-cache clear"),
    ("Write: mds --version", "version"),
    ("Write: mds --help", "help commands"),
)


def hint_of_option(option: str, command: str, options: Collection[str]) -> str:
    """Return a sentence with what to write for an option of other programs, or '' for none.

    - ``option`` (str): The unknown option, such as "--workers".
    - ``command`` (str): The command that it was given to, such as "mds convert".
    - ``options`` (Collection[str]): The options that the command has.
    """
    for remedy, words in _OPTIONS:
        written_option = remedy.partition(" ")[0]
        if option not in words.split():
            continue
        if written_option in options:
            return f"Write {remedy}."
        if not remedy.startswith("--"):
            return remedy.replace("{usage}", _usage(command))
    return ""


def _usage(command: str) -> str:
    """Return the command line of a command such as "mds run step", with names for its operands."""
    if command == "mds-convert":
        return f"{command} {_ARGUMENTS['convert']}"
    operands = [_ARGUMENTS[name] for name in _ARGUMENTS if command.endswith(f" {name}")]
    return f"{command} {operands[0] if operands else '--help'}"


def hint_of_value(option: str, options: Collection[str]) -> str:
    """Return what to add to an error about the value of an option; '' for most."""
    if option == "-n" and "--dry-run" in options:
        return " -n is the number of samples, as --limit; write --dry-run to only show the plan."
    return ""


def hint_of_command(name: str, arguments: list[str], group: str) -> str:
    """Return a sentence with the command line to write for a command of other programs, or ''.

    - ``name`` (str): The unknown command, such as "inspect".
    - ``arguments`` (list[str]): What follows it.
    - ``group`` (str): The command before it: "mds" or "mds run".
    """
    if name == "rewind" and arguments:  # mds rewind step STATE 5
        name, *arguments = arguments
    for remedy, words in _COMMANDS:
        if name not in words.split():
            continue
        if remedy not in _ARGUMENTS:
            return remedy
        operands = _operands(remedy, arguments)
        line = f"Write: {' '.join([group.removesuffix(' run'), remedy, *operands])}"
        if remedy == "head" and arguments[1:] and arguments[1].isdecimal():  # a sample's number
            place, number = arguments[:2]
            line += f", or in Python: print(mds.StreamingDataset({place!r})[{number}])"
        return line
    if "://" in name or os.path.exists(name):
        return f"Write: {group} info {shlex.quote(name)}"
    return ""


def _operands(command: str, arguments: list[str]) -> Iterator[str]:
    """Yield the operands of a command line: those that were given, and names for those missing.

    Operands are taken up to the first option, because the value of an unknown option looks like an
    operand. The exception is "--sample 7", an option of earlier versions, which is an operand now.
    """
    names = _ARGUMENTS[command].split()
    for argument in (each for each in arguments if each != "--sample"):
        if argument.startswith("-") or not names:
            break
        yield shlex.quote(argument)
        if not names[0].endswith("..."):
            names = names[1:]
    if command == "merge" and len(arguments) > 1:
        return
    yield from names
