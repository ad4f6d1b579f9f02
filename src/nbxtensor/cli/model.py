"""MODEL on the command line: a Python file whose ``build`` returns what is planned, priced and run."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from nbxtensor.cli.usage import UsageError
from nbxtensor.planning.graph import Graph
from nbxtensor.run import Device

__all__ = ["PROTOCOL", "Model", "build_model"]

PROTOCOL = "build(**options) -> graph, or (graph, weights), or (graph, weights, inputs)"
"""What a MODEL file exposes."""
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Model:
    """What a file's ``build`` returned.

    Attributes:
        path: The file.
        graph: What `nbxtensor.trace` made of the model.
        weights: Value of every weight by name, or a function of the device that returns them, which is called where
            the model is run and nowhere else; None where the file gave none.
        inputs: One value per input, or a function of the device that returns them; None for random ones.
    """

    path: Path
    graph: Graph
    weights: Mapping[str, Any] | Callable[[Device], Mapping[str, Any]] | None = None
    inputs: Sequence[Any] | Callable[[Device], Sequence[Any]] | None = None

    def weights_on(self, device: Device) -> Mapping[str, Any]:
        """Return the weights to load.

        Raises:
            UsageError: The graph has weights and the file gave none, or its function of the device raised.
        """
        if self.weights is None:
            names = [b.name for _, b in self.graph.of_kind("weight")]
            if names:
                raise UsageError(
                    f"{self.path}: the graph has {len(names)} weights ({names[0]}, ...), and build returned none. A "
                    f"model that is run has {PROTOCOL}."
                )
            return {}
        if callable(self.weights):
            return _called(self.path, "weights", self.weights, device)
        return self.weights

    def inputs_on(self, device: Device) -> tuple[Any, ...]:
        """Return the inputs to run with; none where the recording shall draw them.

        Raises:
            UsageError: The file's function of the device raised.
        """
        given = _called(self.path, "inputs", self.inputs, device) if callable(self.inputs) else self.inputs
        return tuple(given or ())


def build_model(path: Path, options: Sequence[str]) -> Model:
    """Return what the file at ``path`` builds.

    The file is run as a module, with its folder on the search path as where Python itself runs it, and its ``build``
    is called with the options. A value is read as the type of the parameter's default (bool, int, float, str); where
    that is none of these, as the Python literal it spells, or else as text.

    Args:
        path: The file.
        options: Words of the form ``KEY=VALUE``.

    Raises:
        UsageError: There is no such file, it cannot be run, it has no ``build``, ``build`` takes no such option, it
            raised, or it returned something else.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file. MODEL is a Python file with {PROTOCOL}.")
    build = getattr(_module(path), "build", None)
    if not callable(build):
        raise UsageError(f"{path}: no function build. MODEL is a Python file with {PROTOCOL}.")
    return _model(path, _called(path, "build", build, **_options(path, build, options)))


def _module(path: Path) -> ModuleType:
    """Return the module that a file is, run once."""
    name = f"nbxtensor_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: a Python file, whose name ends in .py.")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    _called(path, "the file", spec.loader.exec_module, module)
    return module


def _called(path: Path, what: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call what a model's file defines; whatever it raises is told in one line, with the line it was raised in."""
    try:
        return function(*arguments, **options)
    except (Exception, SystemExit) as error:  # the file is anybody's
        raise UsageError(f"{path}{_line(path, error)}: {what} raised {_said(error)}") from error


def _line(path: Path, error: BaseException) -> str:
    """Return ", line N" for the innermost line of the file that an error came through."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    return f", line {lines[-1]}" if lines else ""


def _said(error: BaseException) -> str:
    """Return an error's kind and the first line of what it says."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text.strip().splitlines()[0]}" if text.strip() else type(error).__name__


def _options(path: Path, build: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``build``'s parameters that the words name."""
    parameters = inspect.signature(build).parameters
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {name: p for name, p in parameters.items() if p.kind in named}
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    options: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{path}: options are KEY=VALUE. Got {word!r}. build takes {_listed(known)}.")
        if key not in known and not takes_all:
            raise UsageError(f"{path}: build has no option {key!r}. It takes {_listed(known)}.")
        if key in options:
            raise UsageError(f"{path}: an option is given once. Got {key!r} again.")
        default = known[key].default if key in known else inspect.Parameter.empty
        options[key] = _value(path, key, text, default)
    empty = inspect.Parameter.empty
    lacking = [name for name, p in known.items() if p.default is empty and name not in options]
    if lacking:
        raise UsageError(f"{path}: build needs {', '.join(f'{name}=VALUE' for name in lacking)}.")
    return options


def _listed(known: Mapping[str, inspect.Parameter]) -> str:
    empty = inspect.Parameter.empty
    return ", ".join(f"{n}={'VALUE' if p.default is empty else p.default}" for n, p in known.items()) or "no options"


def _value(path: Path, key: str, text: str, default: Any) -> Any:
    """Return the value that an option's text stands for."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in _WORDS:
            raise UsageError(f"{path}: {key} is true or false. Got {text!r}.")
        return _WORDS[text.lower()]
    if isinstance(default, (int, float)):
        try:
            return type(default)(text)
        except ValueError:
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise UsageError(f"{path}: {key} is {kind}, as its default {default}. Got {text!r}.") from None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _model(path: Path, built: Any) -> Model:
    """Return what ``build`` returned, checked."""
    parts = list(cast("tuple[Any, ...]", built)) if isinstance(built, tuple) else [built]
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], Graph):
        words = ", ".join(type(part).__name__ for part in parts)
        raise UsageError(f"{path}: build returned {words or 'an empty tuple'}. A model has {PROTOCOL}.")
    graph, weights, inputs = cast("tuple[Graph, Any, Any]", (*parts, None, None)[:3])
    if not (weights is None or callable(weights) or isinstance(weights, Mapping)):
        raise UsageError(
            f"{path}: weights are a mapping from names to values, or a function of the device that returns one. Got "
            f"{type(weights).__name__}."
        )
    if not (inputs is None or callable(inputs) or isinstance(inputs, (tuple, list))):
        raise UsageError(
            f"{path}: inputs are a tuple of one value per input, or a function of the device that returns one. Got "
            f"{type(inputs).__name__}."
        )
    return Model(path, graph, cast("Any", weights), cast("Any", inputs))
