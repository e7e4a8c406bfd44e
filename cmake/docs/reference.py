"""Functions for conf.py: generate the pages of the headers, make the Python package importable without
compiled code, and convert docstrings to reStructuredText."""
import re
import shutil
import sys
import types
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util.nodes import make_refnode

import nanobind_module

# Splits a line of a docstring into the prefix of a field, such as ":param lr:", and the other text.
FIELD = re.compile(r"(\s*(?::(?:param|return|raises)\b[^:]*: )?)(.*)")
# Quoted text on two lines in Doxygen's XML. Breathe would split it into two paragraphs.
QUOTED = re.compile(r"(&quot;[^<&\n]*)\n([^<&\n]*&quot;)")
# Code and roles, which stay unchanged. All other text is plain text.
CODE = re.compile(r"(:[\w:]+:`[^`]+`|``.+?``|`[^`\n]+`)")
# A name of the C interface, or a header.
NAME = re.compile(r"(\b(?:muonrt|MUONRT)_\w+(?:\(\))?|\bmuonrt/\w+\.hp{0,2}\b)")


# A link in a guide to a file of the repository. The site links only headers and guides, and shows the
# paths of other files as text.
FILE_LINK = re.compile(r"\[([^]]*)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")


class PageError(Exception):
    """A header is in no toctree, or in the toctrees of several pages."""


def write_sources(root, sources):
    """Copies the pages to `sources` and adds a page for each header.

    Raises PageError unless each header is in the toctree of exactly one page.
    """
    headers = {path.name for path in (root / "include/muonrt").glob("*.h*")}
    pages = {path.name: path.read_text(encoding="utf-8")
             for path in sorted((root / "cmake/docs").glob("*.rst"))}
    listed = [(name, page) for page, text in pages.items()
              for name in re.findall(r"^ +headers/(\S+)$", text, re.MULTILINE)]
    counts = {name: sum(other == name for other, _ in listed) for name in headers}
    problems = [f"include/muonrt/{name} is on {count} pages of cmake/docs; add the line "
                f"'headers/{name}' to the toctree of one page"
                for name, count in sorted(counts.items()) if count != 1]
    problems += [f"cmake/docs/{page} lists headers/{name}, but include/muonrt/{name} does not "
                 "exist; remove the line" for name, page in listed if name not in headers]
    if problems:
        raise PageError("\n".join(problems))
    for old in sources.glob("*.rst"):
        old.unlink()
    shutil.rmtree(sources / "headers", ignore_errors=True)
    (sources / "headers").mkdir()
    for page, text in pages.items():
        (sources / page).write_text(text, encoding="utf-8")
    shutil.rmtree(sources / "guides", ignore_errors=True)
    (sources / "guides").mkdir()
    for path in (root / "cmake/docs/guides").glob("*.md"):
        text = FILE_LINK.sub(r"\1 (`\2`)", path.read_text(encoding="utf-8"))
        (sources / "guides" / path.name).write_text(text, encoding="utf-8")
    for path in (root / "cmake/docs/guides").glob("*.svg"):
        shutil.copy(path, sources / "guides")
    for name in headers:
        text = (root / "include/muonrt" / name).read_text(encoding="utf-8")
        (sources / "headers" / f"{name}.rst").write_text(header_page(name, text), encoding="utf-8")


def header_page(name, text):
    title = f"muonrt/{name}"
    page = (f"{title}\n{'=' * len(title)}\n\n.. code-block:: c\n\n   #include \"{title}\"\n\n"
            f".. doxygenfile:: {title}\n   :project: muonrt\n   :sections: briefdescription "
            "detaileddescription ")
    if name.endswith(".hpp") and name != "muonrt.hpp":
        # Only the page of muonrt.hpp can contain the whole namespace, so the pages of the other C++
        # headers list their classes and functions.
        for name_of_class, name_of_function in re.findall(
                r"^(?:class (\w+)|inline [^(\n]*?(\w+)\()", text, re.MULTILINE):
            page += f"\n\n.. doxygenclass:: muonrt::{name_of_class}\n   :members:\n" \
                if name_of_class else f"\n\n.. doxygenfunction:: muonrt::{name_of_function}\n"
            page += "   :project: muonrt\n"
        return page + "\n"
    return (page + "innernamespace innerclass public-type public-func public-static-func "
            "public-attrib typedef enum func var define user-defined\n")


def join_quoted_lines(xml):
    for path in xml.glob("*.xml"):
        text = path.read_text(encoding="utf-8")
        joined = QUOTED.sub(r"\1 \2", text)
        if joined != text:
            path.write_text(joined, encoding="utf-8")


def without_duplicates(domain):
    """Returns a domain in which a search finds no parameters, and each enumerator only once."""
    class Domain(domain):
        def get_objects(self):
            return (found for found in super().get_objects()
                    if found[2] not in ("functionParam", "templateParam")
                    and not (found[2] == "enumerator" and "." in found[0]))
    return Domain


def link_names(app, doctree, docname):
    """Turns names of types, functions, constants and headers in texts and signatures into links."""
    domain, builder = app.env.get_domain("c"), app.builder
    unchanged = (nodes.reference, nodes.literal_block, nodes.title, addnodes.desc_name)
    for text in list(doctree.findall(nodes.Text)):
        parent, above = text.parent, text.parent
        while above is not None and not isinstance(above, unchanged):
            above = above.parent
        if above is not None:
            continue
        out = []
        for part in NAME.split(text.astext()):
            target, link = f"headers/{part.partition('/')[2]}", None
            if part.startswith("muonrt/") and target in app.env.all_docs:
                link = make_refnode(builder, docname, target, None, nodes.Text(part))
            elif NAME.fullmatch(part):
                link = domain.resolve_xref(app.env, docname, builder, "any",
                                           part.removesuffix("()"), addnodes.pending_xref(),
                                           nodes.Text(part))
            out.append(link or nodes.Text(part))
        if len(out) > 1:
            parent.replace(text, out)


class Absent(type):
    """The metaclass of the classes that replace a missing package. Each attribute is such a class, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name, (), {"__module__": f"{cls.__module__}.{cls.__name__}".lstrip(".")})


def make_absent(*names):
    """Makes `import name` succeed for packages that the documented modules only mention."""
    for name in names:
        module = types.ModuleType(name)
        root = Absent(name, (), {"__module__": ""})
        module.__getattr__ = lambda attribute, root=root: getattr(root, attribute)
        module.__path__ = []
        sys.modules[name] = module


def import_python_package(root, sources):
    """Makes `muonrt` and `muonrt.torch` importable without compiled code, NumPy and PyTorch.

    The module that replaces the compiled one is written to `sources`.
    """
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root / "tools/python"))
    make_absent("numpy", "torch", "torch.distributed", "torch.distributed.tensor", "torch.utils",
                "torch.utils.weak", "safetensors",
                "safetensors.torch")
    nanobind_module.install(root / "tools/python/src", sources / "_core.py")


def plain(text):
    """Returns a line of a docstring with all markup of reStructuredText escaped, except code."""
    def convert(part):
        if part.startswith(("``", ":")) and part.endswith("`"):
            return part
        if part.startswith("`") and part.endswith("`"):
            return f"`{part}`"
        return re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", part)
    return "".join(convert(part) for part in CODE.split(text))


def as_restructured_text(app, what, name, obj, options, lines):
    """Rewrites a docstring in place: all text except fields and code becomes plain text."""
    if what == "module":
        lines.clear()  # the page itself introduces the module
    lines[:] = [field + plain(text) for field, text in (FIELD.match(line).groups() for line in lines)]
    bases = [base.__name__ for base in getattr(obj, "__bases__", ())]
    if what == "exception" and len(bases) > 1:
        lines += ["", f"It is derived from ``{bases[0]}`` and from Python's ``{bases[1]}``."]
