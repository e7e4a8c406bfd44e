"""The parts of tools/gpu-check that measure, each result checked."""
import sys
import time

from kernels import culprit, did_not_end
from outputs import add_ratios, ends, json_in, objects_in, work_of
from runner import ROOT, Missing, verdict

# Lists of `muonrt bench` and options, measured one after the other while their part's time lasts: those
# that goals are set for, and what a run of all leaves to parts that are named.
# What figures are taken from is warm, by STEADY as long before each group of rows, here and in
# compare.py; once with zeros for the factor that power is.
STEADY = 2
FIRST_GEMM = [f"4096x4096,8192x8192 --steady {STEADY}", "4096x4096 --values zeros --steady 1",
              "1024x1024,2048x2048,4096x11008", f"4096x4096,8192x8192 --reserved-sms 8 --steady {STEADY}",
              "512x512x8,1024x1024x8,2048x2048x8", "512x512,768x768", "2048x2048 --reserved-sms 8"]
MORE_GEMM = ["256x256,1536x1536,16384x16384", "16384x16384 --reserved-sms 8", "batches", "ratios",
             "llama3-8b", "kimi-k2", "deepseek-v3"]
# A stage of Kimi K2, whose figure is that of its shapes in lockstep. It takes longest, so it comes last.
STAGE = f"2048x7168x216,7168x18432 --together --iters 3 --warmup 1 --steady {STEADY} --providers cublaslt,sm90"
BATCHES = f"4096x4096,4096x11008,768x2048x128 --steady {STEADY}"
FIRST_NS = [BATCHES]
MORE_NS = [f"{BATCHES} --dtype f16", "128x128x64,768x2048x32,1024x4096x8 --together"]
STAGE_NS = [f"{STAGE} --dtype f16", f"{STAGE} --dtype f16 --reserved-sms 8", STAGE]
STEADY_TORCH = "4096x4096,8192x8192"
FIRST_TORCH = "2048x2048,1024x1024,512x512,2048x2048x8,1024x1024x8,512x512x8"
MORE_TORCH = ",768x768,4096x11008,16384x16384"
SHAPES_TORCH_NS = "768x2048x32,1024x4096x8,4096x4096x1"
SHAPES_STEP = "768x768x12,768x3072x6,4096x1024,32768"
STEP = 30  # seconds that are plenty for one benchmark of steps
DEADLINE = 10  # seconds that the device may take for one thing
# What rows are told apart by: the option, its name in them.
LABELS = {"--reserved-sms": "reserved_sms", "--dtype": "dtype", "--values": "values", "--steady": "steady_s",
          "--tune": "tune"}
PRODUCED = {"gemm": "product", "ns": "ns"}  # what a benchmark asks of a kernel, as Kernels calls it
NUMBERS = ("reserved_sms", "steady_s")


def crashed(found):
    """Whether a benchmark has failed before its end. @param found  (name, text, data)"""
    data = found[2] or {}
    return found[0] == "failed" and (data.get("rows") is None or bool(data.get("cut")))


def has_all_eager(words, rows):
    """Whether a list of `bench ns` came to its replays, which are behind all else."""
    done = {(row.get("rows"), row.get("cols"), row.get("form")) for row in rows if row.get("mode") == "eager"}
    if any(row.get("mode") == "graph" for row in rows):
        return True
    shapes = [shape.split("x") for shape in words.split()[0].split(",")]
    if not all(len(one) > 1 and all(map(str.isdecimal, one)) for one in shapes):
        return False  # a list that has a name
    sizes = [(int(one[0]), int(one[1])) for one in shapes]
    last = (None, None) if "--together" in words and len(sizes) > 1 else sizes[-1]
    gram = any(2 * rows <= cols for rows, cols in (sizes if last == (None, None) else [last]))
    return (*last, "gram" if gram else "standard") in done


class Benches:
    """@param checks  which knows the programs and what is known of kernels. @param sizes  arguments of the
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
        if words[0] in PRODUCED:
            self.checks.kernels.note_rows(PRODUCED[words[0]], data["rows"])
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

    def kept(self, kind, words, without=()):
        """A list's words, with options that leave out what hung, and some more."""
        lost = self.checks.kernels.left_out() | set(without)
        asked = ["cublaslt", "sm80", "sm90", "naive"] + (["cublaslt-best"] if kind == "gemm" else [])
        at = words.index("--providers") if "--providers" in words else None
        if at is not None:
            asked = words[at + 1].split(",")
        left = [name for name in asked if name not in lost]
        if left != asked:
            words = (words if at is None else words[:at] + words[at + 2:]) + ["--providers", ",".join(left)]
        replays = [name for name in left if kind == "ns" and name in self.checks.kernels.hung_replays()]
        return words + (["--eager", ",".join(replays)] if replays else [])

    def list_of(self, kind, words, end):
        """One list; once more without a kernel that hung in it or ended it, for the figures of the others.
        What that one had until then counts too. Behind a crash that names none, suspects are left out in turn."""
        found, rows, without, suspects, trials, device = ("late", "", None), [], set(), set(), None, {}
        for _ in range(5):
            left = end - time.monotonic()
            if left < 2:
                break
            kept = self.kept(kind, words.split(), without | suspects)
            if "" in kept:
                found = ("failed", found[1] or "all that it asks for is left out", found[2])
                break
            try:
                found = self.bench(kind, "--shapes", *kept, "--stream", "--deadline", DEADLINE, most=left)
            except Exception as error:  # the other lists go on
                found = ("failed", f"{type(error).__name__}: {error}", None)
                break
            data = found[2] or {}
            known = set(map(work_of, rows))
            rows += [row for row in data.get("rows", []) if work_of(row) not in known]
            device = {"device": data["device"]} if data.get("device") else device
            name = self.ended_by(kind, words, found)
            if name and name not in without:
                without.add(name)
            elif not name and crashed(found) and not (kind == "ns" and has_all_eager(words, rows)):
                trials = self.trials(words, without) if trials is None else trials
                if not trials:
                    break
                suspects = trials.pop(0)
                self.lost.append(f"perhaps {' or '.join(sorted(suspects))} in {words}: {found[1][:200]}")
            else:
                break
        add_ratios(rows)
        return found[0], found[1], dict(found[2] or {}, **device, rows=rows)

    def ended_by(self, kind, words, found):
        """The kernel that has ended a list, noted; None where no figure of the others is lost by it."""
        name, which, why = culprit(found[2] or {}, PRODUCED[kind])
        if name:
            self.checks.kernels.note(name, which, why)
        if not name or which == "graph":  # replays come behind all else
            return None
        self.lost.append(f"{name} {which} in {words}: {why[:200]}")
        return name

    def trials(self, words, without):
        """What may have crashed, to be left out in turn: what is known to be wrong, then our own kernels."""
        known = self.checks.kernels
        gone = without | set(known.hung) | known.absent
        asked = words.split("--providers ")[1].split()[0].split(",") if "--providers" in words else None
        sets = [{one for one in names if one not in gone and (asked is None or one in asked)}
                for names in (known.wrong, ("sm90",), ("sm80",), ("sm80", "sm90"))]
        return [one for at, one in enumerate(sets) if one and one not in sets[:at]]

    def lists(self, kind, lists, seconds):
        """What does not fit into the part's time is left out, and said; what fails too. A list with others
        behind it has half of the time at most: one that hangs does not take it all."""
        end, ended, problems, worst = time.monotonic() + seconds, [], [], "ok"
        whole = {"rows": [], "wrong": 0}
        for at, words in enumerate(lists):
            if end - time.monotonic() < 2:
                problems.append(f"no time for {words}")
                worst = "late" if worst == "ok" else worst
                continue
            last = at + 1 == len(lists)
            name, text, data = self.list_of(kind, words, end if last else min(end, time.monotonic() + seconds / 2))
            self.take(whole, data["rows"], words.split())
            if data.get("device"):
                whole["device"] = data["device"]
            if name == "ok":
                ended.append(words)
            else:
                problems.append(f"{words}: {name}, {text}")
                worst = name if worst != "failed" else worst
                whole["output"] = whole.get("output", "") + f"-- {words}\n" + data.get("output", "")
        said = f"{len(whole['rows'])} rows of {len(ended)} lists, #wrong {whole['wrong']}"
        problems += [f"failed, and measured once more without it: {lost}" for lost in self.lost]
        worst = "failed" if self.lost else worst
        self.lost = []
        return worst, said + "".join("; " + p for p in problems), whole

    @staticmethod
    def take(whole, rows, options):
        """A list's rows, with what tells them from those of other lists."""
        known = set(map(work_of, whole["rows"]))
        for row in rows:
            for option, label in LABELS.items():
                if option in options:
                    value = options[options.index(option) + 1]
                    row[label] = float(value) if label in NUMBERS else value
            if work_of(row) not in known:
                known.add(work_of(row))
                whole["rows"].append(row)
                whole["wrong"] += row.get("wrong") or 0

    def gemm(self, seconds):
        return self.lists("gemm", self.sizes.gemm or
                          FIRST_GEMM + (MORE_GEMM if self.sizes.parts else []), seconds)

    def ns(self, seconds):
        return self.lists("ns", self.sizes.ns or
                          FIRST_NS + (MORE_NS if self.sizes.parts else []) + STAGE_NS, seconds)

    def elementwise(self, seconds):
        return self.bench("elementwise", "--elements", self.sizes.elements, "--stream", "--deadline",
                          DEADLINE, most=seconds)

    def step(self, seconds):
        """With the vendor's products, our own, and replayed. One that fails leaves the others their turn, what
        has hung is not asked again."""
        end, whole, said, worst = time.monotonic() + seconds, {"rows": [], "wrong": 0}, [], "ok"
        known = self.checks.kernels
        own = [["--symmetric", name] for name in ("sm80", "sm90")]
        replayed = next((one for one in own[::-1] if one[1] not in known.hung), None)
        vendor = ["--symmetric", "vendor"]
        for words in [vendor, *own, vendor + ["--graphs"], *([replayed + ["--graphs"]] if replayed else [])]:
            what = " ".join(words)
            kernel, which = self.checks.kernel_of(words), "graph" if "--graphs" in words else "ns"
            if {kernel, f"{kernel} {which}"} & set(known.hung):
                continue
            if end - time.monotonic() < 2:
                said.append(f"{what}: no time was left")
                worst = "late" if worst == "ok" else worst
                continue
            most = min(STEP, end - time.monotonic())
            name, text, data = self.bench("step", "--shapes", self.sizes.step or SHAPES_STEP, "--ranks", 1, *words,
                                          most=most)
            if name == "late" and most == STEP:
                name, text = "failed", f"did not end in {STEP} s"
            if name == "failed" and did_not_end(text):
                known.note(kernel, which, text)
            if "compute capability" in text or "compute capability" in str(data):
                continue
            for row in (data or {}).get("rows", []):
                row["options"] = " ".join(words)
                whole["rows"].append(row)
            whole["wrong"] += (data or {}).get("wrong", 0)
            said.append(f"{what}: " + ("" if name == "ok" else f"{name}, ") + text)
            if name != "ok":
                worst = name if worst in ("ok", "skipped") or name == "failed" else worst
                whole["output"] = whole.get("output", "") + f"-- {what}\n" + (data or {}).get("output", "")
        return worst, "; ".join(said), whole

    def exchange(self, seconds):
        return self.bench("exchange", "--ranks", 2, "--min-bytes", "1MiB", "--max-bytes",
                          self.sizes.exchange, "--factor", 16, most=seconds)

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
