"""What programs print and return, as tools/gpu-check reads it."""
import ctypes
import json


def last(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


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


def json_in(text):
    """The object that a command has printed, progress before it left out; None for none."""
    begin, end = text.find('{"'), text.rfind("}")
    try:
        return json.loads(text[begin:end + 1]) if begin >= 0 else None
    except ValueError:
        return None


WORK = ("product", "rows", "cols", "count", "form", "mode")


def work_of(row):
    """What a row measures, and by whom."""
    return tuple(row.get(key) for key in WORK + ("provider",))


def add_ratios(rows):
    """of_cublaslt: that provider's time by this one's, for the same work."""
    vendor = {work_of(row)[:-1]: row["median_ms"] for row in rows
              if row.get("provider") == "cublaslt"}
    for row in rows:
        if work_of(row)[:-1] in vendor and "provider" in row:
            row["of_cublaslt"] = round(vendor[work_of(row)[:-1]] / row["median_ms"], 3)


def verdict(status, text):
    name = {0: "ok", 77: "skipped", 124: "late"}.get(status, "failed")
    return name, last(text), None if name == "ok" else {"output": text[-8000:]}
