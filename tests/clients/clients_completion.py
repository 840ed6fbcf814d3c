"""Completion of names in bash, zsh and fish, with the scripts that the server prints."""

import os
import shutil
import subprocess

from harness import MIB, Skipped, check, equal, test

BASH = r"""
source "$1"
COMP_WORDBREAKS=$' \t\n"\'@><=;|&(:'
COMP_LINE="$2"; COMP_POINT=${#COMP_LINE}
read -ra COMP_WORDS <<< "$COMP_LINE"
[[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_forebay "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
[[ ${#COMPREPLY[@]} -gt 0 ]] && printf '%s\n' "${COMPREPLY[@]}"
"""

ZSH = r"""
compdef() { : }
compadd() { shift; print -l -- ${(P)1} }
_arguments() { print static }
source "$1"
words=(${(z)2})
[[ "$2" == *" " ]] && words+=("")
CURRENT=$#words
_forebay
"""


def setup(t):
    s = t.server()
    for name in ("pc-1", "pc-2", "a b", "other"):
        s.cli("volume", "create", name, "--size", "8M")
    s.cli("snapshot", "create", "pc-1", "monday")
    s.cli("image", "import", "pc-image", t.noise_file("noise", MIB))
    s.cli("target", "create", "iqn.2026-01.org.example:one")
    where = t.path("bin")
    os.mkdir(where)
    os.symlink(s.bin, os.path.join(where, "forebay"))
    env = dict(os.environ, FOREBAY_SOCKET=s.control, PATH=f"{where}:{os.environ['PATH']}")
    return s, env


def script(s, t, shell):
    if shutil.which(shell) is None:
        raise Skipped(f"{shell} is not installed")
    path = t.path(f"completions.{shell}")
    with open(path, "w") as f:
        f.write(s.cli("completions", shell).stdout)
    return path


def lines(argv, env):
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    equal(done.stderr, "", "standard error")
    return done.stdout.splitlines()


@test
def the_command_prints_names_and_is_silent_on_errors(t):
    s, env = setup(t)

    def names(*words):
        argv = [s.bin, "__complete", "--", *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        equal((done.returncode, done.stderr), (0, ""), f"the command for {words}")
        return done.stdout.splitlines()

    for words, expected in (
        (("volume", "show", "pc-"), ["pc-1", "pc-2"]),
        (("volume", "rm", "pc-1", "o"), ["other"]),
        (("volume", "export", "pc-1@"), ["pc-1@monday"]),
        (("volume", "connect", "pc"), ["pc-1", "pc-2", "pc-image"]),
        (("image", "show", ""), ["pc-image"]),
        (("snapshot", "rollback", "pc-1", "mo"), ["monday"]),
        (("target", "show", "iqn.2026-01.org.example:"), ["iqn.2026-01.org.example:one"]),
        (("volume", "create", ""), []),
        (("volume", "show", "none@"), []),
        ((), []),
    ):
        equal(names(*words), expected, f"the names for {words}")
    env["FOREBAY_SOCKET"] = t.path("no-socket")
    equal(names("volume", "show", ""), [], "names without a server")
    equal(names("--socket", s.control, "volume", "show", "oth"), ["other"], "a socket on the command line")


@test
def bash_completes_names(t):
    s, env = setup(t)
    path = script(s, t, "bash")
    complete = lambda line: lines(["bash", "--norc", "-c", BASH, "bash", path, f"{s.bin} {line}"], env)
    equal(complete("volume show pc"), ["pc-1", "pc-2"], "volumes")
    equal(complete("volume show "), ["a\\ b", "other", "pc-1", "pc-2"], "all volumes")
    # bash replaces what follows the last '@' or ':'.
    equal(complete("volume export pc-1@m"), ["monday"], "snapshots")
    equal(complete("target show iqn.2026-01.org.example:o"), ["one"], "targets")
    check("--help" in complete("volume show --h"), "options are completed by the script of clap")
    check("clone" in complete("volume cl"), "commands are completed by the script of clap")


@test
def zsh_completes_names(t):
    s, env = setup(t)
    path = script(s, t, "zsh")
    complete = lambda line: lines(["zsh", "-f", "-c", ZSH, "zsh", path, f"{s.bin} {line}"], env)
    equal(complete("volume show pc"), ["pc-1", "pc-2"], "volumes")
    equal(complete("volume export pc-1@m"), ["pc-1@monday"], "snapshots")
    equal(complete("volume show --h"), ["static"], "options are completed by the script of clap")


@test
def fish_completes_names(t):
    s, env = setup(t)
    path = script(s, t, "fish")
    env["HOME"] = t.dir
    complete = lambda line: [
        found.split("\t")[0]
        for found in lines(["fish", "--no-config", "-c", f"source {path}; complete -C 'forebay {line}'"], env)
    ]
    equal(complete("volume show pc"), ["pc-1", "pc-2"], "volumes")
    equal(complete("volume export pc-1@m"), ["pc-1@monday"], "snapshots")
    check("--help" in complete("volume show --h"), "options are completed by the script of clap")
