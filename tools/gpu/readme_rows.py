"""The rows of the tables in cuda/MEASUREMENTS.md that a run of tools/gpu-check has measured."""
import re

UNMEASURED = "no GPU has run this yet"


def warmth(row):
    return row.get("steady_s") or 0


# In the place of a figure whose result is wrong: none is worth a look.
WRONG = "wrong"
FIGURES = re.compile(r"(?!predicted|reference).*(_ms|flops|gbps)$|of_.*")


def checked(line):
    """A row as it was printed, without figures where its result is wrong."""
    return {key: WRONG if line.get("wrong") and FIGURES.match(key) and value is not None else value
            for key, value in line.items()}


def said(figure, form, unit=""):
    return figure if figure in (WRONG, None) else f"{figure:{form}}{unit}"


def ratio(of, by, form=".2f"):
    return "" if {WRONG, None} & {of, by} or not by else f"{of / by:{form}}"


def product(rows, provider, size, reserved=None, count=1, values="random", key="tflops"):
    """TFLOP/s of X X^T, or another key, by the longest warm-up; None where there is no such row, WRONG
    where one is."""
    found = [row for row in rows if row.get("provider") == provider and
             row.get("product") == "X X^T" and row["rows"] == row["cols"] == size and
             row["count"] == count and row.get("reserved_sms") == reserved and
             row.get("values", "random") == values and not row.get("tune")]
    if any(row.get("wrong") for row in found):
        return WRONG
    return max(found, key=warmth)[key] if found else None


def fastest(rows, shape, providers, dtype=None, reserved=None):
    """(ms, provider, form) of Newton-Schulz in plain launches by the longest warm-up, or None. Not of a
    provider and form that has a wrong row: (WRONG, "", "") where there is no other."""
    found = [row for row in rows
             if (row["rows"], row["cols"], row["count"]) == shape and row["provider"] in providers
             and row.get("mode", "eager") == "eager" and row.get("dtype") == dtype
             and row.get("reserved_sms") == reserved
             and row.get("values", "random") == "random" and not row.get("tune")]
    bad = {(row["provider"], row["form"]) for row in found if row.get("wrong")}
    right = [row for row in found if (row["provider"], row["form"]) not in bad]
    if found and not right:
        return WRONG, "", ""
    found, most = right, max(map(warmth, right), default=0)
    return min(((row["median_ms"], row["provider"], row["form"]) for row in found
                if warmth(row) == most), default=None)


# Its products as muonrt asks for them, none that is cut in depth; and what is measured against.
VENDOR = "cuBLASLt and mirror, one algorithm a shape, no split-K"
BEST = "cuBLASLt, fastest of what it proposes for the batch"


def same_bits(part, found):
    """"yes", or "no" where bits differ; else why nothing was compared. None where the part did not run."""
    if part == "processes":
        bits = {scene["bits"] for scene in found.get("scenes", [])}
        answer = "no" if "other" in bits else "yes" if "same" in bits else None
        why = next((scene["why"] for scene in found.get("scenes", []) if scene["why"]), found.get("text"))
    else:
        answer = "no" if found.get("wrong_bits") else WRONG if found.get("wrong") else \
            "yes" if found.get("status") == "ok" else None
        why = found.get("text")
    if answer or found.get("status") not in ("failed", "late", "missing"):
        return answer
    return f"not compared: {why or 'no reason was given'}".replace("|", "/").replace("\n", " ")[:160]


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


class Report:
    """@param parts  by name: the `data` of each part that ran; absent where it did not."""

    def __init__(self, gpu, date, parts):
        self.where = f"{gpu}, {date}"
        self.parts = parts

    def rows(self, part):
        return (self.parts.get(part) or {}).get("rows", [])

    def torch(self, what):
        """By shape: the rows of tools/gpu/compare.py, the fastest of the variants of one work."""
        found = {}
        for r in self.rows("torch"):
            if r["what"].split(",")[0] != what:
                continue
            known = found.get(r["shape"])
            # A wrong one only where there is no other.
            if not known or known.get("wrong") or not r.get("wrong") and r["median_ms"] < known["median_ms"]:
                found[r["shape"]] = r
        return {shape: checked(r) for shape, r in found.items()}

    def measured(self, what, command, ours, reference, ratio, data="normal"):
        return row(what, self.where, command, ours, reference, ratio, data)

    def elementwise(self):
        rates = {r["pass"]: checked(r)["gbps"] for r in self.rows("elementwise")}
        for what, passes in (("pack, bf16 gradients and transport, GB/s of copy", ["pack"]),
                             ("commit, bf16 parameters with masters, GB/s of copy", ["commit"]),
                             ("commit, bf16 parameters with remainders and rounded at random, GB/s of copy",
                              ["commit remainder", "commit stochastic"]),
                             ("AdamW, GB/s of copy", ["adamw"]),
                             ("unpack and pack of tall matrices, GB/s of copy",
                              ["unpack tall", "pack tall"]),
                             ("normalization of 4096 x 11008", ["normalize"])):
            if "copy" not in rates or any(p not in rates for p in passes):
                continue
            yield self.measured(what, "bench elementwise", " and ".join(said(rates[p], ".0f") for p in passes),
                                said(rates["copy"], ".0f"),
                                " and ".join(ratio(rates[p], rates["copy"]) or WRONG for p in passes))

    def products(self):
        torch, triton = self.torch("torch x @ x.T"), self.torch("Triton symmetric")
        for size in (4096, 8192):
            ours = product(self.rows("gemm"), "cublaslt", size)
            reference = torch.get(f"{size}x{size}", {}).get("tflops")
            if ours:
                yield self.measured(
                    f"X X^T, {size} x {size} bf16: the vendor's product and mirror", "bench gemm",
                    said(ours, ".0f", " TFLOP/s"), said(reference, ".0f", " (torch)") or "none",
                    ratio(ours, reference))
            ours = product(self.rows("gemm"), "sm90", size)
            reference = triton.get(f"{size}x{size}", {}).get("tflops")
            if ours and reference:
                yield self.measured(f"X X^T, {size} x {size} bf16: `sm90.cu` beside a symmetric kernel in Triton",
                                    "bench gemm", said(ours, ".0f", " TFLOP/s"),
                                    said(reference, ".0f", f" (Triton, {triton[f'{size}x{size}']['config']})"),
                                    ratio(ours, reference))

    def batch(self):
        shape = (768, 2048, 128)
        vendor = fastest([r for r in self.rows("ns") if r["form"] == "standard"], shape, ["cublaslt"])
        ours = fastest(self.rows("ns"), shape, ["sm80", "sm90"])
        if vendor and ours:
            yield self.measured("a batch of 128 x (768 x 2048) bf16, Newton-Schulz", "bench ns",
                                said(ours[0], ".2f", f" ms ({ours[1]}, {ours[2]})"),
                                said(vendor[0], ".2f", " ms (cublaslt, standard)"),
                                ratio(vendor[0], ours[0]))

    def correctness(self):
        for part, what in (("processes", "steps of two NCCL ranks as processes on one GPU "
                            "(`tools/gpu-check processes`): same bits"),
                           ("nccl", "one rank over the real NCCL (init, reductions of one rank, teardown; no "
                            "byte between ranks): same bits as without it")):
            found = same_bits(part, self.parts.get(part) or {})
            if found:
                yield self.measured(what, f"tools/gpu-check {part}", found, "", "", "")

    def steps(self):
        exchange = [r for r in self.rows("exchange") if r["bytes"] == 1 << 28 and r["reference_ms"]]
        if exchange:
            one = checked(exchange[0])
            copy = one["bytes"] / one["reference_ms"] * 1e-6
            yield self.measured("exchange of 256 MiB between two ranks of one process, GB/s",
                                "bench exchange", said(one["gbps"], ".1f"), f"{copy:.0f} (copy on the device)",
                                said(one["of_reference"], ".3f"))
        # What an optimizer has by default where sm90 ran, else the vendor's.
        all_steps = self.rows("step")
        steps = [r for r in all_steps if r.get("options") == "--symmetric sm90"] or \
            [r for r in all_steps if r.get("options", "") in ("", "--symmetric vendor")]
        if steps:
            last = checked(dict(steps[-1], wrong=sum(r.get("wrong") or 0 for r in steps)))
            yield self.measured("host time to enqueue a step (`enqueue` of `bench step`)", "bench step",
                                said(last["enqueue_ms"], ".2f", " ms"),
                                said(last["median_ms"], ".2f", " ms (the step)"),
                                ratio(last["enqueue_ms"], last["median_ms"]))
            for shapes, reference in self.torch("torch.optim step").items():
                addmm = " with addmm" if "addmm" in reference["what"] else ""
                yield self.measured(f"a step of {shapes} beside torch.optim.Muon and AdamW", "bench step",
                                    said(last["median_ms"], ".2f", " ms"),
                                    said(reference["median_ms"], ".2f", f" ms (torch{addmm}, f32 parameters)"),
                                    ratio(reference["median_ms"], last["median_ms"]))

    def symmetric(self):
        """Effective TFLOP/s at 2048, 4096, 8192 and 16384, for the last column."""
        for provider, what, reserved in (("cublaslt-best", f"{BEST}, no mirror", None),
                                         ("cublaslt", "cuBLASLt and `mirror`", None),
                                         ("sm80", "`sm80.cu`", None),
                                         ("sm90", "`sm90.cu` on all 132 SMs", None),
                                         ("sm90", "`sm90.cu` on 124", 8)):
            rates = [product(self.rows("gemm"), provider, n, reserved=reserved)
                     for n in (2048, 4096, 8192, 16384)]
            if any(rates):
                yield row(what, *(said(rate, ".0f") or UNMEASURED for rate in rates))
        for what, name in (("torch x @ x.T", "PyTorch, `x @ x.T`"), ("Triton symmetric", "Triton")):
            rates = [self.torch(what).get(f"{n}x{n}", {}).get("tflops") for n in (2048, 4096, 8192, 16384)]
            if any(rates):
                yield row(name, *(said(rate, ".0f") or UNMEASURED for rate in rates))

    def small(self):
        """Microseconds where launches and the number of blocks tell, of one matrix and of 8."""
        single, batches = self.torch("torch x @ x.T"), self.torch("torch.bmm")
        for size, count in ((512, 1), (768, 1), (1024, 1), (1536, 1), (2048, 1), (512, 8), (1024, 8), (2048, 8)):
            found = [product(self.rows("gemm"), provider, size, count=count, key="median_ms")
                     for provider in ("cublaslt-best", "sm90")]
            torch = single.get(f"{size}x{size}", {}) if count == 1 else batches.get(f"{size}x{size}x{count}", {})
            found.insert(1, torch.get("median_ms"))
            if any(found):
                yield row(size if count == 1 else f"{count} x {size}",
                          *(ms if ms == WRONG else f"{ms * 1e3:.1f}" if ms else "" for ms in found))

    def newton_schulz(self):
        """Milliseconds: cuBLASLt standard, sm90 standard, sm90 Gram."""
        stage = (None, None, 217)  # in lockstep
        for shape, what, dtype, reserved in (
                (stage, "Kimi K2 stage in fp16: 216 x 2048 x 7168 and 7168 x 18432 (goal 115)", "f16", None),
                (stage, "the same on 124 SMs", "f16", 8), (stage, "the same stage in bf16", None, None),
                ((4096, 4096, 1), "1 x 4096 x 4096", None, None),
                ((4096, 11008, 1), "1 x 4096 x 11008", None, None),
                ((768, 2048, 128), "128 x 768 x 2048", None, None),
                ((8192, 28672, 9), "9 x 8192 x 28672", None, None)):
            cells = []
            for provider, form in (("cublaslt", "standard"), ("sm90", "standard"), ("sm90", "gram")):
                found = fastest([r for r in self.rows("ns") if r["form"] == form], shape, [provider],
                                dtype, reserved)
                cells.append(said(found[0], ".2f") if found else "")
            if any(cells):
                yield row(what, *cells)

    def summary(self):
        """What is looked at first, in a few lines."""
        lines = []
        torch, triton = self.torch("torch x @ x.T"), self.torch("Triton symmetric")
        for size in (512, 1024, 2048, 4096, 8192, 16384):
            rates = {p: product(self.rows("gemm"), p, size)
                     for p in ("cublaslt-best", "cublaslt", "sm80", "sm90")}
            rates["sm90 on 124 SMs"] = product(self.rows("gemm"), "sm90", size, reserved=8)
            for name, found in (("PyTorch", torch), ("Triton", triton)):
                rates[name] = found.get(f"{size}x{size}", {}).get("tflops")
            names = {"cublaslt": VENDOR, "cublaslt-best": BEST}
            known = [f"{names.get(name, name)} {said(rate, '.0f')}" for name, rate in rates.items() if rate]
            if known:
                lines.append(f"X X^T {size}, TFLOP/s: {', '.join(known)}")
        for size in (512, 1024, 2048):
            rates = {p: product(self.rows("gemm"), p, size, count=8) for p in ("cublaslt-best", "sm90")}
            rates["torch.bmm"] = self.torch("torch.bmm").get(f"{size}x{size}x8", {}).get("tflops")
            known = [f"{BEST if name == 'cublaslt-best' else name} {said(rate, '.0f')}"
                     for name, rate in rates.items() if rate]
            if known:
                lines.append(f"X X^T of 8 x {size}, TFLOP/s: {', '.join(known)}")
        for provider in ("cublaslt-best", "sm90"):
            random, zeros = (product(self.rows("gemm"), provider, 4096, values=values)
                             for values in ("random", "zeros"))
            if random and zeros:
                lines.append(f"zeros over random values, X X^T 4096, {provider}: "
                             f"{ratio(zeros, random) or WRONG} (power)")
        lines += ["Newton-Schulz, ms: " + line for line in self.newton_schulz()]
        lines += [f"{row['what']} {row['shape']}, ms: {row['median_ms']}" for row in map(checked, self.rows("torch"))
                  if row["what"].startswith("torch.optim")]
        return "".join(line + "\n" for line in lines)

    def markdown(self):
        head = row("what", "GPU, date", "command", "ours", "reference", "ratio", "data")
        lines = ["Measurements:", "", head, "|---" * 7 + "|", *self.elementwise(), *self.products(),
                 *self.batch(), *self.correctness(), *self.steps(), "", "Symmetric products, TFLOP/s:", "",
                 row("kernel", 2048, 4096, 8192, 16384), "|---" * 5 + "|", *self.symmetric(), "",
                 "One small symmetric product, us:", "",
                 row("n", f"{BEST}, no mirror", "PyTorch, `x @ x.T`, `torch.bmm`", "ours"), "|---" * 4 + "|",
                 *self.small(), "",
                 "Newton-Schulz, ms:", "",
                 row("batch", "cuBLASLt, standard", "`sm90.cu`, standard", "`sm90.cu`, Gram"),
                 "|---" * 4 + "|", *self.newton_schulz()]
        return "\n".join(lines) + "\n"
