"""Objects in memory: what they may call, what they are refused for, and the pages they live on."""

import ctypes
import gc
import struct
from pathlib import Path

import numpy as np
import pytest

from nbxtensor.backend.cpu import elf
from nbxtensor.backend.cpu.codegen import object_code
from nbxtensor.errors import CompileError

LEVEL = "x86-64-v3"


def built(*lines):
    return object_code("\n".join(('target triple = "x86_64-unknown-linux-gnu"', *lines)) + "\n", LEVEL)


def pages(address):
    """The permissions of the mapping that holds an address, or None."""
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        span, permissions = line.split()[:2]
        low, high = (int(x, 16) for x in span.split("-"))
        if low <= address < high:
            return permissions
    return None


ADD = "define i64 @add(i64 %a, i64 %b) {\n  %c = add i64 %a, %b\n  ret i64 %c\n}"


def test_a_function_runs_on_pages_that_cannot_be_written():
    module = elf.load(built(ADD))
    address = module.address("add")
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)(40, 2) == 42
    assert pages(address) == "r-xp"
    assert module.nbytes >= 4


def test_pages_go_with_their_module():
    addresses = []
    for _ in range(3):
        module = elf.load(built(ADD))
        addresses.append(module.address("add"))
        assert pages(addresses[-1]) == "r-xp"
        del module
        gc.collect()
        assert pages(addresses[-1]) != "r-xp"


def test_constants_and_tables():
    module = elf.load(
        built(
            "@table = private constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]",
            "@calls = private constant [2 x ptr] [ptr @one, ptr @two]",
            "define i64 @one() {\n  ret i64 1\n}",
            "define i64 @two() {\n  ret i64 2\n}",
            "define double @pick(i64 %i) {\n  %p = getelementptr double, ptr @table, i64 %i\n"
            "  %v = load double, ptr %p\n  ret double %v\n}",
            "define i64 @via(i64 %i) {\n  %p = getelementptr ptr, ptr @calls, i64 %i\n  %f = load ptr, ptr %p\n"
            "  %v = call i64 %f()\n  ret i64 %v\n}",
        )
    )
    pick = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(module.address("pick"))
    via = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(module.address("via"))
    assert [pick(i) for i in range(4)] == [1.5, 2.5, 3.5, 4.5]
    assert [via(0), via(1)] == [1, 2]


def test_the_math_library_and_memory_copies_are_found():
    module = elf.load(
        built(
            "declare double @sin(double)",
            "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
            "define double @f(double %x) {\n  %y = call double @sin(double %x)\n  %z = call double @sin(double %y)\n"
            "  ret double %z\n}",
            "define void @g(ptr %a, ptr %b, i64 %n) {\n"
            "  call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 %n, i1 false)\n  ret void\n}",
        )
    )
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(module.address("f"))(0.5) == np.sin(np.sin(0.5))
    a, b = np.zeros(100), np.arange(100.0)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(module.address("g"))(
        a.ctypes.data, b.ctypes.data, a.nbytes
    )
    np.testing.assert_array_equal(a, b)


def test_other_symbols_are_refused_by_name():
    object_ = built("declare i32 @system(ptr)", "define i32 @f() {\n  %r = call i32 @system(ptr null)\n  ret i32 %r\n}")
    with pytest.raises(CompileError, match=r"system.*memcpy"):
        elf.load(object_)


def test_an_unknown_symbol_names_those_there_are():
    with pytest.raises(CompileError, match=r"'nothing'.*add"):
        elf.load(built(ADD)).address("nothing")


def test_an_unknown_relocation_is_refused_by_its_number():
    object_ = built("declare double @sin(double)", "define double @f(double %x) {\n  %y = call double @sin(double %x)\n"
                    "  ret double %y\n}")  # fmt: skip
    known = struct.pack("<I", 4)  # R_X86_64_PLT32, in the low half of a relocation's info
    (table,) = struct.unpack_from("<Q", object_, 40)
    (count,) = struct.unpack_from("<H", object_, 60)
    changed = bytearray(object_)
    for i in range(count):
        kind, offset, nbytes = (struct.unpack_from("<IIQQQQ", object_, table + 64 * i)[k] for k in (1, 4, 5))
        for entry in range(offset, offset + nbytes, 24) if kind == 4 else ():
            if changed[entry + 8 : entry + 12] == known:
                changed[entry + 8 : entry + 12] = struct.pack("<I", 77)
    with pytest.raises(CompileError, match="type 77 against 'sin'"):
        elf.load(bytes(changed))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(58), b"\xcf\xfa\xed\xfe" + bytes(60)])
def test_other_bytes_are_refused(data):
    with pytest.raises(CompileError, match="relocatable x86-64 ELF"):
        elf.load(data)
