"""Write docs/API.md: the public names by area with signatures and summaries, read from the source, not run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "API.md"
HEAD = """# Public names

Every area of the library, its public names with their signatures, and the first paragraph of each docstring; the rest
of it is in the source. A name stands where it is meant to be imported from. The {ops} ops of the namespace are in
[OPS.md](OPS.md). Written by `tools/api_docs.py`; a gate fails when it is out of date, or a name has no docstring.

"""
AREAS = {
    "The namespace": ("nbxtensor",),
    "Errors": ("nbxtensor.errors",),
    "Settings": (
        "nbxtensor.settings",
        "nbxtensor.memory",
        "nbxtensor.ops.tiling_policy",
        "nbxtensor.ops.autotune_settings",
        "nbxtensor.ops.launch_observer",
        "nbxtensor.host",
    ),
    "Dtypes": (
        "nbxtensor.dtype.itemsize",
        "nbxtensor.dtype.convert",
        "nbxtensor.dtype.promotion",
        "nbxtensor.dtype.policy",
        "nbxtensor.dtype.outputs",
        "nbxtensor.dtype.limits",
        "nbxtensor.dtype.nbx_dtype",
        "nbxtensor.dtype.table",
    ),
    "Shapes, random numbers, packed weights, files": (
        "nbxtensor.shape",
        "nbxtensor.random",
        "nbxtensor.quant",
        "nbxtensor.io.safetensors",
    ),
    "Declaring ops": ("nbxtensor.op",),
    "Graphs and plans": (
        "nbxtensor.planning.graph",
        "nbxtensor.planning.plan",
        "nbxtensor.planning.steps",
        "nbxtensor.planning.lifetimes",
        "nbxtensor.planning.placement",
        "nbxtensor.planning.verify",
        "nbxtensor.planning.price",
        "nbxtensor.planning.report",
        "nbxtensor.planning.picture",
        "nbxtensor.planning.document",
        "nbxtensor.planning.interpret",
        "nbxtensor.planning.passes",
        "nbxtensor.tracing.fusion",
        "nbxtensor.tracing.packing",
    ),
    "Devices and backends": (
        "nbxtensor.run",
        "nbxtensor.memory.allocator",
        "nbxtensor.backend.contract",
        "nbxtensor.backend.registry",
        "nbxtensor.backend.runtime",
        "nbxtensor.backend.device_files",
        "nbxtensor.backend.device_facts",
        "nbxtensor.backend.device_names",
        "nbxtensor.backend.host_memory",
        "nbxtensor.backend.cpu.pool",
        "nbxtensor.backend.cpu.blas",
        "nbxtensor.backend.cpu.levels",
        "nbxtensor.backend.null",
        "nbxtensor.backend.null.device",
        "nbxtensor.backend.null.description",
    ),
}
INSIDE = """## Inside

What the areas above are made of: for those who work on the library.

| module | what it holds |
| --- | --- |
"""


def modules(package: griffe.Module) -> Iterator[griffe.Module]:
    """Yield the package and every module in it."""
    yield package
    for module in package.modules.values():
        if not module.is_alias and not module.name.startswith("_"):
            yield from modules(module)


def exported(module: griffe.Module) -> Iterator[griffe.Object]:
    """Yield what the module lists in ``__all__``, by name, wherever it is defined."""
    for name in sorted({str(n) for n in module.exports or ()}, key=lambda n: (n.lower(), n)):
        member = module.members[name]
        found = member.final_target if isinstance(member, griffe.Alias) else member
        if isinstance(found, griffe.Module):  # a module and the function it is named after
            found = found.members[name]
        yield found


def is_op(member: griffe.Object) -> bool:
    """Tell whether the name is an op, which has its line in OPS.md: what a module of a family defines."""
    return member.path.startswith("nbxtensor.ops.") and member.path.count(".") == 4


def summary(member: griffe.Object) -> str:
    """Return the first paragraph of the docstring on one line."""
    text = member.docstring.value.strip() if member.docstring else ""
    return " ".join(text.partition("\n\n")[0].split())


def spelling(member: griffe.Object) -> str:
    """Return how the name is written: a function with its signature, a value with its type."""
    if isinstance(member, griffe.Function):
        return str(member.signature())
    if isinstance(member, griffe.Class):
        made = member.all_members.get("__init__")
        bases = {str(base).partition("[")[0] for base in member.bases}
        if not isinstance(made, griffe.Function) or "Protocol" in bases:
            return member.name
        return str(made.signature()).replace("__init__", member.name, 1).removesuffix(" -> None")
    annotation = getattr(member, "annotation", None)
    return f"{member.name}: {annotation}" if annotation else member.name


def line(member: griffe.Object, depth: int = 0) -> str:
    """Return the member's line."""
    said = summary(member)
    return f"{'  ' * depth}- {'class ' if member.is_class else ''}`{spelling(member)}`{': ' + said if said else ''}\n"


def attributes(member: griffe.Object) -> Iterator[str]:
    """Yield the line of each attribute that a class's docstring describes."""
    for section in member.docstring.parse("google", warnings=False) if member.docstring else ():
        if section.kind is griffe.DocstringSectionKind.attributes:
            for attribute in section.value:
                kind = getattr(member.all_members.get(attribute.name), "annotation", None)
                typed = f"{attribute.name}: {kind}" if kind else attribute.name
                yield f"  - `{typed}`: {' '.join(attribute.description.split())}\n"


def methods(member: griffe.Object) -> Iterator[griffe.Object]:
    """Yield a class's own public methods and properties."""
    if isinstance(member, griffe.Class):
        for inner in member.members.values():
            documented = isinstance(inner, griffe.Function) or "property" in inner.labels
            if documented and not isinstance(inner, griffe.Alias) and not inner.name.startswith("_"):
                yield inner


def page() -> tuple[str, list[str]]:
    """Return the document, and the paths of public names without a docstring."""
    package = griffe.load("nbxtensor", search_paths=[str(ROOT / "src")], try_relative_path=False)
    if not isinstance(package, griffe.Module):
        raise TypeError(f"nbxtensor is a package. Got {package!r}.")
    known = {module.path: module for module in modules(package)}
    missing = [
        member.path
        for module in known.values()
        for member in exported(module)
        if not summary(member) and (member.is_function or member.is_class)
    ]
    parts, placed, ops = [], set[str](), 0
    for area, paths in AREAS.items():
        parts.append(f"## {area}\n\n")
        for path in paths:
            listed = [m for m in exported(known[path]) if m.path not in placed]
            ops += sum(map(is_op, listed))
            listed = [m for m in listed if not is_op(m)]
            missing += [m.path for m in listed if not summary(m)]
            placed |= {m.path for m in listed}
            if listed:
                parts.append(f"### {path}\n\n{summary(known[path])}\n\n")
                for member in listed:
                    parts += [line(member), *attributes(member), *(line(inner, 1) for inner in methods(member))]
                parts.append("\n")
    parts.append(INSIDE)
    shown = {path for paths in AREAS.values() for path in paths}
    parts += [f"| `{path}` | {summary(known[path])} |\n" for path in sorted(set(known) - shown)]
    missing += [path for path, module in known.items() if not summary(module)]
    return HEAD.format(ops=ops) + "".join(parts), sorted(set(missing))


def main() -> int:
    """Write the document, or check that it is fresh and complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the document is out of date")
    check = parser.parse_args().check
    wanted, missing = page()
    for path in missing:
        print(f"no docstring: {path}")
    if not check:
        TARGET.write_text(wanted)
        return 1 if missing else 0
    fresh = TARGET.exists() and TARGET.read_text() == wanted
    print(f"{TARGET.name}: {'fresh' if fresh else 'out of date; run tools/api_docs.py'}")
    return 0 if fresh and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
