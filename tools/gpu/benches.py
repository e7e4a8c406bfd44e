"""The parts of tools/gpu-check that measure, each result checked."""
import csv
import sys
import time

from outputs import add_ratios, ends, json_in, objects_in, work_of
from runner import ROOT, Missing, verdict

# Lists of `muonrt bench` and options, measured one after the other while their part's time lasts: those
# that goals are set for, and what a run of all leaves to parts that are named.
# What figures are taken from is warm, by STEADY as long before each group of rows, here and in
# compare.py; once with zeros for the factor that power is.
STEADY = 2
FIRST_GEMM = [f"4096x4096,8192x8192 --steady {STEADY}",
              f"4096x4096,8192x8192 --reserved-sms 8 --steady {STEADY}",
              "512x512x8,1024x1024x8,2048x2048x8", "1024x1024,2048x2048,4096x11008",
              "4096x4096 --values zeros --steady 1", "512x512,768x768", "2048x2048 --reserved-sms 8"]
MORE_GEMM = ["256x256,1536x1536,16384x16384", "16384x16384 --reserved-sms 8", "batches", "ratios",
             "llama3-8b", "kimi-k2", "deepseek-v3"]
# A stage of Kimi K2, whose figure is that of its shapes in lockstep.
STAGE = f"2048x7168x216,7168x18432 --together --iters 3 --warmup 1 --steady {STEADY} --providers cublaslt,sm90"
FIRST_NS = [f"{STAGE} --dtype f16", f"{STAGE} --dtype f16 --reserved-sms 8", STAGE,
            "4096x4096,4096x11008,768x2048x128"]
MORE_NS = ["128x128x64,768x2048x32,1024x4096x8 --together", "batches", "gpt2-124m", "ratios",
           "8192x28672x9 --iters 3 --warmup 1"]
STEADY_TORCH = "4096x4096,8192x8192"
FIRST_TORCH = "2048x2048,1024x1024,512x512,2048x2048x8,1024x1024x8,512x512x8"
MORE_TORCH = ",768x768,4096x11008,16384x16384"
SHAPES_TORCH_NS = "768x2048x32,1024x4096x8,4096x4096x1"
PROFILED = ["2048x2048", "4096x4096", "8192x8192"]
COUNTERS = ["gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"]
SHAPES_STEP = "768x768x12,768x3072x6,4096x1024,32768"
DEADLINE = 10  # seconds that the device may take for one thing
# What rows are told apart by: the option, its name in them.
LABELS = {"--reserved-sms": "reserved_sms", "--dtype": "dtype", "--values": "values", "--steady": "steady_s"}


class Benches:
    """@param checks  which knows the programs and what is broken. @param sizes  arguments of the
    command: gemm, ns, step, exchange, elements; and parts: those that are named."""

    def __init__(self, run, checks, sizes):
        self.run, self.checks, self.sizes = run, checks, sizes
        self.lost = []  # kernels, and where

    def bench(self, *words, most):
        status, text = self.run.run(self.checks.program("muonrt"), "bench", *words, "--device", "cuda",
                                    "--json", most=most)
        data = json_in(text)
        if not data or "rows" not in data:
            return verdict(status or 1, text)
        add_ratios(data["rows"])
        said = f"{len(data['rows'])} rows, #wrong {data['wrong']}"
        if status == 124:
            return "late", said, dict(data, output=ends(text, 4000))
        # Passes need no products.
        left_out = {} if words[0] == "elementwise" else data.get("left_out") or {}
        lost = {name: why for name, why in left_out.items()
                if not (name == "sm90" and "compute capability" in why)}
        for name, why in lost.items():
            said += f"; no {name}: {why}"
        if data.get("failed"):
            said += f"; {data['failed']}"
        good = status == 0 and data["rows"] and data["wrong"] == 0 and not lost
        return ("ok" if good else "failed"), said, data if good else \
            dict(data, output=ends(text, 4000))

    def kept(self, kind, words):
        """A list's words, with options that leave out what is broken."""
        broken = self.checks.broken
        if not broken:
            return words
        if "cublaslt" in broken:
            broken = broken | {"cublaslt-best"}
        asked = ["cublaslt", "sm80", "sm90", "naive"] + (["cublaslt-best"] if kind == "gemm" else [])
        if "--providers" in words:
            at = words.index("--providers")
            asked, words = words[at + 1].split(","), words[:at] + words[at + 2:]
        return words + ["--providers", ",".join(p for p in asked if p not in broken)]

    def list_of(self, kind, words, end):
        """One list; once more without the kernel that did not end in it or failed."""
        found = ("late", "", None)
        for _ in range(3):
            left = end - time.monotonic()
            if left < 2:
                break
            kept = self.kept(kind, words.split())
            if kept[-2:] == ["--providers", ""]:
                return "failed", "all that it asks for is left out", None
            try:
                found = self.bench(kind, "--shapes", *kept, "--stream", "--deadline", DEADLINE, most=left)
            except Exception as error:  # the other lists go on
                return "failed", f"{type(error).__name__}: {error}", None
            culprit = ((found[2] or {}).get("failed") or "").split(":")[0]
            if culprit not in ("cublaslt", "cublaslt-best", "sm80", "sm90") or culprit in self.checks.broken:
                break
            self.checks.broken.add(culprit)
            self.lost.append(f"{culprit} in {words}")
        return found

    def lists(self, kind, lists, seconds):
        """What does not fit into the part's time is left out, and said; what fails too."""
        end, ended, problems = time.monotonic() + seconds, [], []
        whole = {"rows": [], "wrong": 0}
        worst = "ok"
        for words in lists:
            if end - time.monotonic() < 2:
                problems.append(f"no time for {words}")
                worst = "late" if worst == "ok" else worst
                continue
            name, text, data = self.list_of(kind, words, end)
            options = words.split()
            for row in (data or {}).get("rows", []):
                for option, label in LABELS.items():
                    if option in options:
                        value = options[options.index(option) + 1]
                        row[label] = value if label in ("dtype", "values") else float(value)
                if work_of(row) not in map(work_of, whole["rows"]):
                    whole["rows"].append(row)
                    whole["wrong"] += row.get("wrong") or 0
            if (data or {}).get("device"):
                whole["device"] = data["device"]
            if name == "ok":
                ended.append(words)
            else:
                problems.append(f"{words}: {name}, {text}")
                worst = name if worst != "failed" else worst
                whole["output"] = whole.get("output", "") + f"-- {words}\n" + \
                    (data or {}).get("output", "")
        said = f"{len(whole['rows'])} rows of {len(ended)} lists, #wrong {whole['wrong']}"
        problems += [f"failed and left out from there on: {lost}" for lost in self.lost]
        worst = "failed" if self.lost else worst
        self.lost = []
        return worst, said + "".join("; " + p for p in problems), whole

    def gemm(self, seconds):
        return self.lists("gemm", self.sizes.gemm or
                          FIRST_GEMM + (MORE_GEMM if self.sizes.parts else []), seconds)

    def ns(self, seconds):
        return self.lists("ns", self.sizes.ns or FIRST_NS + (MORE_NS if self.sizes.parts else []),
                          seconds)

    def elementwise(self, seconds):
        return self.bench("elementwise", "--elements", self.sizes.elements, "--stream", "--deadline",
                          DEADLINE, most=seconds)

    def step(self, seconds):
        """With the vendor's products, our own, and replayed."""
        end, whole, said = time.monotonic() + seconds, {"rows": [], "wrong": 0}, []
        own = [["--symmetric", name] for name in ("sm80", "sm90") if name not in self.checks.broken]
        for words in [[], *own, ["--graphs"], *[words + ["--graphs"] for words in own[-1:]]]:
            name, text, data = self.bench("step", "--shapes", self.sizes.step or SHAPES_STEP, "--ranks",
                                          1, *words, most=max(2, end - time.monotonic()))
            if "compute capability" in text or "compute capability" in str(data):
                continue
            for row in (data or {}).get("rows", []):
                row["options"] = " ".join(words)
                whole["rows"].append(row)
            whole["wrong"] += (data or {}).get("wrong", 0)
            said.append(f"{' '.join(words) or 'default'}: {text}")
            if name != "ok":
                return name, "; ".join(said), dict(whole, output=(data or {}).get("output", ""))
        return "ok", "; ".join(said), whole

    def exchange(self, seconds):
        return self.bench("exchange", "--ranks", 2, "--min-bytes", "1MiB", "--max-bytes",
                          self.sizes.exchange, "--factor", 16, most=seconds)

    def profile(self, seconds):
        """Nsight Compute's counters of the symmetric kernels: all in the JSON file, a few in the line."""
        if not self.run.find("ncu"):
            raise Missing("ncu is not installed")
        end, kernels, said = time.monotonic() + seconds, {}, []
        for shape in PROFILED:
            status, text = self.run.run(
                "ncu", "--clock-control", "none", "--set", "full", "--kernel-name", "regex:symmetric",
                "--launch-skip", 2, "--launch-count", 1, "--csv", "--page", "raw",
                self.checks.program("muonrt"), "bench", "gemm", "--device", "cuda", "--providers",
                "sm90", "--shapes", shape, "--warmup", 1, "--iters", 1, "--json",
                most=max(2, end - time.monotonic()))
            table = [line for line in text.splitlines() if line.startswith('"')]
            if status != 0 or len(table) < 3:
                return verdict(status or 1, text)
            names, units, values = list(csv.reader(table))[:3]
            kernels[shape] = {name: f"{value} {unit}".strip()
                              for name, unit, value in zip(names, units, values)}
            said.append(f"{shape}: " + ", ".join(
                kernels[shape].get(name, "?") for name in COUNTERS))
        return "ok", f"{' / '.join(COUNTERS)}: {'; '.join(said)}", {"kernels": kernels}

    def torch(self, seconds):
        status, text = self.run.run(sys.executable, ROOT / "tools/gpu/compare.py", "--steady-gemm",
                                    STEADY_TORCH, "--steady", STEADY, "--gemm",
                                    FIRST_TORCH + (MORE_TORCH if self.sizes.parts else ""), "--step",
                                    SHAPES_STEP, "--ns", SHAPES_TORCH_NS, most=seconds)
        if status == 77:
            return "missing", text.strip(), None
        data = json_in(text) or {"rows": [], "wrong": 0}
        # One list of a run that came to its end, or one by one.
        failed = data.get("failed") or [o["failed"] for o in objects_in(text) if set(o) == {"failed"}]
        missing = data.get("missing") or []
        said = f"{len(data['rows'])} rows, #wrong {data['wrong']}" + \
            "".join(f"; failed: {f[:200]}" for f in failed) + "".join(f"; no {m}" for m in missing)
        if status == 0 and not failed and not missing:
            return "ok", said, data
        name = "late" if status == 124 and not failed else \
            "missing" if status == 0 and not failed else "failed"
        return name, said, dict(data, failed=failed, output=ends(text, 4000))
