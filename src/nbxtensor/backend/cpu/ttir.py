"""TTIR text (what Triton prints before anything depends on a device) to a graph of ops and values."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from nbxtensor.errors import CompileError

__all__ = ["Block", "Function", "Op", "Type", "Value", "parse"]

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.+)>$")
_POINTER = re.compile(r"!tt\.ptr<(.+?)(?:, \d+)?>$")
_RESULTS = re.compile(r"(%[\w#-]+(?::\d+)?(?:, %[\w#-]+)*)\s*=\s*(.*)$")
_NAME = re.compile(r'"?([\w.]+)"?\s*')
_VALUE = re.compile(r"%[\w-]+(?:#\d+)?")
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*(array<[^>]*>|#?[\w.+-]+)")
_NUMBER = re.compile(r"true|false|[-+]?0x[0-9A-Fa-f]+|[-+]?\d[\d.]*(?:[eE][-+]?\d+)?")
_FLOATS = {"f16": (">H", ">e"), "f32": (">I", ">f"), "f64": (">Q", ">d")}
_ENDS = frozenset({"scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return"})
_DENSE = {"f16": "<e", "f32": "<f", "f64": "<d", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q"}


@dataclass(frozen=True)
class Type:
    """A TTIR type.

    Attributes:
        element: Element ("f32", "bf16", "i1", "i32", "index", ...); of a pointer, what it points to.
        shape: Extents of a block; None for a scalar.
        pointer: Whether the value holds addresses of ``element``.
    """

    element: str
    shape: tuple[int, ...] | None = None
    pointer: bool = False

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of a block; none for a scalar."""
        return self.shape or ()

    @property
    def size(self) -> int:
        """Number of elements: 1 for a scalar."""
        return math.prod(self.extents)


@dataclass(eq=False)
class Value:
    """One result of an op, or one argument of a block.

    Attributes:
        name: As the text has it ("%12", "%12#1").
        type: Its type.
        op: The op that makes it; None for an argument.
        index: Which result or argument it is.
    """

    name: str
    type: Type
    op: Op | None = None
    index: int = 0

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False)
class Op:
    """One operation.

    Attributes:
        name: Dialect and name ("tt.load").
        operands: Values it reads. A conditional branch reads its condition, then the arguments of both targets.
        results: Values it makes.
        attributes: Everything else in its text by name; a comparison's "predicate", a constant's "value".
        regions: The blocks inside it.
        line: Its first line, for messages.
    """

    name: str
    line: str
    operands: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    regions: list[Block] = field(default_factory=list["Block"])

    @property
    def result(self) -> Value:
        """The only result."""
        return self.results[0]

    def integer(self, name: str) -> int:
        """Return the integer attribute ``name``."""
        return int(self.attributes[name])

    def constant(self) -> tuple[float, ...]:
        """Return the numbers of an ``arith.constant`` in row-major order: one number when all are equal."""
        type_ = self.result.type
        text = self.attributes["value"]
        if packed := re.search(r'dense<"0x([0-9A-Fa-f]+)">', text):
            return _packed(bytes.fromhex(packed[1]), type_.element)
        return tuple(_number(token, type_.element) for token in _NUMBER.findall(text.removeprefix("dense")))


@dataclass(eq=False)
class Block:
    """A straight line of ops: the inside of a region, or one block of a function that branches.

    Attributes:
        label: Name of the block ("bb1").
        arguments: Values that whoever enters it hands over.
        ops: Its ops in order; the last ends the block.
    """

    label: str = "bb0"
    arguments: tuple[Value, ...] = ()
    ops: list[Op] = field(default_factory=list[Op])


@dataclass(eq=False)
class Function:
    """A kernel.

    Attributes:
        name: Its name.
        arguments: Its parameters.
        aligned: For each parameter, the number that its value (an address, an integer) is known to be a multiple of.
        blocks: Its body; more than one block when it returns early.
    """

    name: str
    arguments: tuple[Value, ...]
    aligned: tuple[int, ...]
    blocks: list[Block]


def parse(text: str) -> Function:
    """Return the kernel of a TTIR module.

    Raises:
        CompileError: When the text holds no public function, or an op whose text does not follow a known form.
    """
    return _Parser(text).function()


def _packed(data: bytes, element: str) -> tuple[float, ...]:
    if element == "bf16":
        return tuple(_bits(b, "bf16") for (b,) in struct.iter_unpack("<H", data))
    return tuple(v for (v,) in struct.iter_unpack(_DENSE[element], data))


def _bits(bits: int, element: str) -> float:
    if element == "bf16":
        return struct.unpack(">f", struct.pack(">I", bits << 16))[0]
    raw, real = _FLOATS[element]
    return struct.unpack(real, struct.pack(raw, bits))[0]


def _number(token: str, element: str) -> float:
    if token in {"true", "false"}:
        return int(token == "true")
    if element in _FLOATS or element == "bf16":
        return _bits(int(token, 16), element) if "x" in token else float(token)
    return int(token, 0)


def _split(text: str, separator: str = ",") -> list[str]:
    """Split at the separators that no bracket encloses."""
    parts: list[str] = []
    depth = start = 0
    for i, c in enumerate(text):
        if c in "<([{":
            depth += 1
        elif c in ")]}" or (c == ">" and text[i - 1] != "-"):
            depth -= 1
        elif depth == 0 and text.startswith(separator, i):
            parts.append(text[start:i].strip())
            start = i + len(separator)
    parts.append(text[start:].strip())
    return [p for p in parts if p]


def _parse_type(text: str) -> Type:
    text = text.strip()
    shape = None
    if match := _TENSOR.match(text):
        shape = tuple(int(n) for n in match[1].split("x") if n)
        text = match[2]
    if match := _POINTER.match(text):
        return Type(match[1], shape, pointer=True)
    return Type(text, shape)


def _types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [_parse_type(t) for t in _split(text)]


class _Parser:
    def __init__(self, text: str) -> None:
        stripped = (line.split(" // ")[0].split("  //")[0].strip() for line in text.splitlines())
        self.lines: Iterator[str] = iter([line for line in stripped if line and not line.startswith("#")])
        self.values: dict[str, Value] = {}
        self.kernel = "?"

    def error(self, rule: str, line: str) -> CompileError:
        return CompileError(f"{self.kernel}: {rule}. Got {line!r}. The TTIR of Triton 3.6 to 3.9 is read.")

    def function(self) -> Function:
        for line in self.lines:
            if "tt.func" in line and (match := re.search(r"@([\w.$]+)\((.*?)\)\s*(?:attributes .*)?\{$", line)):
                break
        else:
            raise CompileError("a TTIR module holds a kernel. Got none. Text with one public tt.func is accepted.")
        self.kernel = match[1]
        arguments = tuple(self.argument(text, i) for i, text in enumerate(_split(match[2])))
        known = [re.search(r"tt\.divisibility = (\d+)", text) for text in _split(match[2])]
        aligned = tuple(int(m[1]) if m else 1 for m in known)
        return Function(self.kernel, arguments, aligned, self.blocks()[0])

    def argument(self, text: str, index: int) -> Value:
        name, type_ = text.split(":", 1)
        value = Value(name.strip(), _parse_type(type_.split(" {")[0]), index=index)
        self.values[value.name] = value
        return value

    def blocks(self) -> tuple[list[Block], str]:
        """Read until the brace that closes this level; return the blocks and that closing line."""
        blocks = [Block()]
        for line in self.lines:
            if line.startswith("}"):
                return blocks, line
            if match := re.match(r"\^(\w+)(?:\((.*)\))?:", line):
                arguments = tuple(self.argument(t, i) for i, t in enumerate(_split(match[2] or "")))
                if blocks[-1].ops or len(blocks) > 1:
                    blocks.append(Block())
                blocks[-1].label, blocks[-1].arguments = match[1], arguments
                continue
            blocks[-1].ops.append(self.op(line))
        raise CompileError(f"{self.kernel}: TTIR text ends with a closing brace. Got none. A whole module is accepted.")

    def region(self) -> tuple[Block, str]:
        blocks, closing = self.blocks()
        if len(blocks) != 1:
            raise self.error("a region is one block", blocks[1].label)
        (block,) = blocks
        if not block.ops or block.ops[-1].name not in _ENDS:
            block.ops.append(Op("scf.yield", "scf.yield"))  # left out of the text where it hands on nothing
        return block, closing

    def op(self, line: str) -> Op:
        names: list[str] = []
        body = line
        if match := _RESULTS.match(line):
            names, body = [n.strip() for n in match[1].split(",")], match[2]
        match = _NAME.match(body)
        if match is None:
            raise self.error("an op begins with its name", line)
        op = Op(match[1], line)
        rest = body[match.end() :]
        special = {
            "scf.for": self.for_,
            "scf.while": self.while_,
            "scf.if": self.if_,
            "tt.reduce": self.combining,
            "tt.scan": self.combining,
            "cf.br": self.jump,
            "cf.cond_br": self.jump,
        }
        types = special.get(op.name, self.plain)(op, rest)
        self.name_results(op, names, types)
        return op

    def name_results(self, op: Op, names: list[str], types: list[Type]) -> None:
        if len(names) == 1 and ":" in names[0]:
            stem, count = names[0].split(":")
            names = [f"{stem}#{k}" for k in range(int(count))]
        if len(types) < len(names):
            types = types * len(names)  # tt.split names one type for both halves
        op.results = tuple(Value(n, t, op, k) for k, (n, t) in enumerate(zip(names, types, strict=False)))
        self.values.update({v.name: v for v in op.results})

    def read(self, text: str) -> tuple[Value, ...]:
        try:
            return tuple(self.values[name] for name in _VALUE.findall(text))
        except KeyError as error:
            raise self.error("a value is made before it is read", str(error)) from None

    def plain(self, op: Op, rest: str) -> list[Type]:
        parts = _split(rest, " : ")
        head, signature = (parts[0], parts[-1]) if len(parts) > 1 else (rest, "")
        if op.name == "arith.constant":
            op.attributes["value"] = head
            return [_parse_type(signature or ("i1" if head.strip() in {"true", "false"} else "index"))]
        if op.name.startswith("arith.cmp"):
            op.attributes["predicate"] = head.split()[0].rstrip(",")
        elif op.name in {"tt.get_program_id", "tt.get_num_programs"}:
            op.attributes["axis"] = head.split()[0]
        op.operands = self.read(head)
        op.attributes.update(_ATTRIBUTE.findall(head))
        if "unsigned" in head.split():
            op.attributes["unsigned"] = "true"
        if not signature:
            return []
        for arrow in (" -> ", " to "):
            if arrow in signature:
                return _types(_split(signature, arrow)[-1])
        types = _types(signature)
        first = types[0]
        if op.name.startswith("arith.cmp"):
            return [Type("i1", first.shape)]
        if op.name == "arith.select":
            return [types[-1]]
        if op.name == "tt.load":
            return [Type(first.element, first.shape)]
        return [first]

    def for_(self, op: Op, rest: str) -> list[Type]:
        match = re.match(
            r"(?:(unsigned) )?(%\w+) = (\S+) to (\S+) step (\S+)\s*"
            r"(?:iter_args\((.*)\) -> \((.*)\))?\s*(?:: (\w+) )?\{$",
            rest,
        )
        if match is None:
            raise self.error("scf.for has a counter, bounds and carried values", op.line)
        if match[1]:
            op.attributes["unsigned"] = "true"
        bounds = self.read(" ".join(match.group(3, 4, 5)))
        types = _types(match[7]) if match[7] else []
        counter = Value(match[2], bounds[0].type)
        arguments, initial = self.carried(match[6] or "", types, first=1)
        op.operands = (*bounds, *initial)
        self.values[counter.name] = counter
        block, _ = self.region()
        block.arguments = (counter, *arguments)
        op.regions = [block]
        return types

    def carried(self, text: str, types: list[Type], first: int = 0) -> tuple[list[Value], tuple[Value, ...]]:
        pairs = [p.split("=") for p in _split(text)]
        initial = self.read(" ".join(b for _, b in pairs))
        arguments = [
            Value(a.strip(), t, index=first + k) for k, ((a, _), t) in enumerate(zip(pairs, types, strict=True))
        ]
        self.values.update({v.name: v for v in arguments})
        return arguments, initial

    def while_(self, op: Op, rest: str) -> list[Type]:
        match = re.match(r"\((.*)\) : \((.*)\) -> (.*) \{$", rest) or re.match(r"()\s*: \((.*)\) -> (.*) \{$", rest)
        if match is None:
            raise self.error("scf.while has carried values", op.line)
        arguments, op.operands = self.carried(match[1], _types(match[2]))
        before, closing = self.region()
        before.arguments = tuple(arguments)
        if closing != "} do {":
            raise self.error("scf.while has two regions", closing)
        after, _ = self.region()
        op.regions = [before, after]
        return _types(match[3])

    def if_(self, op: Op, rest: str) -> list[Type]:
        match = re.match(r"(%[\w#-]+)(?: -> \((.*)\))? \{$", rest)
        if match is None:
            raise self.error("scf.if has a condition", op.line)
        op.operands = self.read(match[1])
        block, closing = self.region()
        op.regions = [block]
        if closing == "} else {":
            block, _ = self.region()
            op.regions.append(block)
        return _types(match[2]) if match[2] else []

    def combining(self, op: Op, rest: str) -> list[Type]:
        op.operands = self.read(rest.split("<{")[0])
        op.attributes.update(_ATTRIBUTE.findall(rest))
        block, closing = self.region()
        op.regions = [block]
        return _types(closing.split(" -> ")[-1])

    def jump(self, op: Op, rest: str) -> list[Type]:
        op.operands = self.read(re.sub(r":[^,)]*", "", rest))
        targets = re.findall(r"\^(\w+)(?:\(([^)]*)\))?", rest)
        op.attributes["targets"] = " ".join(label for label, _ in targets)
        op.attributes["counts"] = " ".join(str(len(_VALUE.findall(handed))) for _, handed in targets)
        return []
