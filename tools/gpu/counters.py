"""Nsight Compute's counters of the symmetric kernels, for tools/gpu-check."""
import csv
import time

from checks import PROBE
from outputs import ends, last
from runner import Missing, verdict

PROFILED = ["2048x2048", "4096x4096", "8192x8192"]
COUNTERS = ["gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"]
NCU = ["ncu", "--clock-control", "none", "--launch-count", 1]
PROBED = 20  # seconds that are plenty for one small kernel under the tool


class Counters:
    """@param checks  Checks, which knows the programs and what is known of kernels."""

    def __init__(self, run, checks):
        self.run, self.checks = run, checks

    def probe(self):
        """Whether the machine lets anybody count: many do not."""
        if not self.run.find("ncu"):
            raise Missing("ncu is not installed")
        status, text = self.run.run(*NCU, "--metrics", COUNTERS[0], self.checks.program("muonrt"), *PROBE,
                                    "--providers", "naive", most=PROBED)
        errors = "\n".join(line for line in text.splitlines() if line.startswith("==ERROR=="))
        if status != 0 or errors:
            why = f"did not end in {PROBED} s" if status == 124 else last(errors or text)
            raise Missing(f"profile cannot run on this machine: {why}")

    def profile(self, seconds):
        """All counters in the JSON file, a few in the line."""
        known = self.checks.kernels
        if "sm90" in known.absent | set(known.hung):
            return "skipped", "no sm90 to look at" + known.without(), None
        end, kernels, said, bad = time.monotonic() + seconds, {}, [], []
        self.probe()
        for shape in PROFILED:
            if end - time.monotonic() < 2:
                bad.append(f"no time for {shape}")
                continue
            status, text = self.run.run(
                *NCU, "--set", "full", "--kernel-name", "regex:symmetric", "--launch-skip", 2, "--csv", "--page",
                "raw", self.checks.program("muonrt"), "bench", "gemm", "--device", "cuda", "--providers",
                "sm90", "--shapes", shape, "--warmup", 1, "--iters", 1, "--json", most=end - time.monotonic())
            table = [line for line in text.splitlines() if line.startswith('"')]
            if status == 124:
                bad.append(f"no time for {shape}")
            elif len(table) < 3:  # counters of a wrong result count as well
                return "failed", f"{shape}: {verdict(status or 1, text)[1]}", {"kernels": kernels, "output": ends(text)}
            else:
                names, units, values = list(csv.reader(table))[:3]
                kernels[shape] = {name: f"{value} {unit}".strip()
                                  for name, unit, value in zip(names, units, values)}
                said.append(f"{shape}: " + ", ".join(kernels[shape].get(name, "?") for name in COUNTERS))
        return "late" if bad else "ok", f"{' / '.join(COUNTERS)}: {'; '.join(said + bad)}", {"kernels": kernels}
