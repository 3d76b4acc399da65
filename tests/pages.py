"""Pages: what a Markdown page shows in its fenced blocks, its commands as lists of words, and what a script parses."""

import functools
import importlib
import itertools
import re
import shlex
import string
import typing

from forage.arguments import expanded, parse
from forage.grpo.options import PRESETS
from tests import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:python|make|torchrun) [^`]+)`")
SEPARATORS = {";", "&&", "||", "|", "&", "(", ")"}


def fenced(page, *languages):
    """The text of a page's fenced blocks in these languages."""
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def command_lines(text):
    """Commands of a shell block as lists of words: lines joined, comments left out, loops unrolled.

    Example: "for n in 1 2; do A=1 python x.py --n $n; done  # slow" is [["python", "x.py", "--n", "1"], [..., "2"]].
    """
    variables, found = {}, []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        while words:
            end = next((n for n, word in enumerate(words) if word in SEPARATORS), len(words))
            command, words = words[:end], words[end + 1 :]
            if command[:1] == ["for"]:
                variables[command[1]] = command[3:]
                continue
            while command and (command[0] in ("do", "then", "else") or re.match(r"\w+=", command[0])):
                name, _, value = command[0].partition("=")
                variables |= {name: [value]} if value else {}
                command = command[1:]
            redirected = next((n for n, word in enumerate(command) if word in (">", ">>", "<")), len(command))
            if command and command[0] not in ("done", "fi"):
                found += unrolled(command[:redirected], variables)
    return found


def unrolled(command, variables):
    """Example: echo $n with n = 1, 2 gives echo 1 and echo 2."""
    used = [name for name in variables if any(re.search(rf"\$\{{?{name}\b", word) for word in command)]
    values = [dict(zip(used, chosen, strict=True)) for chosen in itertools.product(*(variables[n] for n in used))]
    return [[string.Template(word).safe_substitute(chosen) for word in command] for chosen in values]


def commands_of(page):
    inline = [text.replace("\n", " ") for text in INLINE.findall(FENCE.sub("", page.read_text()))]
    blocks = fenced(page, "bash", "sh") + inline
    return [command for block in blocks for command in command_lines(block)]


def python_call(command):
    """(module, arguments) of a command that runs one of ours; None of any other."""
    for place, word in enumerate(command):
        if word.endswith(".py") and "/" not in word:
            return word.removesuffix(".py"), command[place + 1 :]
        if word == "-m" and command[place + 1].startswith(("forage.", "bench.")):
            package = (ROOT / command[place + 1].replace(".", "/")).is_dir()
            return command[place + 1] + (".__main__" if package else ""), command[place + 2 :]
    return None


@functools.cache
def options_of(module):
    """What a script's main takes: a dataclass of options, or a union of one for each subcommand."""
    return next(iter(typing.get_type_hints(importlib.import_module(module).main).values()))


def parsed(module, arguments):
    """The options as the script itself would parse them."""
    return parsed_once(module, tuple(arguments))


@functools.cache
def parsed_once(module, arguments):
    return parse(options_of(module), expanded(arguments, PRESETS if module == "grpo_train" else {}))
