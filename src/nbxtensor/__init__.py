"""An inference-first tensor library, torch-free.

Names load with their first use: importing the library loads neither numpy, Triton nor a device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbxtensor.capture.bounded import (
        BoundedProgram,
    )
    from nbxtensor.capture.bundle import (
        load_program,
        load_programs,
    )
    from nbxtensor.capture.described import (
        save_plan,
    )
    from nbxtensor.capture.planned import (
        load_plan,
        plan,
    )
    from nbxtensor.capture.program import (
        Program,
        State,
    )
    from nbxtensor.capture.recording import (
        Recording,
    )
    from nbxtensor.capture.saving import (
        save_programs,
    )
    from nbxtensor.op import (
        Spec,
    )
    from nbxtensor.ops.attention.op import (
        attention,
    )
    from nbxtensor.ops.index.cache import (
        cache_update,
    )
    from nbxtensor.ops.index.op import (
        embedding,
        take,
        take_along_axis,
    )
    from nbxtensor.ops.layout.op import (
        concat,
        copy,
        pad,
    )
    from nbxtensor.ops.matmul.op import (
        addmm,
        bmm,
        linear,
        linear_packed,
        matmul,
        mm,
    )
    from nbxtensor.ops.norm.op import (
        batch_norm,
        group_norm,
        instance_norm,
        layer_norm,
        rms_norm,
    )
    from nbxtensor.ops.pointwise.activation import (
        celu,
        elu,
        gelu,
        hardsigmoid,
        hardswish,
        hardtanh,
        leaky_relu,
        log_sigmoid,
        mish,
        relu,
        relu6,
        selu,
        silu,
        softplus,
        softsign,
        threshold,
    )
    from nbxtensor.ops.pointwise.arithmetic import (
        abs,
        add,
        addcdiv,
        addcmul,
        atan2,
        copysign,
        divide,
        floor_divide,
        fmax,
        fmin,
        fmod,
        hypot,
        lerp,
        logaddexp,
        maximum,
        minimum,
        multiply,
        negative,
        nextafter,
        positive,
        pow,
        reciprocal,
        remainder,
        rsqrt,
        sign,
        sqrt,
        square,
        subtract,
    )
    from nbxtensor.ops.pointwise.comparison import (
        bitwise_and,
        bitwise_invert,
        bitwise_left_shift,
        bitwise_or,
        bitwise_right_shift,
        bitwise_xor,
        equal,
        greater,
        greater_equal,
        isfinite,
        isinf,
        isnan,
        less,
        less_equal,
        logical_and,
        logical_not,
        logical_or,
        logical_xor,
        not_equal,
        signbit,
    )
    from nbxtensor.ops.pointwise.elementary import (
        acos,
        acosh,
        asin,
        asinh,
        atan,
        atanh,
        ceil,
        cos,
        cosh,
        erf,
        erfc,
        exp,
        exp2,
        expm1,
        floor,
        frac,
        log,
        log1p,
        log2,
        log10,
        logit,
        round,
        sigmoid,
        sin,
        sinh,
        tan,
        tanh,
        trunc,
    )
    from nbxtensor.ops.pointwise.selection import (
        astype,
        clip,
        masked_fill,
        nan_to_num,
        where,
    )
    from nbxtensor.ops.reduce.op import (
        all,
        any,
        argmax,
        argmin,
        count_nonzero,
        logsumexp,
        max,
        mean,
        min,
        prod,
        std,
        sum,
        var,
        vector_norm,
    )
    from nbxtensor.ops.rope.op import (
        rope,
    )
    from nbxtensor.ops.rope.update import (
        rope_update,
    )
    from nbxtensor.ops.softmax.op import (
        log_softmax,
        softmax,
    )
    from nbxtensor.planning.graph import (
        Graph,
    )
    from nbxtensor.planning.plan import (
        Plan,
    )
    from nbxtensor.run import (
        Device,
        device,
    )
    from nbxtensor.shape import (
        Dim,
    )
    from nbxtensor.tensor import (
        Tensor,
        arange,
        asarray,
        broadcast_arrays,
        broadcast_to,
        empty,
        expand_dims,
        eye,
        flip,
        from_dlpack,
        from_numpy_array,
        full,
        linspace,
        matrix_transpose,
        moveaxis,
        ones,
        permute_dims,
        repeat,
        reshape,
        roll,
        rope_frequencies,
        split,
        squeeze,
        stack,
        tile,
        unstack,
        zeros,
    )
    from nbxtensor.tracing import (
        trace,
    )

__version__ = "0.0.1"

# Where each public name is defined; a test holds this table, the imports above and `__all__` together.
_PLACES = {
    name: module
    for module, names in {
        "nbxtensor.capture.bounded": "BoundedProgram",
        "nbxtensor.capture.bundle": "load_program load_programs",
        "nbxtensor.capture.described": "save_plan",
        "nbxtensor.capture.planned": "load_plan plan",
        "nbxtensor.capture.program": "Program State",
        "nbxtensor.capture.recording": "Recording",
        "nbxtensor.capture.saving": "save_programs",
        "nbxtensor.op": "Spec",
        "nbxtensor.ops.attention.op": "attention",
        "nbxtensor.ops.index.cache": "cache_update",
        "nbxtensor.ops.index.op": "embedding take take_along_axis",
        "nbxtensor.ops.layout.op": "concat copy pad",
        "nbxtensor.ops.matmul.op": "addmm bmm linear linear_packed matmul mm",
        "nbxtensor.ops.norm.op": "batch_norm group_norm instance_norm layer_norm rms_norm",
        "nbxtensor.ops.pointwise.activation": (
            "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish "
            "relu relu6 selu silu softplus softsign threshold"
        ),
        "nbxtensor.ops.pointwise.arithmetic": (
            "abs add addcdiv addcmul atan2 copysign divide floor_divide fmax fmin fmod "
            "hypot lerp logaddexp maximum minimum multiply negative nextafter positive "
            "pow reciprocal remainder rsqrt sign sqrt square subtract"
        ),
        "nbxtensor.ops.pointwise.comparison": (
            "bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift "
            "bitwise_xor equal greater greater_equal isfinite isinf isnan less less_equal "
            "logical_and logical_not logical_or logical_xor not_equal signbit"
        ),
        "nbxtensor.ops.pointwise.elementary": (
            "acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor "
            "frac log log10 log1p log2 logit round sigmoid sin sinh tan tanh trunc"
        ),
        "nbxtensor.ops.pointwise.selection": "astype clip masked_fill nan_to_num where",
        "nbxtensor.ops.reduce.op": (
            "all any argmax argmin count_nonzero logsumexp max mean min prod std sum var vector_norm"
        ),
        "nbxtensor.ops.rope.op": "rope",
        "nbxtensor.ops.rope.update": "rope_update",
        "nbxtensor.ops.softmax.op": "log_softmax softmax",
        "nbxtensor.planning.graph": "Graph",
        "nbxtensor.planning.plan": "Plan",
        "nbxtensor.run": "Device device",
        "nbxtensor.shape": "Dim",
        "nbxtensor.tensor": (
            "Tensor arange asarray broadcast_arrays broadcast_to empty expand_dims eye "
            "flip from_dlpack from_numpy_array full linspace matrix_transpose moveaxis "
            "ones permute_dims repeat reshape roll rope_frequencies split squeeze stack tile unstack zeros"
        ),
        "nbxtensor.tracing": "trace",
    }.items()
    for name in names.split()
}

__all__ = [
    "BoundedProgram",
    "Device",
    "Dim",
    "Graph",
    "Plan",
    "Program",
    "Recording",
    "Spec",
    "State",
    "Tensor",
    "abs",
    "acos",
    "acosh",
    "add",
    "addcdiv",
    "addcmul",
    "addmm",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "attention",
    "batch_norm",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bmm",
    "broadcast_arrays",
    "broadcast_to",
    "cache_update",
    "ceil",
    "celu",
    "clip",
    "concat",
    "copy",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "device",
    "divide",
    "elu",
    "embedding",
    "empty",
    "equal",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "flip",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frac",
    "from_dlpack",
    "from_numpy_array",
    "full",
    "gelu",
    "greater",
    "greater_equal",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hypot",
    "instance_norm",
    "isfinite",
    "isinf",
    "isnan",
    "layer_norm",
    "leaky_relu",
    "lerp",
    "less",
    "less_equal",
    "linear",
    "linear_packed",
    "linspace",
    "load_plan",
    "load_program",
    "load_programs",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_sigmoid",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "logsumexp",
    "masked_fill",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mm",
    "moveaxis",
    "multiply",
    "nan_to_num",
    "negative",
    "nextafter",
    "not_equal",
    "ones",
    "pad",
    "permute_dims",
    "plan",
    "positive",
    "pow",
    "prod",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "repeat",
    "reshape",
    "rms_norm",
    "roll",
    "rope",
    "rope_frequencies",
    "rope_update",
    "round",
    "rsqrt",
    "save_plan",
    "save_programs",
    "selu",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinh",
    "softmax",
    "softplus",
    "softsign",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "threshold",
    "tile",
    "trace",
    "trunc",
    "unstack",
    "var",
    "vector_norm",
    "where",
    "zeros",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'nbxtensor' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
