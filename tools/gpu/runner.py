"""How tools/gpu-check runs programs, keeps the time and writes down what came of it."""
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import children
from clocks import Clocks
from libraries import add_libraries, wheel_folders
from outputs import ends, last

ROOT = Path(__file__).resolve().parent.parent.parent


MOST_LOGGED = 1 << 20  # characters of one command: a file of tests can say the same of every element


class Missing(Exception):
    """What a part needs is not on this machine."""


class Runner:
    """@param json_file  is written after every part, so that nothing is lost with the rest.
    @param logs  a folder for gpu-check.log, the whole output of every command; or None."""

    def __init__(self, deps, seconds, json_file, logs):
        self.end = time.monotonic() + seconds
        self.json_file = Path(json_file)
        self.log_file = None
        if logs:
            Path(logs).mkdir(parents=True, exist_ok=True)
            self.log_file = open(Path(logs) / "gpu-check.log", "w", encoding="utf-8")
        self.rows, self.now = [], "start"
        self.environment = dict(os.environ)
        if deps:
            deps = Path(deps).resolve()
            self.prepend("CMAKE_PREFIX_PATH", deps, deps / "usr")
            places = [deps / "lib", deps / "lib64", deps / "usr/lib", *deps.glob("usr/lib/*-linux-gnu")]
            self.prepend("LD_LIBRARY_PATH", *[at for at in places if at.is_dir()])
            self.prepend("PATH", deps / "bin", deps / "usr/bin")
        toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
        if (toolkit / "bin").is_dir():
            self.prepend("PATH", toolkit / "bin")
        self.wheels = wheel_folders(self.environment)
        self.taken = add_libraries(self, toolkit)
        self.clocks = Clocks(self)

    def prepend(self, name, *folders):
        old = self.environment.get(name)
        if folders:
            self.environment[name] = ":".join([str(f) for f in folders] + ([old] if old else []))

    def left(self):
        return self.end - time.monotonic()

    def find(self, program):
        return shutil.which(program, path=self.environment["PATH"])

    def run(self, *command, most=None):
        """(status, output); status 124 where the time was over: then all it started is ended."""
        begin = time.monotonic()
        try:
            child = children.start([str(word) for word in command], cwd=ROOT, text=True,
                                   env=self.environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, errors="replace")
        except OSError as error:
            return 127, str(error)
        status, output = 124, ""
        try:
            output, _ = child.communicate(timeout=max(1.0, min(self.left(), most or self.left())))
            status = child.returncode
        except subprocess.TimeoutExpired:
            children.end(child)
            output = rest_of(child)
        finally:
            children.end(child)
            self.log(command, status, time.monotonic() - begin, output)
        return status, output

    def log(self, command, status, seconds, output):
        if self.log_file:
            self.log_file.write(f"==== {self.now}: {' '.join(str(word) for word in command)}\n"
                                f"{ends(output, MOST_LOGGED)}\n"
                                f"==== status {status} after {seconds:.1f} s\n\n")
            self.log_file.flush()

    def part(self, name, work, seconds):
        """Runs work(seconds) -> (status, text, data), whatever becomes of it."""
        start, self.now = time.monotonic(), name
        try:
            status, text, data = ("late", "no time was left; run it alone", None) \
                if self.left() < 2 else work(seconds)
        except Missing as missing:
            status, text, data = "missing", str(missing), None
        except children.Ended as ended:
            self.note(name, "late", time.monotonic() - start, f"ended by {ended}")
            raise
        except Exception as error:  # the other parts go on
            status, text, data = "failed", f"{type(error).__name__}: {error}", None
        self.note(name, status, time.monotonic() - start, text, data)
        return status

    def note(self, part, status, seconds, text="", data=None):
        self.rows.append({"part": part, "status": status, "seconds": round(seconds, 1),
                          "text": text, "data": data, "gpu": self.clocks.since_last()})
        print(f"{part:<12} {status:<8} {seconds:7.1f} s  {text}", flush=True)
        self.write()

    def write(self):
        whole = self.json_file.with_name(self.json_file.name + ".new")
        whole.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "rows": self.rows},
                                    indent=1) + "\n", encoding="utf-8")
        os.replace(whole, self.json_file)

    def amend(self, status, text):
        """Of the last part."""
        self.rows[-1].update(status=status, text=f"{self.rows[-1]['text']}; {text}")
        self.write()

    def statuses(self):
        return {row["status"] for row in self.rows}


def rest_of(child):
    """What one that has been ended had printed."""
    try:
        return child.communicate(timeout=5)[0]
    except subprocess.TimeoutExpired as error:  # stuck in the driver, or somebody has its pipe
        output = error.stdout or ""
        return output if isinstance(output, str) else output.decode(errors="replace")


def verdict(status, text):
    """(name, text, data) of a program that has ended."""
    name = {0: "ok", 77: "skipped", 124: "late"}.get(status, "failed")
    return name, ("late: " if name == "late" else "") + last(text), None if name == "ok" else {"output": ends(text)}
