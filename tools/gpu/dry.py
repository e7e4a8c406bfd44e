"""`tools/gpu-check --dry-run`: the same parts, with a Runner that says what it would start."""
import json
import os
import shlex
import sys
from pathlib import Path

import plan
from runner import ROOT, Runner

# What any program might have said, all of it well.
ANSWER = json.dumps({"ranks": 1, "rows": [{}], "wrong": 0, "wrong_bits": 0, "left_out": {}}) + """
========= ERROR SUMMARY: 0 errors
All tests passed (1 assertion in 1 test case)
"name"
"unit"
"value"
"""
GPUS = "no GPU was asked, 0, 0 MiB\n9.0\n"


class NoClocks:
    def start(self):
        pass

    stop = since_last = start


class DryRunner(Runner):
    """Starts nothing but the program of tests, to list its cases: that asks no GPU. Each part is taken to
    need all of its time, and within a part no time passes: a command's limit is what it has as the first."""

    def __init__(self, deps, seconds, build):
        self.build, self.seconds, self.passed = Path(build), seconds, 0
        print("start: before the first part")
        super().__init__(deps, seconds, os.devnull, None)
        self.clocks = NoClocks()

    def find(self, program):
        return program

    def left(self):
        return self.seconds - self.passed

    def run(self, *command, most=None):
        words = [str(word) for word in command]
        own = " ".join(f"{name}={value}" for name, value in self.environment.items()
                       if name.startswith("MUONRT_TEST_") and value and value != os.environ.get(name))
        words[0] = words[0].replace(sys.executable, "python3")
        line = " ".join(shlex.quote(word if "\n" not in word else "...") for word in words)
        limit = max(1.0, min(self.left(), most or self.left()))
        print(f"  at most {limit:3.0f} s  {own + ' ' if own else ''}{line.replace(str(ROOT) + '/', '')}")
        if "--list-tags" in words:
            return self.cases(words, limit)
        return 0, GPUS if words[0] == "nvidia-smi" else ANSWER

    def cases(self, words, limit):
        if Path(words[0]).exists():
            return super().run(*words, most=limit)
        files = [path.stem for path in (ROOT / "tests/cuda").glob("*_test.cpp")
                 if '"[cuda]' in path.read_text(encoding="utf-8")]
        return 0, " ".join(f"[#{name}]" for name in files)

    def part(self, name, work, seconds):
        kept, most = plan.PARTS[name]
        print(f"{name}: at most {seconds:.0f} s here; a run of all keeps {kept} s for it, and gives it {most} s at most")
        status = super().part(name, work, seconds)
        # What a slow machine may take for these is seldom what they need.
        self.passed += min(seconds, kept) if name in plan.NO_GPU_NEEDED else seconds
        return status

    def note(self, part, status, seconds, text="", data=None):
        if status != "ok":
            print(f"  {status}: {text}")
        super().note(part, status, seconds, text, data)

    def say(self, line):
        pass

    def write(self):
        pass
