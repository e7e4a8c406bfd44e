"""The parts of tools/gpu-check that ask ranks for the same bits: verify, NCCL, processes, MPI."""
import sys

from entries import Entries
from kernels import did_not_end
from outputs import json_in, objects_in
from runner import ROOT, Missing, verdict

# Seconds that are plenty for one run over the catalogue of layouts: some tens of tiny steps, a context
# for each rank; with processes of MPI, or a first load of NCCL, the same.
VERIFY, NCCL, MPI = 30, 25, 30


class Ranks:
    """@param run  a Runner. @param checks  Checks, which knows the programs and what is known of kernels."""

    def __init__(self, run, checks):
        self.run, self.checks = run, checks

    def verified(self, entries, own, *words, launcher=()):
        """(verdict's name, text, data) of one run over the catalogue."""
        status, text = entries.run(own, *launcher, self.checks.program("muonrt"), "verify", "--device",
                                   "cuda", "--json", *words)
        data = json_in(text)
        if status not in (0, 1) or not data:
            return verdict(status or 1, text)
        return ("ok" if status == 0 else "failed"), f"{data['ranks']} ranks, {len(data['rows'])} " \
            f"layouts, #wrong {data['wrong']}, #bits {data['wrong_bits']}", data

    def verify(self, seconds):
        """The ends first, then the kernels of our own, captured too, then what lies between while time
        lasts. One that fails or hangs leaves the others their turn, and what has hung is not asked again."""
        done, layouts, late, bad, data = [], 0, [], [], {}
        known = self.checks.kernels
        own = [(2, "--symmetric", name, *more) for more in ([], ["--graphs"]) for name in ("sm90", "sm80", "vendor")]
        runs = [(1,), (2,), (8,), *own, *((ranks,) for ranks in (4, 3, 5, 6, 7))]
        entries = Entries(self.run, seconds, len(runs))
        for ranks, *words in runs:
            words = words or self.checks.usual_words()
            what = " ".join([f"{ranks} ranks", *words])
            kernel, which = self.checks.kernel_of(words), "graph" if "--graphs" in words else "ns"
            if {kernel, f"{kernel} {which}"} & set(known.hung):
                continue
            name, text, found = self.verified(entries, VERIFY, "--ranks", ranks, *words)
            # Ranks may also wait for one another: a kernel hangs where one rank does, or two that end without it.
            if name == "failed" and did_not_end(text) and (ranks == 1 or words and "2 ranks" in done):
                known.note(kernel, which, text)
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
        said = f"{layouts} layouts over {', '.join(done) or 'nothing'}: #wrong 0, #bits 0" + self.checks.kernels.without()
        said += f"; no time for {', '.join(late)}; run it alone" if late else ""
        output = "".join(f"-- {what}\n{found['output']}\n" for what, found in data.items()
                         if found and "output" in found)
        return "failed" if bad else "late" if late else "ok", said + "".join("; " + b for b in bad), \
            dict(data, output=output) if data else None

    def nccl(self, seconds):
        name, text, data = self.verified(Entries(self.run, seconds, 1), NCCL, "--link", "nccl", "--ranks", 1)
        absent = "NCCL cannot be loaded" in text + (data or {}).get("output", "")
        return ("missing" if absent else name), text, data

    def processes(self, seconds):
        """What ends late ends by itself, with the reason."""
        status, text = self.run.run(sys.executable, ROOT / "tools/gpu/nccl_processes",
                                    self.checks.program("muonrt_gpu"), f"{max(2, seconds - 3):.0f}",
                                    most=seconds)
        if status != 0 and "NCCL cannot be loaded" in text:
            raise Missing("NCCL cannot be loaded")
        scenes = [one["scene"] for one in objects_in(text) if set(one) == {"scene"}]
        name, said, data = verdict(status, text)
        if not scenes:
            return name, said, data
        ends = {one["ended"] for one in scenes} | ({"late"} if status == 124 else set())
        name = next((n for n in ("failed", "late", "missing", "skipped") if n in ends), "ok")
        said = "; ".join(f"{one['what']}: {one['why'] or one['ended']}" for one in scenes)
        return name, said, dict(data or {}, scenes=scenes)

    def mpi(self, seconds):
        if not self.run.find("mpiexec"):
            raise Missing("mpiexec is not installed")
        for line in (ROOT / "tools/mpienv").read_text(encoding="utf-8").splitlines():
            words = line.removeprefix("export ").split("=", 1)
            if line.startswith("export ") and len(words) == 2:
                self.run.environment[words[0]] = words[1].strip("\"'")
        name, text, data = self.verified(Entries(self.run, seconds, 1), MPI,
                                         launcher=(self.run.find("mpiexec"), "-n", 2))
        if "built without MPI" in text + (data or {}).get("output", ""):
            return "missing", "the command is built without MPI", data
        return name, text, data
