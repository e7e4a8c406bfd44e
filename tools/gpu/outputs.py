"""What programs print, as tools/gpu-check reads it, and the files that it writes."""
import ctypes
import json
import os
import secrets


def write_whole(path, text):
    """The file is the old one or all of the new one; what was planted in its folder is left alone."""
    target = os.path.realpath(path)
    temporary = os.path.join(os.path.dirname(target), "muonrt.tmp." + secrets.token_hex(8))
    try:
        with open(temporary, "x", encoding="utf-8") as out:  # as with O_EXCL: follows no link
            out.write(text)
        os.replace(temporary, target)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def last(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


def said_left_out(text):
    """Why cases of a Catch2 program were left out, once for each time that one said so."""
    lines = [line.strip() for line in text.splitlines()]
    return [line.removeprefix("left out: ") for line in lines if line.startswith("left out: ")]


def asserted_nothing(text):
    """Whether a Catch2 program ended well without one assertion."""
    return "assertions: - none -" in text


def ends(text, most=8000):
    """The head of an output, where the first failure is, with its tail."""
    half = most // 2
    if len(text) <= most:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def counted_by_driver():
    """GPUs as the driver counts them, where there is no nvidia-smi; "" for none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return f"{count.value} GPUs (no nvidia-smi)" if count.value else ""
    except OSError:
        pass
    return ""


def objects_in(text):
    """All objects that are printed whole, whatever stands between them."""
    out, decoder, at = [], json.JSONDecoder(), text.find('{"')
    while at >= 0:
        try:
            found, at = decoder.raw_decode(text, at)
            out.append(found)
        except ValueError:
            at += 1
        at = text.find('{"', at)
    return out


def json_in(text):
    """The object with rows that a command has printed. Where it did not come to that: the rows that it
    has printed one by one ({"row": ...}), as {"rows", "wrong", "cut": true}; None for none."""
    found = objects_in(text)
    rows = [o["row"] for o in found if set(o) == {"row"}]
    whole = [o for o in found if isinstance(o.get("rows"), list)]
    if whole:
        return whole[-1]
    return {"rows": rows, "wrong": sum(row.get("wrong") or 0 for row in rows), "cut": True} \
        if rows else None


WORK = ("product", "rows", "cols", "count", "form", "mode", "dtype", "values", "steady_s", "tune")


def work_of(row):
    """What a row measures, and by whom."""
    return tuple(row.get(key) for key in WORK + ("provider", "reserved_sms"))


def add_ratios(rows):
    """of_cublaslt, of_best: that provider's time, and that of cuBLASLt at its best, by this one's, for
    the same work."""
    def work(row):
        return tuple(row.get(key) for key in WORK)
    for name, provider in (("of_cublaslt", "cublaslt"), ("of_best", "cublaslt-best")):
        vendor = {work(row): row["median_ms"] for row in rows
                  if row.get("provider") == provider and not row.get("wrong")}
        for row in rows:
            if row.get("median_ms") and not row.get("wrong") and vendor.get(work(row)):
                row[name] = round(vendor[work(row)] / row["median_ms"], 3)
