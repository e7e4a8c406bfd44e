"""What tests/cli/gpu_check asks of the modules of tools/gpu themselves."""
import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools/gpu"))
import plan
import readme_rows
from benches import FIRST_GEMM, FIRST_NS, STEADY, Benches
from checks import FIRST_USE, OWN_KERNELS, SMOKE_SHAPES, Checks
from checks import TESTS as SOURCES
from outputs import ends, json_in, work_of
from sanitizers import SANITIZED, SANITIZED_SYMMETRIC, Sanitizers, judged


def look(expect, all_parts):
    """@param expect  expect(name, whether it holds)."""
    look_at_plan(expect, all_parts)
    look_at_sanitizers(expect)
    look_at_smoke(expect)
    look_at_lists(expect)
    look_at_rows(expect)
    look_at_outputs(expect)


def look_at_plan(expect, all_parts):
    # A run of all in which every part takes what it may.
    left, parts = 570.0, plan.chosen([])
    expect(f"parts: {parts}", parts == all_parts)
    for part in parts:
        seconds = plan.seconds_for(part, parts, left, [])
        expect(f"{part}: {seconds} of {left} s", plan.PARTS[part][0] <= seconds <= plan.PARTS[part][1])
        left -= seconds
    expect(f"{left} s are left", left >= 0)
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
            return 124, ""
        absent = {"sm90": "options: symmetric products for sm_90a on a GPU of compute capability 8.0"}
        return 0, json.dumps({"rows": [{}], "wrong": 0, "left_out": absent if name == "sm90" else {}})


class Smoke(Checks):
    def program(self, name):
        return name


def smoked(seconds=300, **late):
    run = Answers(**late)
    checks = Smoke(run, Path("."))
    return checks, run.calls, checks.smoke(seconds)


def look_at_smoke(expect):
    # A first use has another limit than a check, and none is broken that was late once.
    checks, calls, (status, text, _) = smoked(naive=1, cublaslt=2)
    expect(f"late at first: {status} {text}", status == "ok" and not checks.broken and
           "first use of naive was late" in text and "cublaslt ok" in text and calls[0][1] == calls[1][1] == FIRST_USE)
    expect(f"not on this GPU: {text}", checks.absent == {"sm90"} and "sm90 not on this GPU" in text)
    expect("a kernel that is not for this GPU is sanitized", {
        group for group, _, _ in Sanitizers(None, checks).groups("racecheck")} == {"sm80"})
    checks, _, (status, text, _) = smoked(cublaslt=3)
    expect(f"late twice: {status} {text}", status == "failed" and checks.broken == {"cublaslt"} and
           "cublaslt FAILED (late: no output)" in text)
    checks, _, (status, text, _) = smoked(seconds=15, cublaslt=2)
    expect(f"late with no room for a second try: {status} {text}", status == "late" and not checks.broken and
           "cublaslt: no time was left" in text)
    expect(f"plain loops beside: {calls}", all(any(f"bench ns" in call and f"--providers {name},naive" in call
                                                   for call, _ in smoked()[1]) for name in OWN_KERNELS[:2]))
    expect("rows that are no multiple of 16 bytes", sum(
        int(shape.split("x")[1]) % 8 > 0 for shape in SMOKE_SHAPES.split(",")) >= 4)


class Lists(Benches):
    def lists(self, kind, lists, seconds):
        return lists


def lists_of(*named):
    arguments = argparse.Namespace(gemm=None, ns=None, parts=named)
    both = Lists(None, None, arguments)
    return both.gemm(1) + both.ns(1)


def look_at_lists(expect):
    expect("a run of all has the first lists, named parts have more",
           any("4096x4096" in words for words in lists_of()) and
           any("2048x7168x216" in words for words in lists_of()) and
           not {"llama3-8b", "ratios"} & set(lists_of()) and
           {"llama3-8b", "ratios"} < set(lists_of("gemm", "ns")))
    expect("sizes side by side have one warm-up", all(f"--steady {STEADY}" in words for words in FIRST_GEMM
                                                     if "8192x8192" in words or "values" not in words and
                                                     "4096x4096" in words))
    # What goals are set for comes first, on all SMs and beside a communicator.
    for lists, words in ((FIRST_GEMM, "4096x4096,8192x8192"), (FIRST_NS, "2048x7168x216,7168x18432 --together")):
        for words_of, reserved in zip(lists, (False, True)):
            expect(f"a goal's list: {words_of}", words_of.startswith(words) and f"--steady {STEADY}" in words_of and
                   ("--reserved-sms 8" in words_of) == reserved and
                   (lists is FIRST_GEMM or "--dtype f16" in words_of and "--providers cublaslt,sm90" in words_of))
    checks = Smoke(None, Path("."))
    checks.broken = {"cublaslt"}
    for kind, words, providers in (("ns", "8x8 --providers cublaslt,sm90 --together", "sm90"),
                                   ("gemm", "8x8", "sm80,sm90,naive"), ("ns", "8x8 --providers cublaslt", "")):
        kept = Benches(None, checks, None).kept(kind, words.split())
        expect(f"{words} without what is broken: {kept}", kept.count("--providers") == 1 and kept[-1] == providers)


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
