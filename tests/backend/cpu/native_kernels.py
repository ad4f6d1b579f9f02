"""Kernels written in LLVM IR, so that the runtime is tested without Triton's front end."""

import functools

from nbxtensor.backend.contract import Compiled
from nbxtensor.backend.cpu import levels
from nbxtensor.backend.cpu.codegen import object_code
from nbxtensor.backend.cpu.host_kernel import HostKernel
from nbxtensor.backend.cpu.native import Native
from nbxtensor.backend.cpu.runtime import runtime_text

HEAD = "ptr %args, ptr %scratch, i64 %lo, i64 %hi, i64 %gx, i64 %gy"


def per_program(name, body, arguments):
    """A kernel that runs ``body`` for each program %i, with its arguments loaded as %a0, %a1 ..."""
    loads = "\n".join(
        f"  %s{k} = getelementptr i64, ptr %args, i64 {k}\n  %a{k} = load {kind}, ptr %s{k}"
        for k, kind in enumerate(arguments)
    )
    return f"""
define void @{name}({HEAD}) {{
entry:
{loads}
  br label %head
head:
  %i = phi i64 [%lo, %entry], [%next, %latch]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
{body}
  br label %latch
latch:
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


TEXTS = {
    # nothing, without arguments
    "nothing": f"define void @nothing({HEAD}) {{\n  ret void\n}}\n",
    # shift(out, in, n): out[i] = in[(i + 1) % n] + 1
    "shift": per_program(
        "shift",
        """  %j = add i64 %i, 1
  %k = urem i64 %j, %a2
  %from = getelementptr i64, ptr %a1, i64 %k
  %old = load i64, ptr %from
  %new = add i64 %old, 1
  %to = getelementptr i64, ptr %a0, i64 %i
  store i64 %new, ptr %to""",
        ("ptr", "ptr", "i64"),
    ),
    # note(out): out[i] = (lo, hi, gx, gy) of the call that ran program i
    "note": per_program(
        "note",
        "\n".join(
            f"  %k{k} = mul i64 %i, 4\n  %n{k} = add i64 %k{k}, {k}\n"
            f"  %p{k} = getelementptr i64, ptr %a0, i64 %n{k}\n  store i64 %{v}, ptr %p{k}"
            for k, v in enumerate(("lo", "hi", "gx", "gy"))
        ),
        ("ptr",),
    ),
    # lean(out): out[i] = the sum of 512 copies of i, by way of scratch
    "lean": per_program(
        "lean",
        """  br label %fill
fill:
  %w = phi i64 [0, %body], [%w2, %fill]
  %at = getelementptr i64, ptr %scratch, i64 %w
  store volatile i64 %i, ptr %at
  %w2 = add i64 %w, 1
  %wmore = icmp slt i64 %w2, 512
  br i1 %wmore, label %fill, label %sum
sum:
  %r = phi i64 [0, %fill], [%r2, %sum]
  %t = phi i64 [0, %fill], [%t2, %sum]
  %rat = getelementptr i64, ptr %scratch, i64 %r
  %v = load volatile i64, ptr %rat
  %t2 = add i64 %t, %v
  %r2 = add i64 %r, 1
  %rmore = icmp slt i64 %r2, 512
  br i1 %rmore, label %sum, label %leave
leave:
  %to = getelementptr i64, ptr %a0, i64 %i
  store i64 %t2, ptr %to""",
        ("ptr",),
    ),
    # slots(out, n): out[k] = argument slot k + 2, as 64 bits
    "slots": per_program(
        "slots",
        """  %j = add i64 %i, 2
  %from = getelementptr i64, ptr %args, i64 %j
  %old = load i64, ptr %from
  %to = getelementptr i64, ptr %a0, i64 %i
  store i64 %old, ptr %to""",
        ("ptr", "i64"),
    ),
}
PARAMETERS = {
    "nothing": (),
    "shift": (("out", "*i64"), ("source", "*i64"), ("n", "i64")),
    "note": (("out", "*i64"),),
    "lean": (("out", "*i64"),),
}
SCRATCH = {"lean": 4096}


@functools.cache
def code(name):
    return object_code(TEXTS[name], levels.detect())


def compiled(name, parameters=None):
    metadata = {"scratch_nbytes": SCRATCH.get(name, 0), "arch": levels.detect(), "features": []}
    return Compiled(name, code(name), PARAMETERS[name] if parameters is None else parameters, metadata)


@functools.cache
def kernel(name):
    return HostKernel(compiled(name))


@functools.cache
def native(futex):
    return Native(object_code(runtime_text(futex=futex), levels.detect()), futex=futex)
