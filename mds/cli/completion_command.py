"""mds completion: what a shell needs to complete commands, options and names of inputs."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Completion for a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what SHELL needs to complete mds and mds-convert.

    For bash: mds completion bash >> ~/.bashrc. For zsh the same with ~/.zshrc. For fish: mds
    completion fish > ~/.config/fish/completions/mds.fish.
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    kinds = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    commands = {"mds": context.find_root().command, "mds-convert": _convert(context)}
    for name, command in commands.items():
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        made = kinds[shell](command, {}, name, variable)
        # Its source() would start the shell to ask for its version; the template is all it takes.
        click.echo(made.source_template % made.source_vars())


def _convert(context: click.Context) -> click.Command:
    root = context.find_root().command
    assert isinstance(root, click.Group)
    return root.commands["convert"]
