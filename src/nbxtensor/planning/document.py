"""Plain data as JSON text and back, exactly: dataclasses, tuples, arrays, and ops by name."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import math
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from nbxtensor.errors import FormatError, NbxError
from nbxtensor.op import Op

__all__ = ["RUNTIME", "Describer", "Resolver", "op_name", "read_document", "write_document"]

RUNTIME = MappingProxyType({"runtime": True})
"""Metadata of a dataclass field that belongs to the running process and not to the data."""
Resolver = Callable[[Any], Op]
"""Returns the op that a description stands for."""
Describer = Callable[[Op], Any]
"""Returns a description of an op as JSON data, such as its name."""
_TAG = "$"


def op_name(op: Op) -> str:
    """Return what stands for an op in a document unless something else is asked for: its name."""
    return op.name


def write_document(name: str, version: int, content: Any, describe: Describer = op_name) -> str:
    """Return ``content`` as the text of a document.

    Tuples become lists, mappings objects, dataclasses objects tagged with their class, arrays base64, and an op what
    ``describe`` says of it. Fields marked ``metadata=RUNTIME`` are left out, and so is a function that a dataclass
    carries without comparing it (a reference). The text carries the SHA-256 of its content.

    Args:
        name: What kind of document it is.
        version: Version of its format.
        content: What the document holds.
        describe: What tells an op from all others, as plain data.

    Raises:
        FormatError: A value of a type that the format has no place for.
    """
    body = _Encoder(describe)(content)
    head = {"format": name, "version": version, "sha256": _digest(body)}
    return _lines({**head, "content": body}, 4) + "\n"


def read_document(text: str, name: str, version: int, classes: Iterable[type[Any]], resolve: Resolver) -> Any:
    """Return the content that `write_document` wrote, every field of the type it is annotated with.

    Args:
        text: The text of the document.
        name: The kind of document that is expected.
        version: The version of the format that is expected.
        classes: The dataclasses that may occur.
        resolve: Op from what ``describe`` said of it; raises a LookupError or an error of the library where there is
            none.

    Raises:
        FormatError: Not such a document, another version, damaged, or an op, a class or a field that is not known.
    """
    try:
        document = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{name}: the text is JSON. {error}.") from None
    if not isinstance(document, dict):
        raise FormatError(f"{name}: the document is a JSON object. Got {type(document).__name__}.")
    given = cast("dict[str, Any]", document)
    if given.get("format") != name:
        raise FormatError(f"{name}: the field format names the document. Got {given.get('format')!r}.")
    if given.get("version") != version:
        raise FormatError(f"{name}: version {version} is read. Got version {given.get('version')!r}.")
    body = given.get("content")
    if given.get("sha256") != _digest(body):
        raise FormatError(f"{name}: the content does not have the SHA-256 that the document states: it is damaged.")
    return _Decoder(name, {c.__name__: c for c in classes}, resolve)(body)


def _data_fields(kind: type[Any]) -> list[Field[Any]]:
    return [f for f in fields(kind) if f.metadata != RUNTIME]


def _lines(value: Any, depth: int) -> str:
    """Return JSON with one line per entry down to ``depth``, so that two documents can be compared line by line."""
    if depth and isinstance(value, dict) and value:
        entries = (f"{json.dumps(k)}: {_lines(v, depth - 1)}" for k, v in cast("dict[str, Any]", value).items())
        return "{\n" + ",\n".join(entries) + "\n}"
    if depth and isinstance(value, list) and value:
        return "[\n" + ",\n".join(_lines(v, depth - 1) for v in cast("list[Any]", value)) + "\n]"
    return json.dumps(value, allow_nan=False)


def _digest(body: object) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _tagged(tag: str, **content: Any) -> dict[str, Any]:
    return {_TAG: tag, **content}


class _Encoder:
    """Values as what JSON can say."""

    def __init__(self, describe: Describer) -> None:
        self._describe = describe

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else _tagged("float", text=repr(value))
        if isinstance(value, tuple):
            return [self(v) for v in cast("tuple[Any, ...]", value)]
        if isinstance(value, Mapping):
            given = cast("Mapping[Any, Any]", value)
            if all(isinstance(k, str) and k != _TAG for k in given):
                return {k: self(v) for k, v in given.items()}
            return _tagged("mapping", items=[[self(k), self(v)] for k, v in given.items()])
        if isinstance(value, Op):
            return _tagged("op", key=self(self._describe(value)))
        if is_dataclass(value) and not isinstance(value, type):
            kept = {f.name: self._field(f, getattr(value, f.name)) for f in _data_fields(type(value))}
            return _tagged(type(value).__name__, **kept)
        return self._other(value)

    def _field(self, field: Field[Any], value: Any) -> Any:
        return None if callable(value) and not field.compare else self(value)

    def _other(self, value: Any) -> dict[str, Any]:
        """Return what JSON has no form of its own for."""
        if isinstance(value, list):
            return _tagged("list", items=[self(v) for v in cast("list[Any]", value)])
        if isinstance(value, frozenset):
            return _tagged("set", items=[self(v) for v in sorted(cast("frozenset[Any]", value))])
        if isinstance(value, complex):
            return _tagged("complex", real=self(value.real), imag=self(value.imag))
        if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            data = base64.b64encode(value.tobytes()).decode()
            return _tagged(kind, dtype=value.dtype.str, shape=list(value.shape), data=data)
        raise FormatError(
            f"a document holds numbers, text, tuples, lists, mappings, arrays, ops and plain data of the library. "
            f"Got {type(value).__module__}.{type(value).__qualname__}."
        )


@functools.cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    """Say whether a value is of the type that a field is annotated with."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(v, arguments[0]) for v in cast("tuple[Any, ...]", value))
    if origin is abc.Mapping:
        return isinstance(value, abc.Mapping) and all(
            _fits(k, arguments[0]) and _fits(v, arguments[1]) for k, v in cast("Mapping[Any, Any]", value).items()
        )
    if origin is abc.Callable:
        return callable(value)
    return isinstance(value, (int, float) if hint is float else origin or hint)


class _Decoder:
    """The way back from parsed JSON."""

    def __init__(self, name: str, classes: Mapping[str, type[Any]], resolve: Resolver) -> None:
        self._name = name
        self._classes = classes
        self._resolve = resolve

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self(v) for v in cast("list[Any]", value))
        if not isinstance(value, dict):
            return value
        given = cast("dict[str, Any]", value)
        if _TAG not in given:
            return {k: self(v) for k, v in given.items()}
        tag = given[_TAG]
        content = {k: v for k, v in given.items() if k != _TAG}
        try:
            return self._object(tag, content) if tag in self._classes else self._plain(tag, content)
        except FormatError:
            raise
        except (NbxError, TypeError, ValueError, LookupError, binascii.Error) as error:
            raise FormatError(f"{self._name}: not a {tag!r} of this format. {error}") from error

    def _object(self, tag: str, content: Mapping[str, Any]) -> Any:
        kind = self._classes[tag]
        known = {f.name for f in _data_fields(kind)}
        if known != set(content):
            odd = ", ".join(sorted(known ^ content.keys()))
            raise FormatError(f"{self._name}: a {tag} has other fields. In one of the two only: {odd}.")
        values = {k: self(v) for k, v in content.items()}
        for name, hint in _hints(kind).items():
            if name in values and not _fits(values[name], hint):
                raise FormatError(f"{self._name}: {name} of a {tag} is of another type. Got {values[name]!r}. {hint}.")
        return kind(**values)

    def _plain(self, tag: str, content: Mapping[str, Any]) -> Any:
        if tag == "op":
            return self._op(self(content["key"]))
        if tag == "mapping":
            return {self(k): self(v) for k, v in content["items"]}
        if tag == "list":
            return [self(v) for v in content["items"]]
        if tag == "set":
            return frozenset(self(v) for v in content["items"])
        if tag == "float":
            return float(content["text"])
        if tag == "complex":
            return complex(self(content["real"]), self(content["imag"]))
        if tag in ("array", "scalar"):
            data = base64.b64decode(content["data"], validate=True)
            array = np.frombuffer(data, np.dtype(content["dtype"])).reshape(content["shape"])
            return array if tag == "array" else array[()]
        raise FormatError(f"{self._name}: no {tag!r} is known. {', '.join(self._classes)} are.")

    def _op(self, key: Any) -> Op:
        try:
            return self._resolve(key)
        except (NbxError, LookupError) as error:
            raise FormatError(f"{self._name}: it calls the op {key!r}, which is not to be had. {error}") from error
