"""The parts of tools/gpu-check that ask whether results are right."""
import contextlib
import os
import re
import time

import libraries
from entries import Entries
from outputs import asserted_nothing, counted_by_driver, ends, json_in, said_left_out
from runner import ROOT, Missing, verdict

TESTS = ROOT / "tests/cuda"
# Cases for a GPU, as Catch2 takes them: short ones, over every shape, on every mesh.
SHORT, EVERY, MESHES = "[cuda]~[.]~[every]", "[every]", "[.gpu-only]"
OWN_KERNELS = ("cublaslt", "sm80", "sm90")
# On 132 SMs every kind of tile of `sm90` (symmetric_small_test): small ones, wide ones, medium and
# large ones, each with rows that are no multiple of 16 bytes; then depths that are cut.
SMOKE_SHAPES = "64x64,300x523,1000x1003,650x651x8,1081x1091x12,512x2048,256x1024,381x1090x40"
# No larger than what plain loops take, all together; matrices that do not lie a whole number of rows
# apart among them.
SMOKE_NS = "33x96x4,128x300x3,128x2048,160x1100"
# Seconds of the test files that may take more than others: products of up to 8192 x 8192, the first
# that loads NCCL, deadlines that pass.
LONGER = {"symmetric_acceptance_test": 90, "newton_schulz_spectra_test": 60, "gpu_nccl_test": 60,
          "gpu_nccl_hang_test": 60}
PROBE = ["bench", "gemm", "--shapes", "64x64", "--device", "cuda", "--warmup", 1, "--iters", 1, "--json"]
# Seconds of a program's first use: what lies on a disk that nobody has read yet, a driver that has yet to
# be loaded.
FIRST_USE = 60
# Seconds that are plenty for a script of tests/cli, in their order: `step` starts the command some 170
# times, each with a context of its own, so it comes last.
SCRIPTS = {"bench": 60, "train": 45, "step_rules": 60, "step": 200}
# What is built for, by the GPU's compute capability, 80 with PTX beside; elsewhere all that the build
# knows.
ARCHITECTURES = {"8": "80", "9.0": "80;90a-real", "10": "80;100-real"}


class Checks:
    """@param run  a Runner. @param build  the build folder.

    Each part takes the seconds that it may last, and gives (status, text, data).
    """

    def __init__(self, run, build):
        self.run, self.folder = run, build
        self.gpus = ""
        self.capabilities = []  # such as 9.0, of the GPUs
        self.broken = set()  # kernels that the smoke test has found to fail
        self.absent = set()  # those that are not for this GPU

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
        status, text = self.twice(
            lambda: self.run.run(self.program("muonrt"), *PROBE, "--providers", "naive", "--deadline", 5, most=15),
            time.monotonic() + self.run.left() - 15)
        return None if status == 0 else f"GPU lost: {verdict(status, text)[1]}"

    @staticmethod
    def twice(work, last):
        """work(), and once more where that was late, but not after `last`."""
        status, text = work()
        return work() if status == 124 and time.monotonic() < last else (status, text)

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
                        "no CLI11, fmt or nlohmann-json: no benchmarks")
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

    def first_uses(self, end):
        """What is slow once, outside of any check's time: the driver, a context, cuBLASLt.

        @returns  the status and output of plain loops; what was late, and whether those failed.
        """
        said, plain = [], (0, "")
        for name in ("naive", "cublaslt"):
            status, text = self.run.run(self.program("muonrt"), *PROBE, "--providers", name, "--deadline",
                                        FIRST_USE, most=max(2, min(FIRST_USE, end - time.monotonic())))
            if status == 124:
                said.append(f"the first use of {name} was late")
            if name == "naive":
                plain = (status, text)
                if status not in (0, 77, 124):
                    said.append(f"plain loops FAILED ({verdict(status, text)[1]})")
        return plain, said

    def smoke(self, seconds):
        """Each source of products in a process of its own; one that hangs is left out from here on."""
        output, end = "", time.monotonic() + seconds
        (status, text), said = self.first_uses(end)
        if status == 77:  # nvidia-smi lists a GPU that the program does not find
            return "skipped", verdict(status, text)[1], None
        beside, untried = ",naive" if status == 0 else "", False
        for name in OWN_KERNELS:
            for words in (["gemm", "--shapes", SMOKE_SHAPES, "--providers", name],
                          ["ns", "--shapes", SMOKE_NS, "--together", "--providers", name + beside],
                          ["ns", "--shapes", SMOKE_NS, "--dtype", "f16", "--providers", name + beside]):
                if end - time.monotonic() < 2:
                    status, text = None, ""
                    break
                tries = []
                def check():
                    tries.append(end - time.monotonic())
                    return self.run.run(self.program("muonrt"), "bench", *words, "--device", "cuda", "--warmup", 1,
                                        "--iters", 2, "--deadline", 10, "--json", most=max(2, min(20, tries[-1])))
                status, text = self.twice(check, end - 20)
                data = json_in(text) or {}
                if status != 0 or (data.get("left_out") or {}).get(name):
                    break
            why = (data.get("left_out") or {}).get(name) if status is not None else None
            if status is None or status == 124 and len(tries) == 1:  # no room for a second one
                untried = True
                said.append(f"{name}: no time was left")
            elif why and name == "sm90" and "compute capability" in why:
                self.absent.add(name)
                said.append("sm90 not on this GPU")
            elif status == 0 and not why and data.get("wrong") == 0 and data.get("rows"):
                said.append(f"{name} ok")
            else:
                self.broken.add(name)
                said.append(f"{name} FAILED ({why or data.get('failed') or verdict(status, text)[1]})")
                output += f"-- {name}\n{ends(text, 3000)}\n"
        return "failed" if self.broken else "late" if untried else "ok", ", ".join(said), \
            {"output": output} if output else None

    def test_files(self):
        """Those that the program has short cases of, as it says itself; that asks no GPU."""
        status, text = self.run.run(self.program("muonrt_gpu"), "-#", "--list-tags", SHORT, most=FIRST_USE)
        names = sorted(set(re.findall(r"\[#(\w+)\]", text)))
        if not names:
            raise RuntimeError(f"muonrt_gpu lists no cases (status {status}): {verdict(status, text)[1]}")
        return names

    @contextlib.contextmanager
    def left_out(self, kernels=None, **more):
        """Tests that go through all kernels do without these; without those that are broken. @param more
        of the environment."""
        names = ",".join(sorted(self.broken & {"sm80", "sm90"} if kernels is None else kernels))
        whole = self.run.environment
        self.run.environment = dict(whole, MUONRT_TEST_LEAVE_OUT=names, **more)
        try:
            yield
        finally:
            self.run.environment = whole

    def without(self):
        names = ", ".join(sorted(self.broken & {"sm80", "sm90"}))
        return f", without {names}" if names else ""

    def tests(self, seconds):
        """File by file, so that one that hangs takes no other with it."""
        end = time.monotonic() + seconds
        runs = [(f"[#{name}]{SHORT}", LONGER.get(name, 30)) for name in self.test_files()]
        return self.tests_of(runs + [(EVERY, 90)], end - time.monotonic())

    def meshes(self, seconds):
        # Two dtypes, two ways of messages, some 40 meshes and schemes of up to 8 ranks, a few steps each.
        return self.tests_of([(MESHES, 60)], seconds)

    def tests_of(self, runs, seconds):
        """@param runs  (cases as Catch2 takes them, seconds that are plenty for them)"""
        program, ended, skipped, bad, output = self.program("muonrt_gpu"), 0, 0, [], ""
        data = {"left_out": {}}  # by cases: the reasons
        entries = Entries(self.run, seconds, len(runs))
        for case, own in runs:
            with self.left_out():
                status, text = entries.run(own, program, "-#", "-d", "yes", "-w", "NoTests", case)
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
        text = f"{ended} files of tests{self.without()}" + \
            (f", {skipped} skipped" if skipped else "")
        cases = sum(map(len, data["left_out"].values()))
        text += (f", {cases} cases left out" if cases else "") + "".join("; " + b for b in bad)
        if not bad:
            return "ok" if ended else "skipped", text, data if cases else None
        alone = all("no NCCL" in b for b in bad)
        late = all("no NCCL" in b or "no time was left" in b for b in bad)
        return "missing" if alone else "late" if late else "failed", text, dict(data, output=output)

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
        return worst, ", ".join(said) + self.without(), {"output": output} if output else None
