"""How tools/gpu-check runs programs, keeps the time and writes down what came of it."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from outputs import last

ROOT = Path(__file__).resolve().parent.parent.parent


class Missing(Exception):
    """What a part needs is not on this machine."""


class Runner:
    """@param json_file  is written after every part, so that nothing is lost with the rest."""

    def __init__(self, deps, seconds, json_file):
        self.end = time.monotonic() + seconds
        self.json_file = Path(json_file)
        self.rows = []
        self.environment = dict(os.environ)
        if deps:
            deps = Path(deps).resolve()
            self.prepend("CMAKE_PREFIX_PATH", deps, deps / "usr")
            self.prepend("LD_LIBRARY_PATH", *[at for at in (deps / "lib", deps / "lib64",
                         deps / "usr/lib", deps / "usr/lib/x86_64-linux-gnu") if at.is_dir()])
            self.prepend("PATH", deps / "bin", deps / "usr/bin")
        toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
        if (toolkit / "bin").is_dir():
            self.prepend("PATH", toolkit / "bin")
        # Libraries that came with PyTorch, where the system has none of the name; else the toolkit's,
        # behind all others, since it holds more than the one that is looked for.
        self.wheels = wheel_folders(self.environment)
        known = self.known_libraries()
        here = [Path(f) for f in self.environment.get("LD_LIBRARY_PATH", "").split(":") if f]
        for name in ("libcublasLt.so", "libnccl.so"):
            if name in known or any(list(folder.glob(name + "*")) for folder in here):
                continue
            wheels = [wheel / "lib" for wheel in self.wheels if list((wheel / "lib").glob(name + "*"))]
            self.prepend("LD_LIBRARY_PATH", *wheels)
            if not wheels and list((toolkit / "lib64").glob(name + "*")):
                paths = self.environment.get("LD_LIBRARY_PATH", "").split(":")
                self.environment["LD_LIBRARY_PATH"] = ":".join(
                    [path for path in paths if path] + [str(toolkit / "lib64")])

    def prepend(self, name, *folders):
        old = self.environment.get(name)
        if folders:
            self.environment[name] = ":".join([str(f) for f in folders] + ([old] if old else []))

    def known_libraries(self):
        return self.run(self.find("ldconfig") or "/sbin/ldconfig", "-p", most=30)[1]

    def left(self):
        return self.end - time.monotonic()

    def find(self, program):
        return shutil.which(program, path=self.environment["PATH"])

    def run(self, *command, most=None):
        """(status, output); status 124 where the time was over: then all it started is ended."""
        limit = max(1.0, min(self.left(), most or self.left()))
        try:
            child = subprocess.Popen([str(word) for word in command], cwd=ROOT, text=True,
                                     env=self.environment, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, errors="replace",
                                     start_new_session=True)
        except OSError as error:
            return 127, str(error)
        try:
            output, _ = child.communicate(timeout=limit)
            return child.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
        try:
            output, _ = child.communicate(timeout=5)
        except subprocess.TimeoutExpired as error:  # stuck in the driver, or somebody has its pipe
            output = error.stdout or ""
            output = output if isinstance(output, str) else output.decode(errors="replace")
        return 124, output

    def part(self, name, work, seconds):
        """Runs work(seconds) -> (status, text, data), whatever becomes of it."""
        start = time.monotonic()
        try:
            status, text, data = ("late", "no time was left; run it alone", None) \
                if self.left() < 2 else work(seconds)
        except Missing as missing:
            status, text, data = "missing", str(missing), None
        except Exception as error:  # the other parts go on
            status, text, data = "failed", f"{type(error).__name__}: {error}", None
        self.note(name, status, time.monotonic() - start, text, data)

    def note(self, part, status, seconds, text="", data=None):
        self.rows.append({"part": part, "status": status, "seconds": round(seconds, 1),
                          "text": text, "data": data})
        print(f"{part:<12} {status:<8} {seconds:7.1f} s  {text}", flush=True)
        whole = self.json_file.with_name(self.json_file.name + ".new")
        whole.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "rows": self.rows},
                                    indent=1) + "\n", encoding="utf-8")
        os.replace(whole, self.json_file)

    def statuses(self):
        return {row["status"] for row in self.rows}


def wheel_folders(environment):
    """Folders of python packages that carry NVIDIA's libraries, such as PyTorch's."""
    done = subprocess.run(
        [sys.executable, "-c", "import nvidia; print('\\n'.join(nvidia.__path__))"], text=True,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    found = [sub for folder in done.stdout.split() for sub in sorted(Path(folder).glob("*"))]
    return [folder for folder in found if (folder / "lib").is_dir()]


def verdict(status, text):
    """(name, text, data) of a program that has ended."""
    name = {0: "ok", 77: "skipped", 124: "late"}.get(status, "failed")
    return name, last(text), None if name == "ok" else {"output": text[-8000:]}
