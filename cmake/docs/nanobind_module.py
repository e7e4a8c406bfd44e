"""Generates a Python module from the sources of muonrt._core, so that Sphinx can read its signatures
and docstrings without compiling it.

Every method has an empty body. Its parameters come from nb::sig, which contains types, or from nb::arg.
"""
import importlib.util
import re
import sys
from pathlib import Path

LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
ARGUMENT = re.compile(r'nb::arg\("(\w+)"\)(?:\.none\(\))?\s*(?:=\s*(.*))?$', re.DOTALL)
# Matches the start of a class, its continuation in another file, and definitions of functions and
# members.
DEFINITION = re.compile(r"nb::class_<(?P<cls>\w+)>\s*\w*\s*\(|nb::class_<(?P<again>\w+)>\s*&|"
                        r"\b(?P<module>module)\.def\s*\(|"
                        r"\.def(?P<kind>(?:_static|_prop_r[ow]|_ro)?)\s*\(|"
                        r'\bfield\("(?P<field>\w+)",\s*&(?P<struct>\w+)::')
# The first lines of the module. If a default value is a C constant, the signature shows its name.
HEAD = """from __future__ import annotations


class Constant(str):
    def __repr__(self):
        return str(self)

"""
CLOSING = {"(": ")", "[": "]", "{": "}"}


def arguments(text, begin):
    """Returns the arguments of the call whose first argument starts at `begin`."""
    out, depth, at, start = [], 0, begin, begin
    while True:
        literal = LITERAL.match(text, at)
        if literal:
            at = literal.end()
            continue
        if text.startswith("//", at):
            at = text.index("\n", at)
            continue
        char = text[at]
        if depth == 0 and char in ",)":
            out.append(text[start:at].strip())
            start = at + 1
            if char == ")":
                return out
        depth += (char in CLOSING) - (char in CLOSING.values())
        at += 1


def string(argument):
    """Returns the value of adjacent string literals, or None if the argument is not a string literal."""
    parts = LITERAL.findall(argument)
    if not parts or LITERAL.sub("", argument).strip():
        return None
    return "".join(parts).replace(r"\n", "\n").replace(r"\"", '"').replace("\\\\", "\\")


def default(value):
    words = {"nb::none()": "None", "true": "True", "false": "False"}
    if value in words:
        return words[value]
    if value.startswith("std::vector"):
        return "[]"
    if re.fullmatch(r'-?[\d.]+|"[^"]*"', value):
        return value
    constant = re.search(r"\bMUONRT_\w+", value)
    return f"Constant('{constant[0] if constant else '...'}')"


def signature(name, args, is_method):
    """Returns Python's `def` line, from nb::sig if its text is in the source, and otherwise from nb::arg."""
    for arg in args:
        if arg.startswith("nb::sig("):
            text = string(arg[len("nb::sig("):-1])
            if text and text.startswith("def "):
                return text + ":"
    out = ["self"] if is_method else []
    for arg in args:
        found = ARGUMENT.match(arg)
        if arg == "nb::kw_only()":
            out.append("*")
        elif found and found[2]:
            out.append(f"{found[1]}={default(found[2])}")
        elif found:
            # If an argument without a default follows one with a default, it is nb::args or nb::kwargs.
            out.append({"settings": "**settings", "args": "*args"}.get(found[1], found[1]))
    return f"def {name}({', '.join(out)}):"


def python_source(folder):
    """Returns the text of the module: its functions and its classes."""
    functions, classes = [], {}
    for path in sorted(Path(folder).glob("*.cpp")):
        text, members = path.read_text(encoding="utf-8"), None
        for found in DEFINITION.finditer(text):
            if found["again"]:
                members = classes.setdefault(found["again"], [])
                continue
            if found["field"]:
                member = f"{found['struct']}.{found['field']}"
                members.append(f"    @property\n    def {found['field']}(self):\n"
                               f"        'See :c:member:`{member}`.'\n")
                continue
            args = arguments(text, found.end())
            texts = [t for t in map(string, args) if t is not None]
            if found["cls"]:
                members = classes.setdefault(texts[0], [])
                members.insert(0, f"    {texts[1]!r}\n" if len(texts) > 1 else "    pass\n")
                continue
            if not (texts or args[0].startswith("nb::init")):
                continue  # a helper that defines members in a loop
            name = "__init__" if args[0].startswith("nb::init") else texts.pop(0)
            body = repr(texts[0] if texts else "")
            if found["module"]:
                functions.append(f"{signature(name, args, False)}\n    {body}\n")
                continue
            kind = found["kind"]
            mark = {"": "", "_static": "    @staticmethod\n"}.get(kind, "    @property\n")
            head = f"def {name}(self):" if "property" in mark else signature(name, args, kind == "")
            members.append(f"{mark}    {head}\n        {body}\n")
    out = [HEAD, *functions]
    for name, members in classes.items():
        out.append(f"class {name}:\n" + "".join(members))
    return "\n".join(out)


def install(folder, path):
    """Writes the module to `path`, and makes `import muonrt._core` import it."""
    path.write_text(python_source(folder), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("muonrt._core", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["muonrt._core"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    print(python_source(sys.argv[1]))
