#!/usr/bin/python3
"""bash_completion.py WEFT WEFTD - prints the bash completion of weft and weftd, from their --help.

Commands complete after weft and weft bench; long options after a dash; files everywhere else.
"""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import help_text  # noqa: E402

FUNCTIONS = r"""
# Completes the current word with one of these words, or with a file if there are none.
_weft_complete() {
    local current=${COMP_WORDS[COMP_CWORD]}
    if [[ $1 ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}

# Completes an option of the command $1, or a file. The words from $2 on may end the options with "--".
_weft_argument() {
    local word
    for word in "${COMP_WORDS[@]:$2:COMP_CWORD-$2}"; do
        [[ $word != -- ]] || { _weft_complete ""; return; }
    done
    case ${COMP_WORDS[COMP_CWORD]} in
    -*) _weft_complete "${_weft_options[$1]}" ;;
    *) _weft_complete "" ;;
    esac
}

_weft() {
    case $COMP_CWORD:${COMP_WORDS[1]} in
    1:*) _weft_complete "${_weft_commands[weft]} ${_weft_options[weft]}" ;;
    2:bench) _weft_complete "${_weft_commands[bench]} ${_weft_options[bench]}" ;;
    *:bench) _weft_argument "bench ${COMP_WORDS[2]}" 3 ;;
    *) _weft_argument "${COMP_WORDS[1]}" 2 ;;
    esac
}

_weftd() {
    _weft_argument weftd 1
}

complete -o filenames -F _weft weft
complete -o filenames -F _weftd weftd
"""


def row(name, words):
    return f'    ["{name}"]="{" ".join(words)}"'


def script(weft, weftd):
    tree = help_text.read_tree(weft)
    tree["weftd"] = help_text.read([weftd])
    top = tree.pop("")
    rows = ["# Completion of weft and weftd for bash.\n", "declare -gA _weft_commands=("]
    rows += [row("weft", [name for name, _ in top.commands]), row("bench", [name for name, _ in tree["bench"].commands])]
    rows += [")", "declare -gA _weft_options=(", row("weft", ["--help", "--version"])]
    for words, found in tree.items():
        rows.append(row(words, ["--" + option.name for option in found.options] or ["--help"]))
    return "\n".join(rows) + "\n)\n" + FUNCTIONS


if __name__ == "__main__":
    print(script(*sys.argv[1:]), end="")
