"""compute-sanitizer over small cases of the GPU tests, for tools/gpu-check."""
import itertools
import re
import time

from checks import PROBE
from entries import HUNG, Entries
from outputs import asserted_nothing, ends, json_in, last, said_left_out
from runner import Missing

# Cases small enough for compute-sanitizer, those of the kernels that are hardest to get right first.
# The large tiles, clusters and all, run in the case named after them, on all SMs; in the others on a
# grid of two blocks.
SANITIZED_SYMMETRIC = ["symmetric product: exact on integers\\, odd sizes*",
                       "symmetric product: exact on integers in the large tiles*",
                       "symmetric product: a depth cut*", "symmetric product: real numbers*",
                       "cuda lockstep: shapes*"]
SANITIZED_PASSES = ["cuda unpack:*", "cuda pack:*", "cuda normalize:*", "cuda sum:*", "cuda commit:*",
                    "cuda normuon:*"]
SANITIZED = SANITIZED_SYMMETRIC + SANITIZED_PASSES
# Seconds that are plenty for one case, the program's start under the tool with it; hazards are looked for
# in every access to shared memory.
PLENTY = {"memcheck": 20, "synccheck": 20, "racecheck": 30}
PROBED = 20  # seconds that are plenty for one small program under the tool
# Bulk copies that an mbarrier announces are more than racecheck is known to follow.
DOUBTFUL = "to be looked at, racecheck may not follow bulk copies and their mbarriers"
FOUND = 9  # the exit status of compute-sanitizer where it has something to say


def counted(text):
    """(errors, warnings) of the last summary line; None for none."""
    races = re.findall(r"RACECHECK SUMMARY: .*?\((\d+) errors?, (\d+) warnings?\)", text)
    if races:
        return tuple(map(int, races[-1]))
    errors = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    return (int(errors[-1]), 0) if errors else None


def hazards(text):
    """The first lines in which racecheck names what it has found."""
    lines = [line.strip("= ") for line in text.splitlines() if line.startswith("=") and
             ("Error:" in line or "hazard" in line and "SUMMARY" not in line)]
    return [line[:150] for line in lines[:2]] or [last(text)[:150]]


def judged(status, text):
    """(status of a part, errors, warnings). A warning alone fails nothing; since it has changed the
    exit status, the tests are asked in their own words whether they have passed."""
    errors, warnings = counted(text) or (None, None)
    if status == HUNG:
        return "failed", 0, warnings  # whatever was found until then
    if errors:
        return "failed", errors, warnings
    if status == FOUND and warnings and "All tests passed" in text:
        return "ok", errors, warnings
    if status == 0 and errors is None:
        return "failed", errors, warnings  # it has not looked
    if status == 0 and asserted_nothing(text):
        return "skipped", errors, warnings
    return {0: "ok", 77: "skipped", 124: "late"}.get(status, "failed"), errors, warnings


class Sanitizers:
    """@param checks  Checks, which knows the programs and what is known of kernels."""

    def __init__(self, run, checks):
        self.run, self.checks = run, checks

    def memcheck(self, seconds):
        return self.sanitizer("memcheck", seconds)

    def racecheck(self, seconds):
        return self.sanitizer("racecheck", seconds)

    def synccheck(self, seconds):
        return self.sanitizer("synccheck", seconds)

    def groups(self, tool):
        """(a name, kernels that are left out, cases), each of the kernels of our own by itself: what is
        found in one says nothing of the other. The slow tools look at those alone. What is known to be
        wrong comes first, the others in turns, so that no kernel goes unseen where time is short."""
        known = self.checks.kernels
        hung, first, lists = known.own_left_out(), [], []
        for kernel, other in (("sm90", "sm80"), ("sm80", "sm90")):
            if kernel in hung | known.absent:
                continue
            wrong = known.wrong.get(kernel, {})
            # Whole Newton-Schulz is the last of these cases; its products by themselves were right.
            cases = SANITIZED_SYMMETRIC[::-1] if wrong and "product" not in wrong else SANITIZED_SYMMETRIC
            one = [(kernel, {other} | hung, case) for case in cases]
            if wrong:
                first += one
            else:
                lists.append(one)
        if tool == "memcheck":
            lists.append([("passes", hung, case) for case in SANITIZED_PASSES])
        return first + [one for turn in itertools.zip_longest(*lists) for one in turn if one]

    def probe(self, tool, options):
        """Whether the tool runs here at all, by one small program: on some machines it cannot."""
        status, text = self.run.run("compute-sanitizer", *options, self.checks.program("muonrt"), *PROBE,
                                    "--providers", "naive", most=PROBED)
        if status == 124 or counted(text) is None or not json_in(text):
            own = "\n".join(line for line in text.splitlines() if line.startswith("=====") and "SUMMARY" not in line)
            why = f"did not end in {PROBED} s" if status == 124 else last(own.replace("=", " ") if own else text).strip()
            raise Missing(f"{tool} cannot run on this machine: {why}")

    def sanitizer(self, tool, seconds):
        program = self.checks.program("muonrt_gpu")
        if not self.run.find("compute-sanitizer"):
            raise Missing("compute-sanitizer is not installed")
        end = time.monotonic() + seconds
        options = ["--tool", tool, "--error-exitcode", FOUND, "--print-limit", 20]
        # What fails on purpose is no finding.
        options += ["--report-api-errors", "no"] if tool == "memcheck" else \
            ["--kernel-regex", "kns=symmetric"]
        self.probe(tool, options)
        groups = self.groups(tool)
        data, bad, entries = {}, [], Entries(self.run, end - time.monotonic(), len(groups))
        counts = {"ok": 0, "failed": 0, "look": 0, "late": 0, "skipped": 0}
        for group, left_out, case in groups:
            row = data.setdefault(group, {"ended": [], "errors": 0, "warnings": 0, "left_out": 0})
            with self.checks.left_out(left_out, MUONRT_TEST_NAIVE="1"):
                status, text = entries.run(PLENTY[tool], "compute-sanitizer", *options, program, "-d", "yes", case)
            name, errors, warnings = judged(status, text)
            if errors and tool == "racecheck" and group == "sm90" and "All tests passed" in text:
                name = "look"
            counts[name] += 1
            row["errors"] += errors or 0
            row["warnings"] += warnings or 0
            row["left_out"] += len(said_left_out(text))
            if name not in ("failed", "look"):
                row.setdefault("ended" if name == "ok" else name, []).append(case)
            if name == "look":
                bad.append(f"{group}, {case}: {errors} errors, {DOUBTFUL}: {' / '.join(hazards(text))}")
            elif name == "failed":
                bad.append(f"{group}, {case}: " + (f"{errors} errors" if errors else last(text)))
            if name in ("failed", "look") or warnings:
                data["output"] = data.get("output", "") + \
                    f"-- {group}, {case} (status {status})\n{ends(text, 4000)}\n"
        said = "; ".join(f"{group}: {len(row['ended'])} groups of cases, #errors {row['errors']}, "
                         f"#warnings {row['warnings']}" +
                         (f", {len(row['skipped'])} skipped" if "skipped" in row else "") +
                         (f", {row['left_out']} cases left out" if row["left_out"] else "") +
                         (f", no time for {len(row['late'])}" if "late" in row else "")
                         for group, row in data.items() if group != "output") or "no kernel to look at"
        name = next(n for n in ("failed", "look", "late", "ok", "skipped") if counts[n] or n == "skipped")
        return name, said + "".join("; " + b for b in bad) + self.checks.kernels.without(), data
