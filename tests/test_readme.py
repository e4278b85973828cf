"""Everything that the README and the docs show runs as it stands."""

import ast
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_THE_GATE = 2  # its first two commands are what the gate itself runs


def blocks(page, language):
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for kind, code in BLOCK.findall(text) if kind == language]


def test_the_readme_from_top_to_bottom_in_an_empty_folder(tmp_path, monkeypatch, capsys):
    """Python and commands run in the order of the page; each program has all its names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    tools = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = 0
    for kind, code in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        if kind == "bash":
            commands += 1
            if commands > OF_THE_GATE:
                script = ["bash", "-euo", "pipefail", "-c", code]
                subprocess.run(script, check=True, timeout=600, env={**os.environ, "PATH": tools})
        else:
            names = {}
            exec(compile(code, "README.md", "exec"), names)
    assert [len(batch["label"]) for batch in names["remaining"]] == [32, 32, 32]
    assert names["state"]["sample_in_epoch"] == 32
    losses = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [step for step, loss in losses if float(loss) > 0] == ["0", "1", "2", "3"]


def test_the_readme_is_short():
    """Its training takes a dozen lines, converting takes one command, and the page is short."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
    _, program = blocks("README.md", "python")[:2]
    assert "loss.backward()" in program
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    assert blocks("README.md", "bash")[OF_THE_GATE].split() == [
        "mds-convert",
        "photos",
        "data/photos",
    ]


def answers(page):
    """Return the answers about each ability by its label, without the numbers of footnotes."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index("| | mds | mosaicml-streaming |") :].partition("\n\n")[0]
    rows = [re.sub(r" \[\d+\]", "", line).strip("| ").split(" | ") for line in table.splitlines()]
    return {row[0]: row[1:] for row in [rows[0], *rows[2:]]}


def test_the_answers_about_peers_are_those_of_their_page():
    """README has some rows of docs/peers.md, which has the evidence; each "partly" is explained."""
    rows = answers("README.md")
    assert 9 <= len(rows) <= 11  # with the heads
    evidence = answers("docs/peers.md")
    assert {label: evidence.get(label) for label in rows} == rows
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"\bpartly (?!\[)", text)
    footnotes = set(re.findall(r"^(\d+)\. ", text, re.MULTILINE))
    assert footnotes == set(re.findall(r" \[(\d+)\]", text))


def test_the_gate_runs_the_readmes_commands():
    """What the gate takes from the page as README's two commands are the first two."""
    setup, suite = blocks("README.md", "bash")[:OF_THE_GATE]
    assert "examples/quickstart.py" in setup
    assert "pytest" in suite
    # With -e, the links in the root hide folders of the same names in the user's own project.
    # With -q, the download of PyTorch prints nothing for minutes.
    assert not re.search(r"pip install -[eq]", setup + suite)
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for number, page in enumerate(blocks("README.md", "bash")[:OF_THE_GATE], start=1):
        assert f"\n  readme {number}\n" in gate
        command = [sys.executable, ".ci/readme_command.py", str(number)]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert printed.stdout == page


def test_one_page_says_how_to_install():
    """Until there is a release, no page has a command that fetches the package from PyPI."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in pages}
    fetch = re.compile(r"^(?:\S+/)?pip install (?:mds-streaming|\.)$", re.MULTILINE)
    assert [name for name, text in texts.items() if fetch.search(text)] == ["docs/start.md"]
    assert fetch.search(texts["docs/start.md"])[0] == "pip install ."
    assert "(start.md#install)" in texts["docs/index.md"]


def test_what_the_readme_shows_is_seen():
    """Its training prints the loss, and no line is a bare value, which a prompt would print."""
    programs = blocks("README.md", "python")
    (training,) = [program for program in programs if "loss.backward()" in program]
    assert "print(" in training
    for program in programs:
        values = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Expr)]
        assert all(isinstance(node.value, ast.Call) for node in values), program


def anchors(page):
    """The places of a page that a link may name: its headings, as repositories spell them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def test_links_lead_somewhere():
    """Every relative link of README and docs is a file, and a heading of it where it names one."""
    for page in [ROOT / "README.md", ROOT / "FORMAT.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(there), f"{page.name}: {target}#{anchor}"
