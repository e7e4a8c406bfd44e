"""The first part of tools/gpu-check: each source of products by itself, small."""
import time

from checks import PROBE
from kernels import KINDS, culprit, did_not_end
from outputs import ends, json_in
from runner import verdict

OWN_KERNELS = ("cublaslt", "sm80", "sm90")
# On 132 SMs every kind of tile of `sm90` (symmetric_small_test): small ones, wide ones, medium and
# large ones, each with rows that are no multiple of 16 bytes; then depths that are cut.
SMOKE_SHAPES = "64x64,300x523,1350x1355,650x651x8,1401x1403x12,512x2048,256x1024,381x1090x40"
# No larger than what plain loops take, all together; matrices that do not lie a whole number of rows
# apart among them.
SMOKE_NS = "33x96x4,128x300x3,128x2048,160x1100"
# Seconds of a program's first use: what lies on a disk that nobody has read yet, a driver that has yet to
# be loaded.
FIRST_USE = 60
PLENTY, DEADLINE = 20, 10  # seconds of one try, and of the device for one thing in it


def findings(name, kind, status, text):
    """{kind: why}: what is wrong with a kernel by one run of a benchmark; {} for nothing."""
    data = json_in(text)
    if not data or data.get("cut"):
        return {kind: verdict(status or 1, text)[1]}
    found = {}
    for row in data["rows"]:
        if row.get("wrong"):
            found["graph" if row.get("mode") == "graph" else kind] = \
                f"{row['wrong']} wrong at {row.get('rows')}x{row.get('cols')}x{row.get('count')}"
    why = (data.get("left_out") or {}).get(name)
    if why:
        found[kind] = why
    elif data.get("failed"):
        of, which, said = culprit(data, kind)
        found[which] = said if of in (None, name) else data["failed"]
    if not found and (status != 0 or not data["rows"] or data.get("wrong")):
        found[kind] = verdict(status or 1, text)[1]
    return found


class Smoke:
    """@param checks  Checks, which knows the programs and what is known of kernels."""

    def __init__(self, run, checks):
        self.run, self.checks = run, checks

    def first_uses(self, end):
        """What is slow once, outside of any check's time: the driver, a context, cuBLASLt.

        @returns  the status and output of plain loops; what was late, and whether those failed.
        """
        said, plain = [], (0, "")
        for name in ("naive", "cublaslt"):
            status, text = self.run.run(self.checks.program("muonrt"), *PROBE, "--providers", name, "--deadline",
                                        FIRST_USE, most=max(2, min(FIRST_USE, end - time.monotonic())))
            if status == 124:
                said.append(f"the first use of {name} was late")
            if name == "naive":
                plain = (status, text)
                if status not in (0, 77, 124):
                    said.append(f"plain loops FAILED ({verdict(status, text)[1]})")
        return plain, said

    def tried(self, name, kind, words, end):
        """({kind: why}, output) of one benchmark, once more where it did not end and there is time; None where
        there was less than it may need, so that nobody knows whether it hangs."""
        status, command = None, [self.checks.program("muonrt"), "bench", *words, "--device", "cuda", "--warmup", 1,
                            "--iters", 2, "--deadline", DEADLINE, "--json"]
        for number in range(2):
            room = end - time.monotonic()
            if number and room < PLENTY:
                break
            if room < 2:
                return None
            status, text = self.run.run(*command, most=min(PLENTY, room))
            found = {kind: f"did not end in {PLENTY} s"} if status == 124 else findings(name, kind, status, text)
            if status == 124 and room < PLENTY:
                return None
            if status != 124 and not any(map(did_not_end, found.values())):
                break
        return found, text

    def kernel(self, name, beside, end):
        """(what to say, output of what failed, whether there was no time). All kinds are tried, one behind
        the other's failure, but none behind a hang, and no replay behind one of a replay."""
        known, found, seen, output = self.checks.kernels, {}, set(), ""
        known.forget(name)
        for kind, words in (("product", ["gemm", "--shapes", SMOKE_SHAPES, "--providers", name]),
                            ("ns", ["ns", "--shapes", SMOKE_NS, "--together", "--providers", name + beside]),
                            ("ns", ["ns", "--shapes", SMOKE_NS, "--dtype", "f16", "--providers", name + beside])):
            words += ["--eager", name] if kind == "ns" and name in known.hung_replays() else []
            one = self.tried(name, kind, words, end)
            if one is None:
                return f"{self.said(name, found, seen)}: no time was left", output, True
            if name == "sm90" and "compute capability" in one[0].get(kind, ""):
                known.absent.add(name)
                return "sm90 not on this GPU", output, False
            seen |= {kind} | {"graph" for row in (json_in(one[1]) or {}).get("rows", []) if row.get("mode") == "graph"}
            for which, why in one[0].items():
                known.note(name, which, why)
                found.setdefault(which, why)
            if one[0]:
                output += f"-- {name}, {kind}\n{ends(one[1], 3000)}\n"
            if name in known.hung:
                break
        return self.said(name, found, seen) + ("" if found else " ok"), output, False

    @staticmethod
    def said(name, found, seen):
        """Each kind that was tried, where one of them is wrong."""
        words = [f"{kind} {'HUNG' if did_not_end(found[kind]) else 'FAILED'} ({found[kind]})" if kind in found
                 else f"{kind} ok" for kind in KINDS if kind in seen | set(found)]
        return f"{name} {', '.join(words)}" if found else name

    def smoke(self, seconds):
        """Each source of products in a process of its own; one that hangs is left out from here on."""
        output, end = "", time.monotonic() + seconds
        (status, text), said = self.first_uses(end)
        if status == 77:  # nvidia-smi lists a GPU that the program does not find
            return "skipped", verdict(status, text)[1], None
        beside, untried, bad = ",naive" if status == 0 else "", False, False
        for name in OWN_KERNELS:
            words, printed, late = self.kernel(name, beside, end)
            said.append(words)
            output += printed
            untried, bad = untried or late, bad or bool(printed)
        return "failed" if bad else "late" if untried else "ok", ", ".join(said), \
            {"output": output} if output else None
