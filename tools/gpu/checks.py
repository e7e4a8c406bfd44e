"""The parts of tools/gpu-check that ask whether results are right."""
import contextlib
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import children
import libraries
from entries import Entries
from kernels import Kernels
from outputs import asserted_nothing, counted_by_driver, ends, last, said_left_out
from runner import ROOT, Missing, verdict

TESTS = ROOT / "tests/cuda"
# Cases for a GPU, as Catch2 takes them: short ones, over every shape, on every mesh.
SHORT, EVERY, MESHES = "[cuda]~[.]~[every]", "[cuda][every]~[.],[cuda][.full]", "[.gpu-only]"
# What is looked at first, where there is no time for all: products, then what is made of them.
FIRST_FILES = ("symmetric_test", "lockstep_test", "newton_schulz_test", "multiply_test", "elementwise_test",
               "optimizer_test", "symmetric_acceptance_test")
# Files of tests at a time: most of their seconds is the host's.
SIDE_BY_SIDE = max(1, min(5, (os.cpu_count() or 1) // 3))
# Seconds of the test files that may take more than others: products of up to 8192 x 8192, the first
# that loads NCCL, deadlines that pass.
LONGER = {"symmetric_acceptance_test": 90, "newton_schulz_spectra_test": 60, "gpu_nccl_test": 60,
          "gpu_nccl_hang_test": 60, "normalize_test": 60, "unpack_test": 60}
PROBE = ["bench", "gemm", "--shapes", "64x64", "--device", "cuda", "--warmup", 1, "--iters", 1, "--json"]
FIRST_USE = 60  # seconds of a program that nobody has read from its disk yet
# Seconds that are plenty for a script of tests/cli, in their order: `step` starts the command some 170
# times, each with a context of its own, so it comes last.
SCRIPTS = {"bench": 60, "train": 45, "step_rules": 60, "step": 200}
# What is built for, by the GPU's compute capability, 80 with PTX beside; elsewhere all that the build
# knows.
ARCHITECTURES = {"8": "80", "9.0": "80;90a-real", "10": "80;100-real"}


class Checks:
    """@param run  a Runner. @param build  the build folder. @param parts  those of the run.

    Each part takes the seconds that it may last, and gives (status, text, data).
    """

    def __init__(self, run, build, parts=()):
        self.run, self.folder, self.parts = run, build, parts
        self.gpus = ""
        self.capabilities = []  # such as 9.0, of the GPUs
        self.kernels = Kernels()

    def kernel_of(self, words):
        """What computes the symmetric products of a command with these options."""
        name = words[words.index("--symmetric") + 1] if "--symmetric" in words else \
            "sm90" if self.capabilities == ["9.0"] else "vendor"
        return "cublaslt" if name == "vendor" else name

    def usual_words(self):
        """Options of a command that is to have the default, or, where that hung, the vendor's."""
        return ["--symmetric", "vendor"] if self.kernel_of([]) in self.kernels.hung else []

    def program(self, name):
        path = self.folder / "bin" / name
        if not path.exists():
            raise Missing(f"{path} was not built; name `build` too, or give --build")
        return path

    def env(self, seconds):
        run = self.run.run
        status, gpus = run("nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                           "--format=csv,noheader", most=min(30, seconds))
        self.gpus = gpus.strip() if status == 0 else counted_by_driver()
        _, able = run("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", most=min(30, seconds))
        self.capabilities = sorted(set(re.findall(r"^\s*(\d+\.\d+)\s*$", able, re.MULTILINE)))
        _, clocks = run("nvidia-smi", "--query-gpu=clocks.sm,clocks.max.sm,power.draw,power.limit,"
                        "clocks_throttle_reasons.active", "--format=csv,noheader", most=min(30, seconds))
        _, nvcc = run("nvcc", "--version", most=min(30, seconds))
        there = {name: bool(self.run.find(name)) for name in
                 ("nvcc", "cmake", "ninja", "c++", "compute-sanitizer", "mpiexec")}
        there.update({name: bool(file) for name, file in self.run.taken.items()})
        of_torch = []
        if "torch" in self.parts:  # from a cold disk an import may take 40 s
            there["torch"], of_torch = libraries.of_torch(self.run)
        missing = [name for name, found in there.items() if not found]
        release = next((word for word in nvcc.split(",") if "release" in word), "").strip()
        text = f"{self.gpus or 'no GPU'}; CUDA {release or 'none'}"
        if missing:
            text += "; missing: " + ", ".join(missing)
        text += "".join(f"; {name} is {file}" for name, file in self.run.taken.items() if file)
        text += "".join(f"; PyTorch: {line}" for line in of_torch)
        if self.gpus:
            self.run.clocks.start()
        return ("ok" if self.gpus else "skipped"), text, {
            "gpus": self.gpus, "capabilities": self.capabilities, "cuda": release, "there": there, "libraries": self.run.taken,
            "torch": of_torch, "clocks": clocks.strip() if status == 0 else None}

    def lost(self):
        """Why the GPU does not answer any more; None where it does, or nobody can ask it."""
        if not (self.folder / "bin/muonrt").exists():
            return None
        for _ in range(2):  # once more where it was late
            status, text = self.run.run(self.program("muonrt"), *PROBE, "--providers", "naive", "--deadline", 5,
                                        most=15)
            if status != 124 or self.run.left() < 15:
                break
        return None if status == 0 else f"GPU lost: {verdict(status, text)[1]}"

    def architectures(self):
        """What cmake is told to build for: the GPUs that are here; [] where that is not known."""
        known = [ARCHITECTURES.get(one) or ARCHITECTURES.get(one.split(".")[0]) for one in self.capabilities]
        if not known or None in known or len(set(known)) > 1:
            return []
        if "100" in known[0] and "sm_100\n" not in self.run.run("nvcc", "--list-gpu-code", most=20)[1]:
            return []
        return [f"-DCMAKE_CUDA_ARCHITECTURES={known[0]}"]

    def build(self, seconds):
        if not self.run.find("nvcc") or not self.run.find("cmake"):
            raise Missing("nvcc and cmake are needed")
        generator = ["-G", "Ninja"] if self.run.find("ninja") else []
        targets = {"muonrt_gpu": ["MUONRT_TESTS"], "muonrt_cli": ["MUONRT_TOOLS"]}
        on = {"MUONRT_TESTS": "ON", "MUONRT_TOOLS": "ON"}
        # Found where the toolkit has none, as after an installation by Python packages.
        headers = [f"-DCMAKE_INCLUDE_PATH={';'.join(str(f / 'include') for f in self.run.wheels)}"] \
            if self.run.wheels else []
        headers += self.architectures()
        said, end = [], time.monotonic() + seconds
        while True:  # without what is missing
            options = [f"-D{name}={value}" for name, value in on.items()] + headers
            status, text = self.run.run("cmake", "-S", ROOT, "-B", self.folder, *generator,
                                        "-DCMAKE_BUILD_TYPE=Release", "-DMUONRT_CUDA=ON",
                                        "-DCMAKE_CUDA_FLAGS=-lineinfo",  # for compute-sanitizer, ncu
                                        "-DMUONRT_INSTALL=OFF", *options,
                                        most=end - time.monotonic())
            if status == 0:
                break
            if status == 124:
                return "late", "the time was over; run tools/gpu-check build with more --seconds", None
            lost = "MUONRT_TESTS" if "tests need" in text else \
                "MUONRT_TOOLS" if "command needs" in text else None
            if not lost or on[lost] == "OFF":
                return verdict(status, text)
            on[lost] = "OFF"
            said.append("no Catch2 or rapidcheck: no tests" if lost == "MUONRT_TESTS" else
                        "no CLI11 or fmt: no benchmarks")
        wanted = [t for t, needs in targets.items() if all(on[n] == "ON" for n in needs)]
        status, text = self.run.run("cmake", "--build", self.folder, "--parallel", os.cpu_count(),
                                    "--target", *(wanted or ["muonrt"]),
                                    most=end - time.monotonic())
        if status == 124:
            return "late", "the time was over; run tools/gpu-check build with more --seconds", None
        if status != 0:
            return verdict(status, text)
        note = ", ".join(wanted or ["muonrt"]) + "".join("; " + s for s in said)
        return ("missing" if said else "ok"), note, None

    def test_files(self):
        """Those that the program has short cases of, as it says itself; that asks no GPU."""
        status, text = self.run.run(self.program("muonrt_gpu"), "-#", "--list-tags", SHORT, most=FIRST_USE)
        known = {name: at for at, name in enumerate(FIRST_FILES)}
        names = sorted(set(re.findall(r"\[#(\w+)\]", text)), key=lambda name: (known.get(name, len(known)), name))
        if not names:
            raise RuntimeError(f"muonrt_gpu lists no cases (status {status}): {verdict(status, text)[1]}")
        return names

    @contextlib.contextmanager
    def left_out(self, kernels=None, **more):
        """Tests that go through all kernels do without these; without those that hung. @param more
        of the environment."""
        names = ",".join(sorted(self.kernels.own_left_out() if kernels is None else kernels))
        whole = self.run.environment
        self.run.environment = dict(whole, MUONRT_TEST_LEAVE_OUT=names, **more)
        try:
            yield
        finally:
            self.run.environment = whole

    def tests(self, seconds):
        """File by file, some at a time, so that one that hangs takes no other with it."""
        end = time.monotonic() + seconds
        runs = [(f"[#{name}]{SHORT}", LONGER.get(name, 30)) for name in self.test_files()]
        return self.tests_of([(EVERY, 90)] + runs, end - time.monotonic())

    def meshes(self, seconds):
        # Two dtypes, two ways of messages, some 40 meshes and schemes of up to 8 ranks, a few steps each.
        return self.tests_of([(MESHES, 60)], seconds)

    def tests_of(self, runs, seconds):
        """@param runs  (cases as Catch2 takes them, seconds that are plenty for them)"""
        program, ended, skipped, bad, output = self.program("muonrt_gpu"), 0, 0, [], ""
        data = {"left_out": {}}  # by cases: the reasons
        entries = Entries(self.run, seconds, -(-len(runs) // SIDE_BY_SIDE))
        pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        try:
            with self.left_out():
                results = list(pool.map(lambda run: entries.run(run[1], program, "-#", "-d", "yes", run[0]), runs))
        except children.Ended:
            pool.shutdown(wait=False, cancel_futures=True)
            children.end_all()
            raise
        finally:
            pool.shutdown()
        for (case, _), (status, text) in zip(runs, results):
            if status == 0 and asserted_nothing(text):
                status = 77
            ended += status == 0
            skipped += status == 77
            if said_left_out(text):
                data["left_out"][case] = said_left_out(text)
            if status == 124:
                bad.append(f"{case}: no time was left")
            elif status not in (0, 77):
                absent = "NCCL cannot be loaded" in text
                bad.append(f"{case}: " + ("no NCCL" if absent else verdict(status, text)[1]))
                output += f"-- {case} (status {status})\n{ends(text, 4000)}\n"
        text = f"{ended} files of tests{self.kernels.without()}" + \
            (f", {skipped} skipped" if skipped else "")
        cases = sum(map(len, data["left_out"].values()))
        text += (f", {cases} cases left out" if cases else "") + "".join("; " + b for b in bad)
        if not bad:
            return "ok" if ended else "skipped", text, data if cases else None
        alone = all("no NCCL" in b for b in bad)
        late = all("no NCCL" in b or "no time was left" in b for b in bad)
        return "missing" if alone else "late" if late else "failed", text, dict(data, output=output)

    def python(self, seconds):
        """The tests of CUDA arrays of the Python package, over the library of the build folder."""
        status, text = self.run.run(ROOT / "tools/gpu/python_package", self.folder, most=seconds)
        if status == 3:
            raise Missing(last(text).removeprefix("missing: "))
        return verdict(status, text)

    def commands(self, seconds):
        """The scripts of tests/cli with the command on the GPU: bench, step, its rules, training."""
        program, said, entries = self.program("muonrt"), [], Entries(self.run, seconds, len(SCRIPTS))
        scripts, worst, output, passed = ROOT / "tests/cli", "ok", "", 0
        words = {"bench": [scripts / "bench", program, "--device", "cuda"],
                 "train": [scripts / "train_device", program],
                 "step_rules": [TESTS / "on_cuda", scripts / "step_rules", program],
                 "step": [TESTS / "on_cuda", scripts / "step", program]}
        for name, own in SCRIPTS.items():
            with self.left_out():
                status, text = entries.run(own, *words[name])
            if status in (0, 77):
                said.append(name + (" skipped" if status == 77 else ""))
                passed += status == 0
                continue
            said.append(f"{name}: {'no time was left' if status == 124 else verdict(status, text)[1]}")
            worst = "failed" if status != 124 else "late" if worst == "ok" else worst
            output += f"-- {name} (status {status})\n{ends(text, 4000)}\n"
        if worst == "ok" and not passed:
            worst = "skipped"
        return worst, ", ".join(said) + self.kernels.without(), {"output": output} if output else None
