"""The parts of tools/gpu-check that ask whether results are right."""
import contextlib
import os
import sys
import time

import libraries
from outputs import asserted_nothing, counted_by_driver, ends, json_in, said_left_out
from runner import ROOT, Missing, verdict

TESTS = ROOT / "tests/cuda"
OWN_KERNELS = ("cublaslt", "sm80", "sm90")
# On 132 SMs every kind of tile of `sm90` (symmetric_small_test): small ones, wide ones, medium and
# large ones, each with rows that are no multiple of 16 bytes; then depths that are cut.
SMOKE_SHAPES = "64x64,300x523,1000x1003,650x651x8,1081x1091x12,512x2048,256x1024,381x1090x40"
SMOKE_NS = "128x300x3,128x2048,160x1100"  # no larger than what plain loops take, all together
# Seconds of the test files that may take more than others: products of up to 8192 x 8192, and the
# first that loads NCCL.
LONGER = {"symmetric_acceptance_test": 90, "newton_schulz_spectra_test": 60, "gpu_nccl_test": 60}
PROBE = ["bench", "gemm", "--shapes", "64x64", "--device", "cuda", "--warmup", 1, "--iters", 1, "--json"]
# Seconds of a program's first use: what lies on a disk that nobody has read yet, a driver that has yet to
# be loaded.
FIRST_USE = 60


class Checks:
    """@param run  a Runner. @param build  the build folder.

    Each part takes the seconds that it may last, and gives (status, text, data).
    """

    def __init__(self, run, build):
        self.run, self.folder = run, build
        self.gpus = ""
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
            "gpus": self.gpus, "cuda": release, "there": there, "libraries": self.run.taken,
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

    def build(self, seconds):
        if not self.run.find("nvcc") or not self.run.find("cmake"):
            raise Missing("nvcc and cmake are needed")
        generator = ["-G", "Ninja"] if self.run.find("ninja") else []
        targets = {"muonrt_gpu": ["MUONRT_TESTS"], "muonrt_cli": ["MUONRT_TOOLS"]}
        on = {"MUONRT_TESTS": "ON", "MUONRT_TOOLS": "ON"}
        # Found where the toolkit has none, as after an installation by Python packages.
        headers = [f"-DCMAKE_INCLUDE_PATH={';'.join(str(f / 'include') for f in self.run.wheels)}"] \
            if self.run.wheels else []
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
        files = sorted(TESTS.glob("*_test.cpp"))
        return [f.stem for f in files if '"[cuda]' in f.read_text(encoding="utf-8")]

    @contextlib.contextmanager
    def left_out(self, kernels=None):
        """Tests that go through all kernels do without these; without those that are broken."""
        names = ",".join(sorted(self.broken & {"sm80", "sm90"} if kernels is None else kernels))
        whole = self.run.environment
        self.run.environment = dict(whole, MUONRT_TEST_LEAVE_OUT=names)
        try:
            yield
        finally:
            self.run.environment = whole

    def without(self):
        names = ", ".join(sorted(self.broken & {"sm80", "sm90"}))
        return f", without {names}" if names else ""

    def tests(self, seconds):
        """File by file, so that one that hangs takes no other with it."""
        runs = [(f"[#{name}][cuda]~[.]~[every]", LONGER.get(name, 30)) for name in self.test_files()]
        return self.tests_of(runs + [("[every]", 90)], seconds)

    def meshes(self, seconds):
        return self.tests_of([("[.gpu-only]", seconds)], seconds)

    def tests_of(self, runs, seconds):
        """@param runs  (cases as Catch2 takes them, seconds)"""
        program, ended, skipped, bad, output = self.program("muonrt_gpu"), 0, 0, [], ""
        data = {"left_out": {}}  # by cases: the reasons
        end = time.monotonic() + seconds
        for case, most in runs:
            left = end - time.monotonic()
            if left < 2:
                bad.append(f"{case}: no time was left")
                continue
            with self.left_out():
                status, text = self.run.run(program, "-#", "-d", "yes", "-w", "NoTests", case,
                                            most=min(most, left))
            if status == 0 and asserted_nothing(text):
                status = 77
            ended += status == 0
            skipped += status == 77
            if said_left_out(text):
                data["left_out"][case] = said_left_out(text)
            if status == 124 and left <= most:
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
        program, said, end = self.program("muonrt"), [], time.monotonic() + seconds
        scripts, worst, output, passed = ROOT / "tests/cli", "ok", "", 0
        # `step` starts the command some 170 times: last.
        for name, words in (("bench", [scripts / "bench", program, "--device", "cuda"]),
                            ("train", [scripts / "train_device", program]),
                            ("step_rules", [TESTS / "on_cuda", scripts / "step_rules", program]),
                            ("step", [TESTS / "on_cuda", scripts / "step", program])):
            left = end - time.monotonic()
            with self.left_out():
                status, text = (124, "") if left < 2 else self.run.run(*words, most=left)
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

    def verified(self, *words, most, launcher=()):
        """(verdict's name, text, data) of one run over the catalogue."""
        status, text = self.run.run(*launcher, self.program("muonrt"), "verify", "--device", "cuda",
                                    "--json", *words, most=most)
        data = json_in(text)
        if status not in (0, 1) or not data:
            return verdict(status or 1, text)
        return ("ok" if status == 0 else "failed"), f"{data['ranks']} ranks, {len(data['rows'])} " \
            f"layouts, #wrong {data['wrong']}, #bits {data['wrong_bits']}", data

    def verify(self, seconds):
        """The ends first, then the kernels of our own, captured too, then what lies between while time
        lasts. One that fails leaves the others their turn."""
        end, done, layouts, late, bad, data = time.monotonic() + seconds, [], 0, [], [], {}
        own = [(2, "--symmetric", name, *more) for more in ([], ["--graphs"])
               for name in ("sm90", "sm80") if name not in self.broken]
        between = [(ranks,) for ranks in (4, 3, 5, 6, 7)]
        for ranks, *words in [(1,), (2,), (8,), *own, (2, "--graphs"), *between]:
            what = " ".join([f"{ranks} ranks", *words])
            left = end - time.monotonic()
            if left < 2:
                late.append(what)
                continue
            name, text, found = self.verified("--ranks", ranks, *words, most=left)
            if "sm90" in words and name != "ok" and "compute capability" in text:
                continue
            if name == "ok":
                layouts += len(found["rows"])
                done.append(what)
            elif name == "skipped":
                return name, text, found
            elif name == "late":
                late.append(what)
            else:
                bad.append(f"{what}: {text}")
            if name != "ok":
                data[what] = found
        said = f"{layouts} layouts over {', '.join(done) or 'nothing'}: #wrong 0, #bits 0{self.without()}"
        said += f"; no time for {', '.join(late)}; run it alone" if late else ""
        output = "".join(f"-- {what}\n{found['output']}\n" for what, found in data.items()
                         if found and "output" in found)
        return "failed" if bad else "late" if late else "ok", said + "".join("; " + b for b in bad), \
            dict(data, output=output) if data else None

    def nccl(self, seconds):
        name, text, data = self.verified("--link", "nccl", "--ranks", 1, most=seconds)
        absent = "NCCL cannot be loaded" in text + (data or {}).get("output", "")
        return ("missing" if absent else name), text, data

    def processes(self, seconds):
        status, text = self.run.run(sys.executable, ROOT / "tools/gpu/nccl_processes",
                                    self.program("muonrt_gpu"), most=seconds)
        if status != 0 and "NCCL cannot be loaded" in text:
            raise Missing("NCCL cannot be loaded")
        return verdict(status, text)

    def mpi(self, seconds):
        if not self.run.find("mpiexec"):
            raise Missing("mpiexec is not installed")
        for line in (ROOT / "tools/mpienv").read_text(encoding="utf-8").splitlines():
            words = line.removeprefix("export ").split("=", 1)
            if line.startswith("export ") and len(words) == 2:
                self.run.environment[words[0]] = words[1].strip("\"'")
        name, text, data = self.verified(launcher=(self.run.find("mpiexec"), "-n", 2), most=seconds)
        if "built without MPI" in text + (data or {}).get("output", ""):
            return "missing", "the command is built without MPI", data
        return name, text, data
