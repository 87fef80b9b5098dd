"""The command that prints a shell's completion script: completion."""

import os
from typing import ClassVar, Final

import click
from click.shell_completion import (
    BashComplete,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from proxy.cli import COMPLETION_VARIABLE

_BASH: Final = r"""%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" word prefix="" type value
    # Bash ends a word at a colon, and run names hold some: what is before the last one is on the line already.
    word="${line##*[[:space:]]}"
    [[ $word == --*=* ]] && word="${word#*=}"
    [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && prefix="${word%%"${word##*:}"}"
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            plain) COMPREPLY+=("${value#"$prefix"}") ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(COMP_WORDS="$line" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class _BashComplete(BashComplete):
    """Completion for Bash 4.4 or later, also of words with colons, and of files beside other words."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH

    def source(self) -> str:
        # BashComplete would look for a Bash first, and the script may be for another machine.
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], incomplete


@click.command("completion", short_help="Print the script by which a shell completes commands and run names.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options, files and the names of runs.

    \b
        source <(playhead completion bash)      # in ~/.bashrc
        source <(playhead completion zsh)       # in ~/.zshrc, after compinit
        playhead completion fish | source       # in ~/.config/fish/config.fish

    The shell has to find `playhead` on its PATH. Names of runs come from the running `playhead up`; without one, those that
    `record`, `fork` and `resume` began are known. Nothing is started to complete a word.
    """
    complete = get_completion_class(shell)
    assert complete is not None, "click completes for each of these shells"
    click.echo(complete(context.find_root().command, {}, "playhead", COMPLETION_VARIABLE).source(), nl=False)


COMMANDS = (completion_command,)
