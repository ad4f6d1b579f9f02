"""The declaration of an op in one place, and the function it becomes."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from nbxtensor.dtype.itemsize import canonical
from nbxtensor.errors import ArgumentError, UnsupportedError
from nbxtensor.op.expression import Expression
from nbxtensor.op.keys import argument_key
from nbxtensor.op.launch import Call, Cost, Launch, Target
from nbxtensor.op.spec import Spec

__all__ = ["Array", "Case", "Kernel", "Op", "OpFunction", "Operand", "Place", "Pointwise", "declare"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Array = np.ndarray[Any, Any]
"""A numpy array of any dtype and shape."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of an op.

    Attributes:
        name: Name of the kernel: unique within the op; where it is one Triton function, that function's name.
        cost: What a call takes.
        launch: The launches a call makes, in order.
        needs: Features the target must have.
        accepts: Whether the kernel can serve a call; left out, it serves every call of the op.
        accepted: What ``accepts`` asks for, in words.
        kind: "triton", or "host" for a declared numpy routine on host memory (matrix decompositions only).
        in_place: Index of each result that may lie exactly where the named operand does, every other operand
            elsewhere. Where it does (`Call.in_place`), what that operand held may be left as it is instead of copied;
            cost and launches may differ from those of a call into fresh memory.
        parts: For a kernel that does nothing but copy its operands to places of result 0 that do not overlap and are
            all of it: where each goes, by name, as (elements from the result's start, layout there). What makes an
            operand may write it there itself.
        strided: Whether its one result may have gaps between elements, which it leaves as they are.
    """

    name: str
    cost: Callable[[Call], Cost]
    launch: Callable[[Call], tuple[Launch, ...]]
    needs: frozenset[str] = frozenset()
    accepts: Callable[[Call], bool] | None = None
    kind: str = "triton"
    in_place: Mapping[int, str] = field(default_factory=dict[int, str], hash=False)
    parts: Callable[[Call], Mapping[str, tuple[int, Spec]]] | None = None
    strided: bool = False
    accepted: str = "other operands"


@dataclass(frozen=True, slots=True)
class Pointwise:
    """How one element of a pointwise op's result is computed.

    Attributes:
        function: ``module:name`` of the Triton device function; it takes the operands that are tensors or scalars
            in the order of ``operands`` and returns one block.
        operands: Parameter names it is given, in order; each is an operand or a scalar parameter of the call.
        compute: Dtype that each of them is cast to before the call, in the same order.
        flops: Arithmetic operations per element.
    """

    function: str
    operands: tuple[str, ...]
    compute: tuple[str, ...]
    flops: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One call to test an op with; a benchmark too when ``bench`` is set.

    Attributes:
        operands: A spec per tensor operand, by name (``name.0`` for sequences); strides may be any.
        params: The other arguments.
        bench: Whether the benchmark times it.
        fill: How operands are filled where random normal values would not do: operand name -> one of "normal",
            "uniform" (-1 to 1), "probability" (0 to 1), "positive", "index:N" (integers below N), "bool", "special"
            (with NaN, infinities, zeros, the ends of the range).
        rtol: Largest error accepted against the float64 reference, relative to the largest magnitude in the result;
            left out, the harness's bound for the dtype holds.
    """

    operands: Mapping[str, Spec]
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    bench: bool = False
    fill: Mapping[str, str] = field(default_factory=dict[str, str])
    rtol: float | None = None


@dataclass(frozen=True, slots=True)
class _Takes:
    """What a parameter takes, as its annotation says.

    Attributes:
        tensor: Whether a tensor.
        sequence: Whether a sequence of tensors, and nothing else.
        none: Whether None.
        types: Types of other values; None where the op checks them itself.
        words: Those types, in words; empty for none.
        default: The value it has when left out.
    """

    tensor: bool
    sequence: bool
    none: bool
    types: tuple[type, ...] | None
    words: str
    default: Any


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "float": ((bool, int, float), "a number"),
    "int": ((int,), "an int"),
    "bool": ((bool,), "a bool"),
    "str": ((str,), "a word"),
    "Expression": ((Expression,), "an Expression"),
}


@functools.cache
def _accepted(op: Op) -> Mapping[str, _Takes]:
    return {name: _takes(parameter) for name, parameter in op.signature.parameters.items()}


@functools.cache
def _parameters(op: Op) -> tuple[dict[str, Any], tuple[str, ...], frozenset[str]]:
    """Return the default of every parameter, in order, which of them positions fill, and which have none."""
    parameters = op.signature.parameters
    positional = tuple(n for n, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = frozenset(n for n, p in parameters.items() if p.default is inspect.Parameter.empty)
    return {name: parameter.default for name, parameter in parameters.items()}, positional, required


def _takes(parameter: inspect.Parameter) -> _Takes:
    annotation = parameter.annotation
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    parts = text.split(" | ")
    tensor, none = "Tensor" in parts, "None" in parts
    others = [part for part in parts if part not in ("Tensor", "None")]
    known = [_TYPES[part] for part in others if part in _TYPES]
    types = tuple(t for accepted, _ in known for t in accepted) if len(known) == len(others) else None
    words = " or ".join(words for _, words in known)
    return _Takes(tensor, "Sequence[Tensor]" in text, none, types, words, parameter.default)


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One op's whole declaration: all that the planner, the runner, the tests, the benchmarks and the docs read.

    Attributes:
        name: The public name.
        module: Module of its Triton kernels.
        signature: The public signature.
        operands: Names of the parameters that are tensors, a sequence of tensors ("tensors..."), or may be either a
            tensor or a number.
        result: Specs of the results from those of the operands; raises where the op refuses them.
        reference: The same function on numpy arrays; computes in float64 where that matters.
        kernels: In order of preference.
        cases: Calls to test it with.
        pointwise: How one element is computed, for ops that fuse; None for others.
        doc: The docstring.
        expression: What a fused pointwise op computes; None for declared ops.
    """

    name: str
    module: str
    signature: inspect.Signature
    operands: tuple[str, ...]
    result: Callable[[Call], Spec | tuple[Spec, ...]]
    reference: Callable[..., Any]
    kernels: tuple[Kernel, ...]
    cases: tuple[Case, ...]
    pointwise: Callable[[Call], Pointwise] | None = None
    doc: str = ""
    expression: Expression | None = None

    @property
    def elementwise(self) -> bool:
        """Whether each element of a result depends on the operands' elements at its place alone."""
        return self.pointwise is not None or self.expression is not None

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sort call arguments into (operands by name, parameters by name), defaults filled in.

        An operand is a value with a ``__run__`` method; a number given for one becomes a parameter where the op takes
        numbers there, and None where that is its default. Numpy's numbers become Python's, and a parameter called
        ``dtype`` the table's name of it.

        Raises:
            TypeError: The arguments do not fit the signature.
            ArgumentError: A tensor was given for a parameter that takes none, an operand is neither a tensor nor (where
                the op takes one) a number, or a parameter is of another kind than its annotation says.
            UnknownDtypeError: A dtype that the table does not carry.
        """
        operands: dict[str, Any] = {}
        params: dict[str, Any] = {}
        accepted = _accepted(self)
        for name, value in self._arguments(args, kwargs).items():
            takes = accepted[name]
            if takes.sequence:
                operands |= self._members(name, value)
            elif value is takes.default:
                params[name] = value
            elif not hasattr(value, "__run__"):
                params[name] = self._parameter(name, value, takes)
            elif name in self.operands:
                operands[name] = value
            else:
                raise ArgumentError(f"{self.name}: {name} is not a tensor parameter. Got a tensor.")
        return operands, params

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the value of every parameter by name, in the signature's order."""
        defaults, positional, required = _parameters(self)
        named = positional[: len(args)]
        fit = len(named) == len(args) and kwargs.keys() <= defaults.keys() and kwargs.keys().isdisjoint(named)
        if fit and required <= {*named, *kwargs}:
            return {**defaults, **dict(zip(named, args, strict=True)), **kwargs}
        try:  # what does not fit is refused in Python's own words
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}. Its signature is {self.name}{self.signature}.") from None
        bound.apply_defaults()
        return bound.arguments

    def _members(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, (list, tuple)):
            raise ArgumentError(f"{self.name}: {name} is a list or tuple of tensors. Got {type(value).__name__}.")
        found: dict[str, Any] = {}
        for index, member in enumerate(cast("Sequence[Any]", value)):
            if not hasattr(member, "__run__"):
                raise ArgumentError(
                    f"{self.name}: {name} is a sequence of tensors. Got {type(member).__name__} at {index}."
                )
            found[f"{name}.{index}"] = member
        return found

    def _parameter(self, name: str, value: Any, takes: _Takes) -> Any:
        """Return what is no tensor as the parameter ``name``."""
        if isinstance(value, np.generic):
            value = value.item()
        if takes.types is None or (value is None and takes.none):
            return value
        if name == "dtype":
            return canonical(value)
        # A pointwise op computes on numbers as on tensors, wherever they stand.
        types = (bool, int, float) if self.elementwise and takes.tensor else takes.types
        if not isinstance(value, types) or (isinstance(value, bool) and not {bool, float}.intersection(types)):
            words = f"a tensor or {takes.words}" if takes.tensor and types else takes.words or "a tensor"
            hint = " nbxtensor.asarray makes tensors." if takes.tensor else ""
            raise ArgumentError(f"{self.name}: {name} is {words}. Got {type(value).__name__}.{hint}")
        if isinstance(value, int) and float in types and value.bit_length() > sys.float_info.max_exp:
            raise ArgumentError(f"{self.name}: {name} is a number that a float can hold. Got one of more digits.")
        return value

    def call(self, inputs: Mapping[str, Spec], params: Mapping[str, Any], target: Target | None = None) -> Call:
        """Return the call of this op on ``inputs``, its result rule applied."""
        call = Call(self, inputs, params, target)
        result = self.result(call)
        return replace(call, outputs=result if isinstance(result, tuple) else (result,))

    def kernel(self, call: Call) -> Kernel:
        """Return the first kernel that serves ``call`` on its target.

        Raises:
            UnsupportedError: None does; names the op, the target, what the kernels need and what the target has.
        """
        target = call.device
        for kernel in self.kernels:
            if kernel.needs <= target.features and (kernel.accepts is None or kernel.accepts(call)):
                return kernel
        needs = "; ".join(f"{k.name} needs {', '.join(sorted(k.needs)) or k.accepted}" for k in self.kernels)
        operands = ", ".join(f"{n} {s.dtype}{list(s.shape)}" for n, s in call.inputs.items())
        raise UnsupportedError(
            f"{self.name}: no kernel serves {target.backend} {target.arch}. Got {operands}. "
            f"{needs or 'It declares none'}; the target has {', '.join(sorted(target.features)) or 'no features'}."
        )


Place = tuple[int, int | None]
"""Where an operand stands among the values of a call: which value, and which member where that is a sequence."""
_MOST_PREPARED = 1024  # calls that an op keeps prepared


class Operand(Protocol):
    """A value that runs an op where it lives.

    One that can tell what its launches depend on beside its address may have more, so that an op is prepared once for
    all calls alike: ``__key__``, None or what such calls have in common; ``__keyed__()``, which finds it out; and
    ``__prepare__(op, operands, params, places)``, which returns what runs the op on the values of a call, the operands
    at those places (`Place`), by position and then by name.
    """

    def __run__(self, op: Op, operands: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """Run ``op`` on ``operands`` (of which this value is the first) and return its result or results."""
        ...


class OpFunction(Protocol[P, R_co]):
    """A public op function: a plain function whose declaration is its ``op`` attribute."""

    op: Op

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the op where its operands live."""
        ...


_prepared: list[dict[tuple[Any, ...], Any]] = []  # of every op, what runs calls that were met before


def forget_prepared() -> None:
    """Have every op prepare its calls anew: what they are prepared by has changed."""
    for each in _prepared:
        each.clear()


def declare(
    *,
    result: Callable[[Call], Spec | tuple[Spec, ...]],
    reference: Callable[..., Any],
    kernels: tuple[Kernel, ...],
    cases: tuple[Case, ...],
    pointwise: Callable[[Call], Pointwise] | None = None,
) -> Callable[[Callable[P, R]], OpFunction[P, R]]:
    """Declare an op: the decorated stub gives its name, signature and docstring, and never runs itself.

    Parameters annotated with a type that names ``Tensor`` are operands. The Triton kernels are looked for in the
    module ``kernel`` beside the stub's own.

    Raises:
        ArgumentError: (when the function is called) No operand is a tensor.
    """

    def wrap(stub: Callable[P, R]) -> OpFunction[P, R]:
        signature = inspect.signature(stub)
        operands = tuple(n for n, p in signature.parameters.items() if "Tensor" in str(p.annotation))
        op = Op(
            name=stub.__name__,
            module=stub.__module__.rpartition(".")[0] + ".kernel",
            signature=signature,
            operands=operands,
            result=result,
            reference=reference,
            kernels=kernels,
            cases=cases,
            pointwise=pointwise,
            doc=inspect.getdoc(stub) or "",
        )

        prepared: dict[tuple[Any, ...], Callable[[tuple[Any, ...]], R]] = {}
        _prepared.append(prepared)

        @functools.wraps(stub)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            values: tuple[Any, ...] = args
            if kwargs or not 0 < len(args) < 3:
                values = (*args, *kwargs.values())
                key = (*kwargs, *[getattr(v, "__key__", None) or argument_key(v) for v in values])
            elif len(args) == 2:  # without a loop: most calls are such
                x, y = values
                key = (getattr(x, "__key__", None) or argument_key(x), getattr(y, "__key__", None) or argument_key(y))
            else:
                key = (getattr(values[0], "__key__", None) or argument_key(values[0]),)
            ready = prepared.get(key)
            if ready is None:
                given, params = op.bind(args, kwargs)
                if not given:
                    raise ArgumentError(f"{op.name}: at least one of {', '.join(operands)} is a tensor. Got none.")
                first = cast("Operand", next(iter(given.values())))
                make = getattr(first, "__prepare__", None)
                if make is None or None in key:
                    return cast("R", first.__run__(op, given, params))
                ready = make(op, given, params, _places(op, given, len(args), tuple(kwargs)))
                if len(prepared) >= _MOST_PREPARED:
                    prepared.clear()
                prepared[key] = ready
            return ready(values)

        function = cast("OpFunction[P, R]", run)
        function.op = op
        return function

    return wrap


def _places(op: Op, operands: Mapping[str, Any], positional: int, named: tuple[str, ...]) -> tuple[Place, ...]:
    """Return where each operand stands among the values of a call: which value, and which member of a sequence."""
    order = (*list(op.signature.parameters)[:positional], *named)
    found: list[Place] = []
    for name in operands:
        base, _, member = name.rpartition(".")
        found.append((order.index(base), int(member)) if base else (order.index(name), None))
    return tuple(found)
