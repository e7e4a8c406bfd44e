"""Runs `muonrt state` on checkpoints that muonrt_checkpoints makes, for the tests of `state`."""
import json
import resource
import subprocess
import sys
from pathlib import Path

from scratch import check, end, folder

MUONRT, MAKER = (Path(word).resolve() for word in sys.argv[1:3])
FOLDER = folder("state")


def make(name, *arguments):
    folder = FOLDER / name
    subprocess.run([MAKER, folder, *map(str, arguments)], check=True)
    return folder


def state(*words, code=0, seconds=600, bytes_of_memory=None):
    """Returns the output of the command, whose exit code must be `code`. Limits its time and, if given, its
    memory."""
    def limit():
        if bytes_of_memory:
            resource.setrlimit(resource.RLIMIT_AS, (bytes_of_memory, bytes_of_memory))
    done = subprocess.run([MUONRT, "state", *map(str, words)], capture_output=True, text=True,
                          timeout=seconds, preexec_fn=limit)
    check(done.returncode == code, f"{words}: exit code {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout + done.stderr


def state_json(*words, code=0):
    return json.loads(state(*words, "--json", code=code))
