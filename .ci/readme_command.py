"""Print a shell command of README by its number: `python .ci/readme_command.py 1`."""

import pathlib
import re
import sys

README = pathlib.Path(__file__).parents[1] / "README.md"


def commands() -> list[str]:
    """Return the blocks of README that a reader pastes into a shell, in order."""
    text = README.read_text(encoding="utf-8")
    return re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    print(commands()[int(sys.argv[1]) - 1], end="")
