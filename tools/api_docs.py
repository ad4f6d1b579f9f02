"""Write docs/API.md: every public name of every public module with its signature and summary, read statically."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "API.md"
HEAD = """# Public names

Every name that a module lists in `__all__`, with its signature and the first paragraph of its docstring; written by
`tools/api_docs.py`, and a gate fails when it is out of date or a name has no docstring. The ops are in
[OPS.md](OPS.md).

"""


def modules(package: griffe.Module) -> list[griffe.Module]:
    """Return the package and every module in it that has an ``__all__``, by path."""
    found = [package]
    for module in package.modules.values():
        if not module.is_alias and not module.name.startswith("_"):
            found += modules(module)
    return found


def entries(module: griffe.Module) -> list[griffe.Object]:
    """Return what the module defines and lists as public."""
    names = {str(name) for name in module.exports or ()}
    defined = (m for m in module.members.values() if not m.is_alias)
    return [m for m in defined if m.name in names and not m.is_module]


def signature(member: griffe.Object) -> str:
    """Return a function's parameters, or nothing for other members."""
    if not isinstance(member, griffe.Function):
        return ""
    return str(member.signature()).partition(member.name)[2]


def page() -> tuple[str, list[str]]:
    """Return the document, and the paths of public names without a docstring."""
    package = griffe.load("nbxtensor", search_paths=[str(ROOT / "src")], try_relative_path=False)
    parts, missing = [HEAD], []
    for module in sorted(modules(package), key=lambda m: m.path):
        if "/ops/" in str(module.filepath) and module.name not in ("tiling_policy", "autotune_settings", "launch_observer"):
            continue
        listed = entries(module)
        if not listed:
            continue
        summary = module.docstring.value.strip() if module.docstring else ""
        parts.append(f"## {module.path}\n\n{summary}\n\n")
        for member in listed:
            text = member.docstring.value.strip() if member.docstring else ""
            if not text and (member.is_function or member.is_class):
                missing.append(member.path)
            first = " ".join(text.partition("\n\n")[0].split())
            kind = "class " if member.is_class else ""
            parts.append(f"- {kind}`{member.name}{signature(member)}`{': ' + first if first else ''}\n")
        parts.append("\n")
    return "".join(parts).rstrip() + "\n", missing


def main() -> int:
    """Write the document, or check that it is fresh and complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the document is out of date")
    wanted, missing = page()
    for path in missing:
        print(f"no docstring: {path}")
    if parser.parse_args().check:
        fresh = TARGET.exists() and TARGET.read_text() == wanted
        print(f"{TARGET.name}: {'fresh' if fresh else 'out of date; run tools/api_docs.py'}")
        return 0 if fresh and not missing else 1
    TARGET.write_text(wanted)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
