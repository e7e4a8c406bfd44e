"""What tests/cli/gpu_check asks of the modules of tools/gpu themselves."""
import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools/gpu"))
import plan
import readme_rows
from benches import FIRST_GEMM, MORE_NS, STAGE_NS, STEADY, Benches, has_all_eager
from checks import FIRST_FILES, Checks
from checks import TESTS as SOURCES
from entries import HUNG, Entries
from outputs import add_ratios, ends, json_in, work_of
from nccl_scenes import judged as judged_scene
from ranks import Ranks
from kernels import Kernels
from smoke import FIRST_USE, OWN_KERNELS, SMOKE_SHAPES, Smoke
from runner import MOST_JSON, MOST_TEXT, Runner, bounded, size_of
from sanitizers import SANITIZED, SANITIZED_SYMMETRIC, Sanitizers, judged


def look(expect, all_parts):
    """@param expect  expect(name, whether it holds)."""
    look_at_plan(expect, all_parts)
    look_at_sanitizers(expect)
    look_at_smoke(expect)
    look_at_entries(expect)
    look_at_scenes(expect)
    look_at_wrong(expect)
    look_at_lists(expect)
    look_at_rows(expect)
    look_at_outputs(expect)


def look_at_plan(expect, all_parts):
    # A run of all in which every part takes what it may.
    left, parts = 570.0, plan.chosen([])
    expect(f"parts: {parts}", parts == all_parts)
    # A build that is late may have what others would have had, but for a reserve.
    for time_left in (550, 300, 150):
        seconds = plan.seconds_for("build", parts, time_left, [])
        expect(f"a build of {seconds} of {time_left} s", seconds == max(time_left - plan.RESERVE, min(
            time_left, plan.PARTS["build"][0])))
    for part in parts[parts.index("build") + 1:]:
        expect(f"{part} behind a late build", -(plan.PARTS[part][0] == 0) < plan.seconds_for(part, parts, plan.RESERVE, []) <= plan.RESERVE)
    for part in parts:
        seconds = plan.PARTS[part][0] if part == "build" else plan.seconds_for(part, parts, left, [])
        expect(f"{part}: {seconds} of {left} s", plan.PARTS[part][0] <= seconds <= plan.PARTS[part][1])
        left -= seconds
    expect(f"{left} s are left", left >= 0)
    expect("kept seconds", sum(kept for kept, _ in plan.PARTS.values()) < 570)
    for number, (of_call, seconds) in enumerate(plan.CALLS, 1):
        line, passed, shares = plan.command(number, "B", "O"), 20, {}
        expect(f"call {number}: {line}", line.startswith(f"tools/gpu-check {' '.join(of_call)} --build B --seconds "
               f"{seconds} --json O/{number}.json --markdown O/{number}.md --logs O/{number}") and seconds < 600 and
               list(of_call) == sorted(of_call, key=list(plan.PARTS).index) or "torch" in of_call)
        for part in plan.chosen(of_call)[1:]:
            shares[part] = plan.seconds_for(part, plan.chosen(of_call), seconds - passed, of_call)
            passed += shares[part]
            expect(f"call {number}: {part} has {shares[part]} s", shares[part] > plan.PARTS[part][0])
        expect(f"call {number}: {passed} of {seconds} s", abs(passed - seconds) < 0.01)
    expect("the calls' seconds", [seconds for _, seconds in plan.CALLS] == [240, 210, 270])
    named = ["env", "gemm", "ns"]
    first = plan.seconds_for("gemm", named, 500, named)
    expect("named parts share all", 100 < first < 400 and
           plan.seconds_for("ns", named, 500 - first, named) == 500 - first)


def look_at_sanitizers(expect):
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*_test.cpp"))
    for case in SANITIZED:
        expect(f"no test is called {case}", f'"{case.replace(chr(92), "").rstrip("*")}' in sources)
    # Only there a GPU's 132 SMs have large tiles, as `symmetric_small_test` holds of its sizes.
    expect("no large tiles are sanitized", any(
        case.startswith("symmetric product: exact on integers in the large tiles")
        for case in SANITIZED_SYMMETRIC))


class Passing:
    """Time that passes with what Answers and Hangs run, and not else."""
    now, true = None, time.monotonic

    def __enter__(self):
        Passing.now, time.monotonic = 1000.0, lambda: Passing.now

    def __exit__(self, *_):
        Passing.now, time.monotonic = None, Passing.true

    @staticmethod
    def by(seconds):
        if Passing.now is not None:
            Passing.now += seconds


class Answers:
    """Runs nothing. @param late  how many times a command with these words is late."""
    environment = {}

    def __init__(self, **late):
        self.late, self.calls = late, []

    def left(self):
        return 500

    def run(self, *words, most):
        self.calls.append((" ".join(map(str, words)), most))
        name = str(words[words.index("--providers") + 1]).split(",")[0]
        if self.late.get(name, 0) > 0:
            self.late[name] -= 1
            Passing.by(most)
            return 124, ""
        absent = {"sm90": "options: symmetric products for sm_90a on a GPU of compute capability 8.0"}
        return 0, json.dumps({"rows": [{}], "wrong": 0, "left_out": absent if name == "sm90" else {}})


class Built(Checks):
    def program(self, name):
        return name


def smoked(seconds=300, **late):
    run = Answers(**late)
    checks = Built(run, Path("."))
    return checks, run.calls, Smoke(run, checks).smoke(seconds)


def look_at_smoke(expect):
    # A first use has another limit than a check, and none is broken that was late once.
    checks, calls, (status, text, _) = smoked(naive=1, cublaslt=2)
    expect(f"late at first: {status} {text}", status == "ok" and not checks.kernels.hung and
           "first use of naive was late" in text and "cublaslt ok" in text and calls[0][1] == calls[1][1] == FIRST_USE)
    expect(f"not on this GPU: {text}", checks.kernels.absent == {"sm90"} and "sm90 not on this GPU" in text)
    expect("a kernel that is not for this GPU is sanitized", {
        group for group, _, _ in Sanitizers(None, checks).groups("racecheck")} == {"sm80"})
    checks, _, (status, text, _) = smoked(cublaslt=3)
    expect(f"late twice: {status} {text}", status == "failed" and set(checks.kernels.hung) == {"cublaslt"} and
           "cublaslt product HUNG (did not end in 20 s)," in text and "cublaslt ns" not in text)
    checks, _, (status, text, _) = smoked(seconds=15, cublaslt=2)
    expect(f"late with no room for a second try: {status} {text}", status == "late" and not checks.kernels.hung and
           "cublaslt: no time was left" in text)
    # One that had all of its seconds hangs, also where no time is left for a second try.
    for seconds, hung, status in ((35, {"sm80": "did not end in 20 s"}, "failed"), (15, {}, "late")):
        with Passing():
            checks, _, found = smoked(seconds, sm80=9)
        expect(f"a hang in {seconds} s: {found}", checks.kernels.hung == hung and found[0] == status)
    expect(f"plain loops beside: {calls}", all(any(f"bench ns" in call and f"--providers {name},naive" in call
                                                   for call, _ in smoked()[1]) for name in OWN_KERNELS[:2]))
    expect(f"what hung is left out of lists: {checks}", Benches(None, smoked(cublaslt=3)[0], None).kept(
        "gemm", ["8x8"])[-1] == "sm80,sm90,naive")
    expect("rows that are no multiple of 16 bytes", sum(
        int(shape.split("x")[1]) % 8 > 0 for shape in SMOKE_SHAPES.split(",")) >= 4)


class Hangs:
    """Runs nothing: of a program with these words all the time that it has passes. @param total  seconds
    that are left of the whole run."""
    environment = {}

    def __init__(self, words, total=500):
        self.words, self.total, self.calls, self.lines = words, total, 0, []

    def left(self):
        return self.total

    def run(self, *words, most):
        self.calls += 1
        self.lines.append(" ".join(map(str, words)))
        if self.words in self.lines[-1]:
            Passing.by(most)
            return 124, "case: one\n"
        return 0, json.dumps({"ranks": 1, "rows": [{}], "wrong": 0, "wrong_bits": 0})


def look_at_entries(expect):
    # A hang is a failure where its own time has passed, and the next ones run; late where the part's has.
    status, text = Entries(Hangs("one"), 100, 9).run(20, "one")
    expect(f"a hang: {status} {text}", status == HUNG and text == "case: one\ndid not end in 20 s")
    expect("more for a part that is named", "did not end in 50 s" in Entries(Hangs("one"), 500, 10).run(20, "one")[1])
    expect("one alone leaves time for a hang to show", "in 50 s" in Entries(Hangs("one"), 100, 1).run(20, "one")[1])
    expect("too little time", Entries(Hangs("one"), 10, 9).run(20, "one")[0] == 124 and
           Entries(Hangs("one"), 1, 9).run(20, "other") == (124, "no time was left") and
           Entries(Hangs("one", total=10), 100, 9).run(20, "one")[0] == 124)
    run = Hangs("--ranks 8")
    status, text, _ = Ranks(run, Built(run, Path("."))).verify(300)
    expect(f"verify of a hang: {status} {text}", status == "failed" and run.calls == 14 and
           "; 8 ranks: did not end in 30 s" in text and "no time" not in text)
    # What hangs is known from there on, and not asked again; of eight ranks it may be the ranks.
    for words, hung, gone in (("--symmetric sm90", "sm90", "--symmetric sm90 --graphs"), ("--ranks 8", None, "nothing"),
                              ("--symmetric sm90 --graphs", "sm90 graph", "nothing"), ("--ranks 1", "cublaslt", "--ranks 8")):
        run = Hangs(words)
        checks = Built(run, Path("."))
        Ranks(run, checks).verify(300)
        expect(f"verify of {words}: {checks.kernels.hung} {run.lines}", set(checks.kernels.hung) == ({hung} - {None}) and
               sum(words in line for line in run.lines) == 1 and not any(gone in line for line in run.lines))
    checks = Built(Hangs("--ranks 1"), Path("."))
    checks.capabilities = ["9.0"]
    Ranks(checks.run, checks).verify(300)
    expect(f"the vendor's in place of a default that hangs: {checks.kernels.hung}", set(checks.kernels.hung) == {"sm90"} and
           any("--ranks 8 --symmetric vendor" in line for line in checks.run.lines))
    status, text, _ = Ranks(Hangs("nccl"), Built(None, Path("."))).nccl(30)
    expect(f"nccl that hangs: {status} {text}", status == "failed" and "did not end in 25 s" in text)
    run = Hangs("--symmetric sm80")
    status, text, _ = Benches(run, Built(run, Path(".")), argparse.Namespace(step=None)).step(300)
    expect(f"steps that hang: {status} {text}", status == "failed" and run.calls == 5 and
           "; --symmetric sm80: failed, did not end in 30 s; --symmetric sm90: 1 rows" in text)
    for words, hung, steps in (("--symmetric sm90", "sm90", 4), ("--ranks 1", "sm90", 3), ("--graphs", "sm90 graph", 5)):
        run = Hangs(words)
        checks = Built(run, Path("."))
        Benches(run, checks, argparse.Namespace(step=None)).step(300)
        expect(f"steps of {words}: {checks.kernels.hung} {run.lines}", hung in checks.kernels.hung and
               run.calls == steps and len(set(run.lines)) == steps)
    # A list that hangs leaves half of the time to the others.
    run = Hangs("8x8")
    with Passing():
        found = Benches(run, Built(run, Path(".")), None).lists("gemm", ["8x8", "9x9", "10x10"], 100)
    expect(f"a list that hangs: {found}", run.calls == 3 and found[0] == "late" and "2 lists" in found[1])
    expect("a sanitizer that hangs", judged(HUNG, "RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)")[0] ==
           "failed")


def look_at_scenes(expect):
    same, other = "compared: 9 elements, 0 bytes differ", "compared: 9 elements, 2 bytes differ"
    for statuses, outputs, ended, bits, why in (
            ([0, 0], [same, same], "ok", "same", ""), ([1, 0], [other, same], "failed", "other", "bits differ"),
            ([124, 0], [same, same], "failed", "same", "did not end in 35 s"),
            ([0, 0], ["", ""], "ok", None, ""), ([77, 77], ["", ""], "skipped", None, ""),
            ([1, 1], ["NCCL WARN Duplicate GPU detected", ""], "missing", None, "NCCL refuses ranks that share a GPU"),
            ([1, 77], ["cudaSetDevice: CUDA-capable device(s) is/are busy or unavailable", ""], "missing", None,
             "the GPU is in exclusive mode, or busy"),
            ([0, 1], ["", "x.cpp:3: FAILED:\ndue to unexpected exception with message:\n  a peer is gone\n\n1 failed"],
             "failed", None, "rank 1, status 1: a peer is gone")):
        found = judged_scene("scene", statuses, outputs, 35, 35)
        expect(f"{statuses} {outputs}: {found}", (found["ended"], found["bits"], found["why"]) == (ended, bits, why))
    class Cut(Answers):
        def run(self, *words, most):
            return 124, '{"scene": {"what": "steps", "ended": "ok", "why": "", "bits": "same"}}'
    expect("a scene that was cut", Ranks(Cut(), Built(None, Path("."))).processes(20)[0] == "late")
    found = judged_scene("scene", [124, 124], ["", ""], 12, 35)
    expect(f"too few seconds: {found}", found["ended"] == "late" and found["why"] == "did not end in 12 s")
    for part, found, answer in (
            ("processes", {"status": "failed", "scenes": [{"bits": "same", "why": ""}, {"bits": None, "why": "it died"}]}, "yes"),
            ("processes", {"status": "skipped", "text": "no device"}, None), ("nccl", {"status": "ok", "wrong_bits": 0}, "yes"),
            ("nccl", {"status": "failed", "wrong_bits": 4, "wrong": 4}, "no"),
            ("nccl", {"status": "failed", "wrong_bits": 0, "wrong": 4}, "wrong"),
            ("nccl", {"status": "failed", "text": "did not end in 25 s"}, "not compared: did not end in 25 s")):
        expect(f"{part} {found}", readme_rows.same_bits(part, found) == answer)


def look_at_wrong(expect):
    """No figure of a result that is wrong."""
    def one(ms, wrong, **more):
        return dict({"provider": "sm90", "product": "X X^T", "rows": 4096, "cols": 4096, "count": 1, "tflops": ms,
                     "median_ms": ms, "wrong": wrong}, **more)
    vendor = one(111.5, 0, provider="cublaslt")
    gemm = [vendor, one(777.5, 3), one(777.5, 3, rows=512, cols=512), one(666.5, 0, steady_s=2.0)]
    add_ratios(gemm)
    expect(f"ratios: {gemm}", gemm[0]["of_cublaslt"] == 1 and "of_cublaslt" not in gemm[1])
    expect("printed rows", readme_rows.checked(dict(gemm[1], predicted_tflops=9)) == dict(
        gemm[1], predicted_tflops=9, tflops="wrong", median_ms="wrong"))
    steps = [{"provider": p, "rows": 768, "cols": 2048, "count": 128, "form": form, "median_ms": ms, "wrong": wrong}
             for p, form, ms, wrong in (("cublaslt", "standard", 333.5, 0), ("sm90", "gram", 777.5, 1))]
    report = readme_rows.Report("GPU", "today", {
        "gemm": {"rows": gemm}, "ns": {"rows": steps},
        "elementwise": {"rows": [{"pass": "copy", "gbps": 4000.0, "wrong": 0}, {"pass": "pack", "gbps": 777.5, "wrong": 1}]},
        "exchange": {"rows": [{"bytes": 1 << 28, "reference_ms": 1, "gbps": 777.5, "of_reference": 777.5, "wrong": 1}]},
        "step": {"rows": [{"enqueue_ms": 777.5, "median_ms": 777.5, "wrong": 2}]},
        "torch": {"rows": [{"what": what, "shape": "4096x4096", "median_ms": 777.5, "tflops": 777.5, "wrong": 1,
                            "config": "c"} for what in ("torch x @ x.T", "Triton symmetric", "torch.optim step")]}})
    text = report.markdown() + report.summary()
    expect(f"figures of wrong results in\n{text}", "77" not in text and "666" not in text)
    for words in ("sm90 wrong", "| wrong | 333.50 ms (cublaslt, standard) |  |", "| wrong | 4000 | wrong |",
                  "PyTorch wrong", "Triton wrong", "| 512 |  |  | wrong |", "| `sm90.cu` on all 132 SMs | "
                  "no GPU has run this yet | wrong |", "| exchange of 256 MiB"):
        expect(f"no {words} in\n{text}", words in text)
    # A right variant of PyTorch's stands in for a wrong one.
    both = readme_rows.Report("GPU", "today", {"torch": {"rows": [
        {"what": "torch.optim step" + words, "shape": "8", "median_ms": ms, "wrong": wrong}
        for words, ms, wrong in ((", addmm", 1, 1), ("", 2, 0))]}})
    expect("a wrong variant", both.torch("torch.optim step")["8"]["median_ms"] == 2)


class Lists(Benches):
    def lists(self, kind, lists, seconds):
        return lists


def lists_of(*named):
    arguments = argparse.Namespace(gemm=None, ns=None, parts=named)
    both = Lists(None, None, arguments)
    return both.gemm(1), both.ns(1)


def look_at_lists(expect):
    (gemm, ns), (more_gemm, more_ns) = lists_of(), lists_of("gemm", "ns")
    expect("a run of all has the first lists, named parts have more", gemm == FIRST_GEMM and
           more_gemm[:len(gemm)] == gemm and {"llama3-8b", "ratios"} < set(more_gemm) and
           more_ns == ns[:1] + MORE_NS + ns[1:] and MORE_NS[0] == f"{ns[0]} --dtype f16")
    # Whether products are fast at all, then what power costs, then what is beside it.
    wanted = ["4096x4096,8192x8192", "4096x4096 --values zeros", "1024x1024,2048x2048,4096x11008",
              "4096x4096,8192x8192 --reserved-sms 8", "512x512x8", "512x512,768x768"]
    expect(f"order of products: {gemm}", all(words.startswith(first) for words, first in zip(gemm, wanted)))
    expect("sizes side by side have one warm-up", all(f"--steady {STEADY}" in words for words in FIRST_GEMM
                                                     if "8192x8192" in words or "values" not in words and
                                                     "4096x4096" in words))
    # A stage of Kimi K2 takes longest, so it comes last: first in f16, for which its goal is set.
    stage = "2048x7168x216,7168x18432 --together --iters 3 "
    expect(f"order of Newton-Schulz: {ns}", ns[0] == f"4096x4096,4096x11008,768x2048x128 --steady {STEADY}" and
           all(words.startswith(stage) and f"--steady {STEADY}" in words for words in ns[1:]) and
           ns[1].endswith("--dtype f16") and "--reserved-sms" not in ns[1] and "--dtype" not in ns[-1] and
           more_ns[-3:] == STAGE_NS and not any("7168" in words for words in more_ns[:-3]))
    checks = Built(None, Path("."))
    checks.kernels.hung = {"cublaslt": "", "sm80 graph": ""}
    for kind, words, providers in (("ns", "8x8 --providers cublaslt,sm90 --together", "sm90"),
                                   ("gemm", "8x8", "sm80,sm90,naive"), ("ns", "8x8 --providers cublaslt", "")):
        kept = Benches(None, checks, None).kept(kind, words.split())
        expect(f"{words} without what hung: {kept}", kept.count("--providers") == 1 and kept[-1] == providers)
    checks.kernels.hung = {"sm90 graph": "", "sm80 graph": "", "sm80": ""}
    for kind, words, options in (("ns", "8x8", "--providers cublaslt,sm90,naive --eager sm90"), ("gemm", "8x8", "--providers cublaslt,sm90,naive,cublaslt-best"),
                                 ("ns", "8x8 --providers cublaslt", "--providers cublaslt"),
                                 ("ns", "8x8 --providers cublaslt,sm90", "--providers cublaslt,sm90 --eager sm90")):
        kept = " ".join(Benches(None, checks, None).kept(kind, words.split()))
        expect(f"{words} without replays that hung: {kept}", kept == f"8x8 {options}")
    eager = [{"mode": "eager", "rows": rows, "cols": cols, "form": form}
             for rows, cols, form in ((8, 8, "standard"), (8, 16, "standard"), (8, 16, "gram"), (None, None, "standard"))]
    for words, count, whole in (("8x8", 1, True), ("8x16", 2, False), ("8x16x4", 3, True), ("16x8,8x8 --dtype f16", 1, True),
                                ("8x8,8x16 --together", 4, False), ("8x8,8x8 --together", 4, True), ("batches", 4, False)):
        expect(f"eager rows of {words}", has_all_eager(words, eager[:count]) == whole)
    expect("a replay is behind them", has_all_eager("batches", [{"mode": "graph"}]))
    # Lists with other tuning are other work; no table has their figures.
    whole, row = {"rows": [], "wrong": 0}, {"provider": "sm90", "product": "X X^T", "rows": 8, "cols": 8, "count": 1,
                                           "tflops": 9, "median_ms": 9, "form": "gram"}
    for options in ("--tune tiles=large --reserved-sms 8", "--tune pairs=0", "--tune pairs=0"):
        Benches.take(whole, [dict(row)], options.split())
    expect(f"tuned rows: {whole}", [one["tune"] for one in whole["rows"]] == ["tiles=large", "pairs=0"] and
           whole["rows"][0]["reserved_sms"] == 8.0 and readme_rows.product(whole["rows"], "sm90", 8) is None and
           readme_rows.fastest(whole["rows"], (8, 8, 1), ["sm90"]) is None)


def look_at_rows(expect):
    # Of one work the figures of the longest warm-up are taken, of a product as of Newton-Schulz.
    warm = [{"provider": "sm90", "product": "X X^T", "rows": 8, "cols": 8, "count": 1, "form": "gram",
             "tflops": n, "median_ms": n, "steady_s": n} for n in (None, 1, 3, 2)]
    expect("the longest warm-up", readme_rows.product(warm, "sm90", 8) == 3 and
           readme_rows.fastest(warm, (8, 8, 1), ["sm90"]) == (3, "sm90", "gram"))
    expect("rows of another warm-up are other work", len(set(map(work_of, warm))) == 4)
    report = readme_rows.Report("GPU", "today", {
        "exchange": {"rows": [{"bytes": 1 << 28, "reference_ms": 1, "gbps": 2, "of_reference": 3}]},
        "torch": {"rows": [{"what": "torch.optim step" + words, "shape": "8", "median_ms": ms}
                           for words, ms in (("", 2), (", addmm", 1))]},
        "step": {"rows": [{"enqueue_ms": 1, "median_ms": 2}]},
        # The stage in lockstep, on all SMs and on fewer; its shapes one by one, which are not added up.
        "ns": {"rows": [{"provider": provider, "form": form, "rows": rows, "cols": cols, "count": count,
                         "median_ms": ms, "mode": "eager", "dtype": "f16", "steady_s": 2.0, **more}
                        for provider, form, ms in (("cublaslt", "standard", 229), ("sm90", "gram", 110))
                        for rows, cols, count, ms, more in (
                            (2048, 7168, 216, ms - 5, {}), (7168, 18432, 1, 8, {}), (None, None, 217, ms, {}),
                            (None, None, 217, ms + 3, {"reserved_sms": 8.0}))]},
        "gemm": {"rows": [{"provider": p, "product": "X X^T", "rows": n, "cols": n, "count": count,
                           "tflops": 9 + (values == "zeros"), "median_ms": 0.0045, "values": values}
                          for p in ("cublaslt", "cublaslt-best") for n, count, values in (
                              (512, 1, "random"), (512, 8, "random"), (4096, 1, "zeros"), (4096, 1, "random"))]}})
    for words in ("| exchange of 256 MiB between two ranks of one process, GB/s |", "1.00 ms (torch with addmm",
                  "| 512 | 4.5 |", "| 8 x 512 | 4.5 |", "fastest of what it proposes"):
        expect(f"no {words} in\n{report.markdown()}", words in report.markdown())
    for words in ("(goal 115) | 229.00 |  | 110.00 |", "the same on 124 SMs | 232.00 |  | 113.00 |",
                  "one algorithm a shape, no split-K 9", "for the batch 9", "cublaslt-best: 1.11 (power)"):
        expect(f"no {words} in {report.summary()}", words in report.summary())


def look_at_outputs(expect):
    expect("the head of an output", ends("a" * 50 + "b" * 50, 20) ==
           "a" * 10 + "\n[... 80 characters ...]\n" + "b" * 10)
    expect("a sanitizer that has not looked", judged(0, "Target application terminated")[0] == "failed")
    expect("a failed test behind a warning", judged(
        9, "1 failed\nRACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)")[0] == "failed")
    # What is left of a benchmark that was killed, or that something else spoke over.
    expect("rows of a run that was cut", json_in('12 of 20\r{"row": {"wrong": 2}}\n{"row": {"a": 1}}\n{"ro') ==
           {"rows": [{"wrong": 2}, {"a": 1}], "wrong": 2, "cut": True})
    expect("the whole of a run", json_in('{"row": {"a": 1}}\nnote\n{"rows": [\n], "wrong": 0}\nwarning {x}') ==
           {"rows": [], "wrong": 0})
    expect("nothing", json_in("no JSON {here}") is None)
    # Whatever a part says fits into the JSON file, rows first.
    for data in ({"rows": [{"a": "b" * 99}] * 99999}, {"output": "c" * (9 << 20)}, {str(n): "d" * 999 for n in range(9999)},
                 {"deep": [[["e" * 999] * 99] * 99] * 99}, None):
        kept = bounded(data, 1 << 18)
        expect(f"data of {size_of(kept)} bytes", size_of(kept) <= 1 << 18 and (data is None or kept["cut"]))
    expect("rows that fit are kept", len(bounded({"rows": [{"a": "b"}] * 2000, "output": "f" * (9 << 20)}, 1 << 18)["rows"]) == 2000)
    # So does what is said of all parts, in the characters that JSON has most bytes for.
    with tempfile.TemporaryDirectory() as place:
        runner = Runner(None, 9, Path(place) / "out.json", None)
        runner.say = lambda line: None
        for part in plan.PARTS:
            runner.note(part, "failed", 1, "\x01\U0001f600" * 9999, {"output": "\x01" * (1 << 17)})
            runner.amend("failed", "\x02" * 9999)
        size = (Path(place) / "out.json").stat().st_size
    expect(f"JSON of {size} bytes", size < MOST_JSON + len(plan.PARTS) * (MOST_TEXT + 500) < 2 << 20)
