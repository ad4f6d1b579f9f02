"""Where the source of a kernel lives: what its cache key covers, and the Triton function it becomes."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import linecache
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from nbxtensor.backend.contract import KernelRequest
from nbxtensor.errors import CompileError
from nbxtensor.op import Source, Target

__all__ = [
    "constant_values",
    "early_start",
    "generator_digest",
    "kernel_function",
    "kernel_key",
    "reached_files",
]

_EARLY = "PDL"

# An import statement, at any depth of a module: a superset of what runs, so that no file is missed.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)


def kernel_key(
    request: KernelRequest,
    target: Target,
    generator: tuple[str, ...],
    options: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return what names a compiled kernel on disk: a digest of all that its code depends on.

    It covers the request, the target, the versions of Triton and of this library, the source of the kernel and of
    every file of its own package and of this library that it imports, and the source of the code generator. Triton is
    not imported.

    Args:
        request: The kernel; its warps and stages are covered where ``options`` has them.
        target: What it is compiled for.
        generator: Modules that turn it into code.
        options: What else the code depends on, by name.

    Raises:
        CompileError: Triton is not installed, or a module named has no source file.
    """
    digest = hashlib.sha256()
    facts = (
        request.module,
        request.name,
        request.text,
        list(request.signature.items()),
        [(name, _spelling(value)) for name, value in request.constants.items()],
        request.functions,
        list(request.grid),
        target.arch,
        sorted(target.features),
        generator_digest(generator),
        sorted(options.items()),
    )
    digest.update(json.dumps(facts).encode())
    texts = [request.text, *(value.text for value in request.constants.values() if isinstance(value, Source))]
    named = [request.module, *(module for text in texts for module in _imported(text, ("nbxtensor",)))]
    if any(isinstance(value, str) and value.startswith("fn:") for value in request.constants.values()):
        named.append(request.functions)
    digest.update(_digest(tuple(name for name in named if name)).encode())
    return digest.hexdigest()


@functools.cache
def generator_digest(generator: tuple[str, ...]) -> str:
    """Return a digest of what turns a kernel into code: Triton's version, this library's, and the modules named.

    Raises:
        CompileError: Triton is not installed.
    """
    return " ".join((*_versions(), _digest(generator)))


def kernel_function(request: KernelRequest) -> Any:
    """Return the Triton function of a request, its module imported or, for generated text, made.

    Raises:
        CompileError: There is no such module, or it has no such function.
    """
    if request.text:
        return _from_text(request.name, request.text)
    return _from_module(request.module, request.name)


def constant_values(request: KernelRequest) -> dict[str, Any]:
    """Return the constants as Triton takes them: "tl.float32" and "fn:relu" looked up, generated functions made.

    Raises:
        CompileError: A name that is looked up does not exist.
    """
    return {name: _value(value, request) for name, value in request.constants.items()}


def early_start(function: Any, *, device_has_it: bool) -> dict[str, bool]:
    """Return the value of the constant ``PDL`` of a Triton function that has one, else nothing.

    A kernel with a parameter ``PDL: tl.constexpr`` waits for the launches before it by itself, where ``PDL`` is true
    (``nbxtensor.backend.cuda.compiling`` says how and why). No launch names the constant: each code generator sets it,
    true where its device starts dependent launches early, else false.
    """
    return {_EARLY: device_has_it} if _EARLY in function.arg_names else {}


def _value(value: Any, request: KernelRequest) -> Any:
    if isinstance(value, Source):
        return _from_text(value.name, value.text)
    if isinstance(value, str) and value.startswith("tl."):
        return _from_module("triton.language", value.removeprefix("tl."))
    if isinstance(value, str) and value.startswith("fn:"):
        return _from_module(request.functions, value.removeprefix("fn:"))
    return value


def _spelling(value: Any) -> Any:
    """Return a constant as plain text in which 1, 1.0, True and "1" differ."""
    return [value.name, value.text] if isinstance(value, Source) else repr(value)


def _from_module(module: str, name: str) -> Any:
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise CompileError(
            f"{name}: its module is imported. Got {module!r}: {error}. A module on the path, with triton installed."
        ) from error
    return _member(found, name)


def _from_text(name: str, text: str) -> Any:
    return _member(_generated(text), name)


def _member(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        raise CompileError(
            f"{name}: a function of its module. Got none in {module.__name__}. A name defined there."
        ) from None


class _TextLoader(importlib.abc.InspectLoader):
    """Loads a module from text that is in no file."""

    def __init__(self, text: str, filename: str) -> None:
        self._text = text
        self._filename = filename

    def get_source(self, fullname: str) -> str:  # noqa: ARG002  the base class names it
        return self._text

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002  the base class names it
        return self.source_to_code(self._text, self._filename)


@functools.cache
def _generated(text: str) -> ModuleType:
    name = "nbxtensor_generated_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    filename = f"<{name}>"
    # Triton reads a function's source back through `inspect`, which looks here.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    spec = importlib.util.spec_from_loader(name, _TextLoader(text, filename))
    if spec is None or spec.loader is None:
        raise CompileError(f"{name}: a module is made of its text. Got no loader. This is a defect of the library.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _versions() -> tuple[str, str]:
    import importlib.metadata

    try:
        return importlib.metadata.version("triton"), importlib.metadata.version("nbxtensor")
    except importlib.metadata.PackageNotFoundError as error:
        raise CompileError(
            f"kernels are compiled by Triton. Got no package {error.name!r}. Install it, or load a bundle."
        ) from None


@functools.cache
def _digest(modules: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in reached_files(modules):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def reached_files(modules: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the source files of ``modules`` and of all they import, of this library and of their own packages.

    Raises:
        CompileError: One of ``modules`` has no source file.
    """
    packages = tuple({"nbxtensor", *(name.partition(".")[0] for name in modules)})
    files: dict[str, Path] = {}
    waiting = list(modules)
    for name in modules:
        if _file(name) is None:
            raise CompileError(f"{name}: the source of a kernel is a file. Got none. A module of Python source.")
    while waiting:
        name = waiting.pop()
        path = None if name in files else _file(name)
        if path is not None:
            files[name] = path
            waiting.extend(_imported(path.read_text(encoding="utf-8"), packages))
    return tuple(files[name] for name in sorted(files))


def _imported(text: str, packages: tuple[str, ...]) -> Iterator[str]:
    """Yield every module that ``text`` may import from ``packages``; names that turn out to be none do no harm."""
    for origin, members, plain in _IMPORT.findall(text):
        if plain:
            names = [part.split()[0] for part in plain.split(",") if part.strip()]
        else:
            taken = [part.split()[0] for part in members.strip("() \n").split(",") if part.strip()]
            names = [f"{origin}.{member}" if _file(f"{origin}.{member}") else origin for member in taken]
        yield from (name for name in names if name.partition(".")[0] in packages)


def _file(module: str) -> Path | None:
    """Return the source file of a module, found without importing it."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is not None and loaded.endswith(".py"):
        return Path(loaded)
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a spec: one that was made, not found
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin is not None and spec.origin.endswith(".py") else None
    for location in spec.submodule_search_locations or ():
        place = Path(location).joinpath(*rest.split("."))
        for path in (place.with_name(place.name + ".py"), place / "__init__.py"):
            if path.is_file():
                return path
    return None
