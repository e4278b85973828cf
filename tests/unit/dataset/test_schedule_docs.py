"""What docs/schedule.md shows runs as it stands."""

import pathlib
import re

from mds import MDSWriter

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "schedule.md"


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    """One after the other, as a reader would type them; what is printed is on the page."""
    monkeypatch.chdir(tmp_path)
    for name, size in (("web", 1200), ("code", 300), ("math", 100)):
        with MDSWriter(out=f"data/{name}", columns={"id": "int"}, size_limit=800) as writer:
            for number in range(size):
                writer.write({"id": number})
    text = PAGE.read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert list(names["state"].values())[:2] == [1, 31 * 16]
    assert len(names["following"]["id"]) == 16
    printed = capsys.readouterr().out
    [shown] = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert [" ".join(line.split()) for line in shown.splitlines()] == [
        " ".join(line.split())
        for line in printed.splitlines()
        if line.split()[0] in {"schedule", "web", "code", "math"}
    ]
