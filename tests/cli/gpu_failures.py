"""What tests/cli/gpu_check asks of kernels that are wrong or hang, of tools that cannot run, and of what
would run."""
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools/gpu"))
import plan
from runner import MOST_JSON

LISTS = ["--gemm", "33x70", "--gemm", "17x40", "--ns", "17x40x2", "--ns", "24x30", "--step", "24x16"]


class Failures:
    """@param check  check(name, code, expected status, words, **variables) -> (rows by part, what was printed).
    @param expect  expect(name, whether it holds). @param folder  of the run's files."""

    def __init__(self, check, expect, folder):
        self.check, self.expect, self.folder = check, expect, folder
        self.log = folder / "build/bin/calls"

    def run(self, name, status, words, **variables):
        """(rows by part, lines that the programs were called with, the rows for cuda/MEASUREMENTS.md)"""
        self.log.unlink(missing_ok=True)
        rows, _ = self.check(name, LISTS, status, words, STAND_IN_QUICK="1", **variables)
        calls = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return rows, calls, (self.folder / "out.md").read_text(encoding="utf-8")

    def lists(self, calls, kind):
        """The providers that each list of a benchmark was asked for, in their order."""
        named = [re.search(r"--providers (\S+)", call) for call in calls
                 if call.startswith(f"bench {kind} ") and "--stream" in call]
        return [one[1] if one else "all" for one in named]

    def wrong(self):
        """It is measured, tested and sanitized, that first; no table has its figure."""
        rows, calls, table = self.run("a product that is wrong", 1, ["smoke", "gemm", "tests", "verify", "memcheck"],
                                      STAND_IN_WRONG="product")
        self.expect(f"smoke: {rows['smoke']}", rows["smoke"]["status"] == "failed" and
                    "sm90 product FAILED (3 wrong at 4096x4096x1), ns ok" in rows["smoke"]["text"] and
                    "cublaslt ok" in rows["smoke"]["text"])
        self.expect(f"a wrong kernel is left out of lists: {calls}", self.lists(calls, "gemm") == ["all", "all"])
        tests = [call for call in calls if call.startswith("tests ") and "-#" in call]
        self.expect(f"a wrong kernel is left out of tests: {tests}", len(tests) == 3 and all(
            "without none" in call for call in tests) and rows["tests"]["status"] == "ok")
        self.expect(f"a wrong kernel is not verified: {calls}", any("--symmetric sm90 --graphs" in c for c in calls))
        cases = [call for call in calls if call.startswith("tests ") and "-#" not in call]
        self.expect(f"what was wrong is not sanitized first: {cases}", len(cases) > 10 and all(
            "without sm80:" in call for call in cases[:5]) and "exact on integers" in cases[0] and
            not any("without sm80:" in call for call in cases[5:]))
        self.expect(f"a wrong figure: {table}", "777" not in table)
        rows, calls, _ = self.run("Newton-Schulz that is wrong", 1, ["smoke", "memcheck"], STAND_IN_WRONG="ns")
        cases = [call for call in calls if call.startswith("tests without sm80")]
        self.expect(f"wrong: {rows['smoke']} {cases}", "cuda lockstep" in cases[0] and
                    "sm90 product ok, ns FAILED (3 wrong at 4096x4096x1)" in rows["smoke"]["text"])

    def graphs(self):
        """A failure of replay alone takes no other figure with it."""
        for kind, said in (("capture", "graph FAILED (a capture broke)"), ("bits", "graph FAILED (1 wrong at 4096x4096x1)"),
                           ("replay", "graph HUNG (work on it did not end within 10 s)")):
            rows, calls, table = self.run(f"replay that fails, {kind}", 1, ["smoke", "gemm", "ns", "tests"],
                                          STAND_IN_WRONG=kind)
            self.expect(f"{kind}: {rows['smoke']}", f"sm90 product ok, ns ok, {said}" in rows["smoke"]["text"])
            self.expect(f"{kind} takes products with it: {calls}", self.lists(calls, "gemm") == ["all", "all"] and
                        rows["gemm"]["status"] == rows["tests"]["status"] == "ok" and
                        not any("without sm90" in call for call in calls))
            # Replays come behind all else: what hangs there takes no figure with it, and is not tried again.
            self.expect(f"{kind}: {calls}", self.lists(calls, "ns") == ["all", "all"])
            behind = [call for call in calls if call.startswith("bench ns") and
                      ("--stream" in call or "--dtype f16" in call and "--providers sm90" in call)]
            self.expect(f"{kind}: replays of {behind}", len(behind) == 3 and
                        all(("--eager sm90" in call) == (kind == "replay") for call in behind))
            figures = rows["ns"]["data"]["rows"]
            self.expect(f"{kind}: {figures}", any(row["provider"] == "sm90" and row["median_ms"] == 5 for row in figures))
            self.expect(f"{kind}: {rows['ns']}", rows["ns"]["status"] == ("ok" if kind == "replay" else "failed"))
            self.expect(f"{kind} takes figures with it: {table}", "| 1 x 4096 x 4096 |  | 5.00 |" in table and
                        "777" not in table)
        rows, calls, _ = self.run("a replay that hangs in a list", 1, ["ns"], STAND_IN_WRONG="replay")
        self.expect(f"a replay that hangs in a list: {calls}", self.lists(calls, "ns") == ["all", "all"] and
                    ["--eager sm90" in call for call in calls if "--stream" in call] == [False, True] and
                    {row["provider"] for row in rows["ns"]["data"]["rows"]} == {"cublaslt", "sm90"} and
                    "sm90 graph: work on it did not end" in rows["ns"]["text"])
        rows, calls, _ = self.run("a replay that crashes", 1, ["ns"], STAND_IN_WRONG="replay-crash")
        self.expect(f"a replay that crashes: {calls}", self.lists(calls, "ns") == ["all", "all"] and
                    {row["rows"] for row in rows["ns"]["data"]["rows"]} == {17, 24})
        self.run("a replay that hangs", 1, ["ns"], STAND_IN_WRONG="replay")
        calls = self.run("after a replay that hangs", 0, ["verify", "--after", self.kept()])[1]
        self.expect(f"replay: {calls}", any("--symmetric sm90" in call for call in calls) and
                    not any("--symmetric sm90 --graphs" in call for call in calls))

    def kept(self):
        """The JSON file of the last run, where the next one does not write."""
        earlier = self.folder / "earlier.json"
        earlier.write_bytes((self.folder / "out.json").read_bytes())
        return earlier

    def lists_that_end(self):
        """The others are measured once more, and it is back in the next list."""
        others = "cublaslt,sm80,naive,cublaslt-best"
        rows, calls, table = self.run("a product that fails", 1, ["gemm"], STAND_IN_WRONG="throws")
        self.expect(f"a failure: {calls}", self.lists(calls, "gemm") == ["all", others, "all", others])
        self.expect(f"figures beside a failure: {rows}", {row["rows"] for row in rows["gemm"]["data"]["rows"]} ==
                    {4096, 33, 17} and "sm90 product in 33x70: it broke" in rows["gemm"]["text"])
        rows, calls, _ = self.run("a product that crashes", 1, ["smoke", "gemm"], STAND_IN_WRONG="crash")
        self.expect(f"a crash: {rows['smoke']}", "sm90 product FAILED (" in rows["smoke"]["text"])
        self.expect(f"a crash: {calls}", self.lists(calls, "gemm") == ["all", others, "all", others])
        rows, calls, _ = self.run("a crash before the first row", 1, ["gemm"], STAND_IN_WRONG="silent")
        self.expect(f"a silent crash: {calls}", self.lists(calls, "gemm") == ["all", others, "all", others] and
                    {row["rows"] for row in rows["gemm"]["data"]["rows"]} == {33, 17} and
                    "perhaps sm90 in 33x70" in rows["gemm"]["text"])
        rows, calls, _ = self.run("another kernel that crashes", 1, ["gemm"], STAND_IN_WRONG="silent", STAND_IN_KERNEL="sm80")
        self.expect(f"a silent crash of sm80: {calls}", self.lists(calls, "gemm") == [
            "all", others, "cublaslt,sm90,naive,cublaslt-best"] * 2 and
            {row["rows"] for row in rows["gemm"]["data"]["rows"]} == {33, 17})

    def hung(self):
        """It is left out of all that follows, of a later run too."""
        rows, calls, _ = self.run("a kernel that hangs", 1, ["smoke", "tests", "verify", "gemm", "memcheck", "step"],
                                  STAND_IN_HANGS="sm90")
        self.expect(f"smoke: {rows}", rows["smoke"]["status"] == "failed" and rows["gemm"]["status"] == "ok" and
                    "sm90 product HUNG (work on it did not end within 10 s)" in rows["smoke"]["text"])
        self.expect("a hang is tried twice", sum("--providers sm90 " in call for call in calls) == 2)
        self.expect(f"what hung is in tests: {rows['tests']}", rows["tests"]["status"] == "ok" and
                    "without sm90" in rows["tests"]["text"] and "without sm90" in rows["verify"]["text"] and
                    "without sm90" in rows["memcheck"]["text"])
        self.expect(f"what hung is in lists: {calls}", self.lists(calls, "gemm") == ["cublaslt,sm80,naive,cublaslt-best"] * 2)
        self.expect(f"what hung takes steps: {calls}", not any("--symmetric sm90" in call for call in calls))
        calls = self.run("after a hang", 0, ["gemm", "--after", self.kept(), "--after", self.folder / "none.json"])[1]
        self.expect(f"an earlier run is not known: {calls}", self.lists(calls, "gemm") ==
                    ["cublaslt,sm80,naive,cublaslt-best"] * 2)

    def tools(self):
        """What a machine cannot run is told by one small program, and no case is tried."""
        parts = ["memcheck", "synccheck", "racecheck", "profile"]
        rows, calls, _ = self.run("tools that cannot run", 3, parts, STAND_IN_NO_TOOLS="1")
        for part in parts:
            why = "no permission for counters" if part == "profile" else "Error: Device not supported"
            self.expect(f"{part}: {rows[part]}", rows[part]["status"] == "missing" and
                        rows[part]["text"].startswith(f"{part} cannot run on this machine: ") and
                        rows[part]["text"].endswith(why))
        self.expect(f"cases are tried all the same: {calls}", not calls)

    def steps(self):
        rows, _, _ = self.run("steps that fail", 1, ["step"], STAND_IN_FAILS_STEP="--symmetric sm80")
        text = rows["step"]["text"]
        self.expect(f"step does not go on: {text}", "--symmetric sm80: failed, it broke; --symmetric sm90: 1" in text and
                    "; --symmetric sm90 --graphs: 1" in text and "default: failed" not in text)

    def logs(self):
        """Whatever programs print."""
        self.run("programs that print much", 1, ["tests", "--logs", self.folder / "loud"], STAND_IN_LOUD="1")
        log = (self.folder / "loud/gpu-check.log").read_bytes()
        sizes = [len(log), *[(self.folder / name).stat().st_size for name in ("out.json", "out.md")]]
        # What the log says it has not: with it there would be more than is allowed.
        lost = sum(map(int, re.findall(rb"\n\[\.\.\. (\d+) bytes \.\.\.\]\n", log)))
        self.expect(f"logs of {sizes} bytes, without {lost}", 5 << 20 < sum(sizes) < 12 << 20 < len(log) + lost and
                    sizes[1] < MOST_JSON + (1 << 19))
        entries = log.split(b"==== tests: ")
        self.expect(f"{len(entries)} commands, the longest of {max(map(len, entries))} bytes",
                    len(entries) == 20 and max(map(len, entries)) < 1.01 * (1 << 20) and
                    all(b"one case failed\n==== status 1" in one[-200:].replace(b"\n\n", b"\n") for one in entries[2:-1]))

    def dry(self, words, environment):
        done = subprocess.run([ROOT / "tools/gpu-check", *words, "--dry-run"], text=True, capture_output=True,
                              env=environment, cwd=self.folder, check=False)
        self.expect(f"dry run of {words}: {done.returncode}\n{done.stdout[-400:]}{done.stderr}", done.returncode == 0)
        return done.stdout

    @staticmethod
    def told(lines):
        """Commands without what a dry run need not know: where programs lie, the seconds of their own. What
        is asked of Python, and of a clock that can be watched, is left out."""
        words = [line.replace(f"{ROOT}/", "").split() for line in lines if " -c" not in line and "--id=" not in line]
        return [" ".join([one[0].split("/")[-1]] + [word for word in one[1:] if not word.isdigit()]) for one in words]

    def dry_runs(self, words, log, environment):
        """What would run is what runs. @param log  of a real run with these words."""
        self.log.unlink(missing_ok=True)
        said = self.dry([*words, "--build", self.folder / "build"], environment)
        real = self.told(re.findall(r"^==== \w+: (.*)", log.read_text(encoding="utf-8"), re.MULTILINE))
        would = self.told(" ".join(shlex.split(re.sub(r"MUONRT_TEST_\w+=\S+ ", "", line))) for line in
                          re.findall(r"^  at most +\d+ s  (.*)", said, re.MULTILINE))
        odd = [pair for pair in zip(real, would) if pair[0] != pair[1]]
        self.expect(f"other commands, {len(real)} and {len(would)}: {odd[:3]}", not odd and len(real) == len(would) > 80)
        for number, (of_call, seconds) in enumerate(plan.CALLS, 1):
            said = self.dry(shlex.split(plan.command(number, "gpu-carry", "out"))[1:], environment)
            parts_said = re.findall(r"^(\w+): at most \d+ s here", said, re.MULTILINE)
            self.expect(f"call {number}: {said}", said.endswith(f"\nends within {seconds} s\n") and seconds < 600 and
                        parts_said == plan.chosen(of_call) and "muonrt" in said)
            for limit in re.findall(r"^  at most +(\d+) s", said, re.MULTILINE):
                self.expect(f"call {number}: a command of {limit} s", int(limit) <= seconds)
        self.expect("a dry run has started something", not self.log.exists())
        self.expect("a dry run has written something", not (self.folder / "out").exists())

    def readme(self):
        text = (ROOT / "tools/gpu/README.md").read_text(encoding="utf-8")
        for number in range(1, len(plan.CALLS) + 1):
            line = plan.command(number, "gpu-carry", "out")
            self.expect(f"README does not say {line}", f"\n{line}\n" in text.replace("    tools/", "tools/"))
