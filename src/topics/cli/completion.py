"""`topics completion bash|zsh|fish`: a script that a shell reads to complete commands, options and names [U-11].

    bash    eval "$(topics completion bash)"                  in ~/.bashrc
    zsh     eval "$(topics completion zsh)"                   in ~/.zshrc, behind compinit
    fish    topics completion fish | source                   in config.fish

The scripts know every command and option of this version; names of topics are asked of the server. Runs on the main
thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final, NamedTuple

from topics.cli import output
from topics.cli.main import COMMANDS, build_parser

NAMED: Final = ("create", "show", "rm", "config", "write", "read", "tail", "delete", "export", "queue")
"""Commands whose arguments are names of topics."""


class Completes(NamedTuple):
    """What may follow some words."""

    path: tuple[str, ...]
    words: tuple[str, ...]
    help: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell it is for")


def run(args: argparse.Namespace) -> int:
    script = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell]()
    if args.json:
        output.answer({"ok": True, "shell": args.shell, "script": script})
    else:
        print(script, end="")
    return 0


def known() -> list[Completes]:
    """Every command, and what may follow it."""
    return list(_walk(build_parser(), ()))


def _walk(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Completes]:
    words: list[str] = []
    nested: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            nested += action.choices.items()
            words += action.choices
        elif action.help != argparse.SUPPRESS:
            words += [option for option in action.option_strings if option.startswith("--")]
    yield Completes(path, tuple(words), parser.description or "")
    for name, sub in nested:
        yield from _walk(sub, (*path, name))


def bash() -> str:
    """For bash, and with bashcompinit for zsh."""
    cases = "\n".join(
        f'    "{" ".join(one.path)}") words="{" ".join(one.words)}" ;;' for one in known() if one.path or one.words
    )
    names = "|".join(NAMED)
    return f"""_topics_complete() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" path="" words="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    word="$path${{path:+ }}$word"
    if _topics_is_command "$word"; then path="$word"; fi
  done
  case "$path" in
{cases}
  esac
  case "$current:${{path%% *}}" in
    -*) ;;
    *:{names.replace("|", "|*:")}) words="$words $(topics ls --quiet 2>/dev/null)" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ "${{#COMPREPLY[@]}}" -eq 0 ]; then COMPREPLY=($(compgen -f -- "$current")); fi
}}
_topics_is_command() {{
  case "$1" in
    {"|".join(f'"{" ".join(one.path)}"' for one in known() if one.path)}) return 0 ;;
  esac
  return 1
}}
complete -F _topics_complete topics
"""


def zsh() -> str:
    """For zsh: the same, through its emulation."""
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash()


def fish() -> str:
    """For fish."""
    lines = ["complete -c topics -f"]
    top = {command.name: command.help for command in COMMANDS}
    lines += [f"complete -c topics -n __fish_use_subcommand -a {name} -d {_quoted(text)}" for name, text in top.items()]
    for one in known():
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in one.path)
        for word in one.words if one.path else ():
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c topics -n {_quoted(seen)} {what}")
    names = " ".join(NAMED)
    lines.append(f"complete -c topics -n '__fish_seen_subcommand_from {names}' -a '(topics ls --quiet 2>/dev/null)'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
