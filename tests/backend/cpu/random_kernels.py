"""Kernels drawn at random, as TTIR text, each beside a numpy program that does the same statement by statement."""

import random

import numpy as np

BUFFERS = 3
LENGTH = 4096  # elements of each buffer
_SIZES = [1, 2, 4, 8, 16, 32, 64]
_BINARY = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "andi": np.bitwise_and, "ori": np.bitwise_or,
    "xori": np.bitwise_xor, "maxsi": np.maximum, "minsi": np.minimum,
}  # fmt: skip
_COMPARE = {"slt": np.less, "sge": np.greater_equal, "eq": np.equal, "sgt": np.greater}
_REDUCE = {"addi": np.add, "maxsi": np.maximum, "xori": np.bitwise_xor, "andi": np.bitwise_and}


def kind(shape, element="i32"):
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>" if shape is not None else element


class Writer:
    """Draws statements; ``values`` are the blocks in scope as (name, shape), ``masks`` the boolean ones."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0
        self.values = []
        self.masks = []
        self.scalars = ["%n"]

    def name(self):
        self.count += 1
        return f"%v{self.count}"

    # A statement is (lines, run), where run(env, memory) does the same to arrays by name.

    def program(self, length):
        steps = [self.statement(depth=0) for _ in range(length)]
        steps += [self.store() for _ in range(2)]
        return steps

    def statement(self, depth):
        draw = self.random.random
        choices = [self.load] * 3 + [self.binary] * 5 + [self.reduce] * 2 + [self.store] * 2
        choices += [self.select, self.move, self.move, self.scan, self.fresh, self.divide, self.divide, self.product]
        choices += [self.gather, self.walk]
        if depth < 2:
            choices += [self.loop, self.branch]
        step = self.random.choice(choices)
        if step in {self.loop, self.branch}:
            return step(depth)
        if step not in {self.load, self.fresh, self.walk} and not self.values:
            return self.load()
        return step() if draw() < 0.97 else self.fresh()

    def pick(self, shape=None):
        found = [v for v in self.values if v[1] is not None and (shape is None or v[1] == shape)]
        recent = found[-6:]
        return self.random.choice(recent if self.random.random() < 0.7 else found) if found else None

    def make(self, shape, lines, run):
        name = self.name()
        self.values.append((name, shape))
        return [line.replace("$", name) for line in lines], lambda env, memory: env.__setitem__(name, run(env, memory))

    def shape(self):
        rank = self.random.choice([1, 1, 2, 2, 2])
        shape = tuple(self.random.choice(_SIZES) for _ in range(rank))
        return shape if np.prod(shape) <= 1024 else shape[:1]

    def fresh(self):
        shape = self.shape()
        number = self.random.choice([0, 1, -1, 3, 7, 100])
        if self.random.random() < 0.5 or len(shape) == 2:
            return self.make(
                shape,
                [f"$ = arith.constant dense<{number}> : {kind(shape)}"],
                lambda e, m: np.full(shape, number, np.int32),
            )
        (n,) = shape
        lines = [f"$ = tt.make_range {{end = {n} : i32, start = 0 : i32}} : {kind(shape)}"]
        return self.make(shape, lines, lambda e, m: np.arange(n, dtype=np.int32))

    def place(self, shape):
        """(lines, pointer, mask or None, function of env giving indices and which count)."""
        lines, names = [], []
        for n in shape:
            name = self.name()
            lines.append(f"{name} = tt.make_range {{end = {n} : i32, start = 0 : i32}} : {kind((n,))}")
            names.append(name)
        order = list(range(len(shape)))
        if self.random.random() < 0.3:
            order.reverse()
        strides = [0] * len(shape)
        step = self.random.choice([1, 1, 1, 2, -1])
        reach = abs(step)
        for k in reversed(order):
            strides[k] = step
            step *= shape[k]
            reach = abs(step)
        if reach > LENGTH:
            return self.place(shape[:1] if len(shape) == 1 else (shape[0], 1))
        low = sum(min(s * (n - 1), 0) for s, n in zip(strides, shape, strict=True))
        high = sum(max(s * (n - 1), 0) for s, n in zip(strides, shape, strict=True))
        offset = self.random.choice([0, 0, 1, 5, 64]) - low
        offset = min(offset, LENGTH - 1 - high)
        limits = [None] * len(shape)
        wide = []
        total, masks = None, []
        for k, (name, n) in enumerate(zip(names, shape, strict=True)):
            if len(shape) == 2:
                part = tuple(n if j == k else 1 for j in range(2))
                other = self.name()
                lines.append(f"{other} = tt.expand_dims {name} {{axis = {1 - k} : i32}} : {kind((n,))} -> {kind(part)}")
            else:
                part, other = shape, name
            if self.random.random() < 0.5:
                limits[k] = self.random.choice(["n", self.random.randint(0, n), n])
                edge, test = self.name(), self.name()
                if limits[k] == "n":
                    lines.append(f"{edge} = tt.splat %n : i32 -> {kind(part)}")
                else:
                    lines.append(f"{edge} = arith.constant dense<{limits[k]}> : {kind(part)}")
                lines.append(f"{test} = arith.cmpi slt, {other}, {edge} : {kind(part)}")
                masks.append((test, part))
            scale, scaled = self.name(), self.name()
            lines.append(f"{scale} = arith.constant dense<{strides[k]}> : {kind(part)}")
            lines.append(f"{scaled} = arith.muli {other}, {scale} : {kind(part)}")
            wide.append((scaled, part))

        def spread(pair, element):
            name, part = pair
            if part == shape:
                return name
            new = self.name()
            lines.append(f"{new} = tt.broadcast {name} : {kind(part, element)} -> {kind(shape, element)}")
            return new

        for pair in wide:
            one = spread(pair, "i32")
            if total is None:
                total = one
            else:
                both = self.name()
                lines.append(f"{both} = arith.addi {total}, {one} : {kind(shape)}")
                total = both
        mask = None
        for pair in masks:
            one = spread(pair, "i1")
            if mask is None:
                mask = one
            else:
                both = self.name()
                lines.append(f"{both} = arith.andi {mask}, {one} : {kind(shape, 'i1')}")
                mask = both
        buffer = self.random.randrange(BUFFERS)
        base, block, pointer = self.name(), self.name(), self.name()
        pointers = kind(shape, "!tt.ptr<i32>")
        lines.append(f"{base} = arith.constant {offset} : i32")
        moved = self.name()
        lines.append(f"{moved} = tt.addptr %b{buffer}, {base} : !tt.ptr<i32>, i32")
        lines.append(f"{block} = tt.splat {moved} : !tt.ptr<i32> -> {pointers}")
        lines.append(f"{pointer} = tt.addptr {block}, {total} : {pointers}, {kind(shape)}")
        grid = np.indices(shape)
        where = offset + sum(s * g for s, g in zip(strides, grid, strict=True))

        def counted(env):
            active = np.ones(shape, bool)
            for limit, g in zip(limits, grid, strict=True):
                if limit is not None:
                    active &= g < (env["%n"] if limit == "n" else limit)
            return active

        return shape, lines, pointer, mask, buffer, where, counted

    def load(self):
        shape, lines, pointer, mask, buffer, where, counted = self.place(self.shape())
        other = self.random.choice([0, 0, 0, -1, -(2**31), 5])
        pointers = kind(shape, "!tt.ptr<i32>")
        if mask:
            filler = self.name()
            lines.append(f"{filler} = arith.constant dense<{other}> : {kind(shape)}")
            lines.append(f"$ = tt.load {pointer}, {mask}, {filler} : {pointers}")
        else:
            lines.append(f"$ = tt.load {pointer} : {pointers}")
        return self.make(
            shape, lines, lambda e, m: np.where(counted(e), m[buffer][where], np.int32(other)).astype(np.int32)
        )

    def store(self):
        value = self.pick()
        if value is None:
            return self.load()
        name, shape = value
        placed, lines, pointer, mask, buffer, where, counted = self.place(shape)
        if placed != shape:
            return self.fresh()
        tail = f", {mask}" if mask else ""
        lines.append(f"tt.store {pointer}, {name}{tail} : {kind(shape, '!tt.ptr<i32>')}")

        def run(env, memory):
            active = counted(env)
            memory[buffer][where[active]] = env[name][active]

        return lines, run

    def binary(self):
        left = self.pick()
        right = self.pick(left[1])
        op = self.random.choice(list(_BINARY))
        shape = left[1]

        def run(env, _):
            with np.errstate(all="ignore"):
                return _BINARY[op](env[left[0]], env[right[0]])

        return self.make(shape, [f"$ = arith.{op} {left[0]}, {right[0]} : {kind(shape)}"], run)

    def divide(self):
        """Division: an op dear enough to be kept in memory."""
        name, shape = self.pick()
        number, op = self.random.choice([3, 7, 16]), self.random.choice(["divsi", "remsi"])
        edge = self.name()
        lines = [f"{edge} = arith.constant dense<{number}> : {kind(shape)}"]
        lines.append(f"$ = arith.{op} {name}, {edge} : {kind(shape)}")

        def run(env, _):
            x = env[name].astype(np.int64)
            quotient = np.sign(x) * (np.abs(x) // number)
            return (quotient if op == "divsi" else x - quotient * number).astype(np.int32)

        return self.make(shape, lines, run)

    def gather(self):
        name, shape = self.pick()
        axis = self.random.randrange(len(shape))
        other = self.pick(shape)
        edge, inside = self.name(), self.name()
        lines = [
            f"{edge} = arith.constant dense<{shape[axis] - 1}> : {kind(shape)}",
            f"{inside} = arith.andi {other[0]}, {edge} : {kind(shape)}",
            f"$ = tt.gather {name}[{inside}] {{axis = {axis} : i32}} : ({kind(shape)}, {kind(shape)}) -> {kind(shape)}",
        ]
        return self.make(shape, lines, lambda e, m: np.take_along_axis(e[name], e[other[0]] & (shape[axis] - 1), axis))

    def small(self, lines, name, shape, most):
        """A block of numbers 0..most as floats: products of such are exact."""
        edge, cut, real = self.name(), self.name(), self.name()
        lines.append(f"{edge} = arith.constant dense<{most}> : {kind(shape)}")
        lines.append(f"{cut} = arith.andi {name}, {edge} : {kind(shape)}")
        lines.append(f"{real} = arith.sitofp {cut} : {kind(shape)} to {kind(shape, 'f32')}")
        return real

    def product(self):
        """A loop of matrix products that adds up, as integers at its end."""
        name, shape = self.pick()
        if len(shape) != 2:
            return self.move()
        other = self.random.choice([v for v in self.values if v[1] is not None and len(v[1]) == 2])
        m, k = shape
        # The second operand is the other block, reshaped or cut to k rows.
        n = max(1, int(np.prod(other[1])) // k)
        if int(np.prod(other[1])) != k * n or n > 64:
            return self.move()
        lines = []
        left, right = self.small(lines, name, shape, 7), self.name()
        lines.append(f"{right} = tt.reshape {other[0]} : {kind(other[1])} -> {kind((k, n))}")
        right = self.small(lines, right, (k, n), 7)
        zero, low, high, one, i, acc, result, total = (self.name() for _ in range(8))
        form, turns = self.random.choice(["plain", "scaled", "read"]), self.random.choice([0, 1, 3])
        f = kind((m, n), "f32")
        lines += [
            f"{zero} = arith.constant dense<1.000000e+00> : {f}",
            f"{low} = arith.constant 0 : i32",
            f"{high} = arith.constant {turns} : i32",
            f"{one} = arith.constant 1 : i32",
            f"{result} = scf.for {i} = {low} to {high} step {one} iter_args({acc} = {zero}) -> ({f})  : i32 {{",
        ]
        into = acc
        if form == "scaled":
            into = self.name()
            lines.append(f"{into} = arith.addf {acc}, {zero} : {f}")
        operands = f"{kind((m, k), 'f32')} * {kind((k, n), 'f32')}"
        lines.append(f"{total} = tt.dot {left}, {right}, {into}, inputPrecision = ieee : {operands} -> {f}")
        ends = total
        if form == "read":
            ends = self.name()
            lines.append(f"{ends} = arith.maxnumf {total}, {acc} : {f}")
        lines += [f"scf.yield {ends} : {f}", "}", f"$ = arith.fptosi {result} : {f} to {kind((m, n))}"]

        def run(env, _):
            a, b = (env[name] & 7).astype(np.int64), (env[other[0]].reshape(k, n) & 7).astype(np.int64)
            sums = np.ones((m, n), np.int64)
            for _turn in range(turns):
                sums = sums + (form == "scaled") + a @ b
            return sums.astype(np.int32)

        return self.make((m, n), lines, run)

    def walk(self):
        """A loop that carries a pointer block and a block of integers, each moved by a scalar."""
        n = self.random.choice(_SIZES)
        step, turns, buffer = (
            self.random.choice([1, n, 2 * n]),
            self.random.choice([0, 2, 3]),
            self.random.randrange(BUFFERS),
        )
        r, block, p, low, high, one, by, i, pp, q, v, w, result, added, zero, more, sums = (
            self.name() for _ in range(17)
        )
        t, pt = kind((n,)), kind((n,), "!tt.ptr<i32>")
        carried = f"iter_args({pp} = {p}, {q} = {r}, {w} = {zero}) -> ({pt}, {t}, {t})"
        lines = [
            f"{r} = tt.make_range {{end = {n} : i32, start = 0 : i32}} : {t}",
            f"{block} = tt.splat %b{buffer} : !tt.ptr<i32> -> {pt}",
            f"{p} = tt.addptr {block}, {r} : {pt}, {t}",
            f"{low} = arith.constant 0 : i32",
            f"{high} = arith.constant {turns} : i32",
            f"{one} = arith.constant 1 : i32",
            f"{by} = arith.constant dense<{step}> : {t}",
            f"{zero} = arith.constant dense<0> : {t}",
            f"{result}:3 = scf.for {i} = {low} to {high} step {one} {carried}  : i32 {{",
            f"{v} = tt.load {pp} : {pt}",
            f"{sums} = arith.muli {v}, {q} : {t}",
            f"{more} = arith.addi {w}, {sums} : {t}",
            f"{added} = tt.addptr {pp}, {by} : {pt}, {t}",
        ]
        moved = self.name()
        lines += [
            f"{moved} = arith.addi {q}, {by} : {t}",
            f"scf.yield {added}, {moved}, {more} : {pt}, {t}, {t}",
            "}",
            f"$ = arith.addi {result}#1, {result}#2 : {t}",
        ]

        def run(_, memory):
            total, at = np.zeros(n, np.int64), np.arange(n)
            for _turn in range(turns):
                total += memory[buffer][at].astype(np.int64) * at
                at = at + step
            return (total + at).astype(np.int32)

        return self.make((n,), lines, run)

    def select(self):
        left = self.pick()
        shape = left[1]
        right, a, c = self.pick(shape), self.pick(shape), self.pick(shape)
        predicate = self.random.choice(list(_COMPARE))
        test = self.name()
        lines = [
            f"{test} = arith.cmpi {predicate}, {left[0]}, {right[0]} : {kind(shape)}",
            f"$ = arith.select {test}, {a[0]}, {c[0]} : {kind(shape, 'i1')}, {kind(shape)}",
        ]
        return self.make(
            shape, lines, lambda e, m: np.where(_COMPARE[predicate](e[left[0]], e[right[0]]), e[a[0]], e[c[0]])
        )

    def move(self):
        name, shape = self.pick()
        ways = ["reshape"]
        if len(shape) == 1:
            ways += ["rows", "columns"]
        if len(shape) == 2:
            ways += ["trans", "trans"]
        way = self.random.choice(ways)
        if way == "trans":
            new = shape[::-1]
            line = f"$ = tt.trans {name} {{order = array<i32: 1, 0>}} : {kind(shape)} -> {kind(new)}"
            return self.make(new, [line], lambda e, m: e[name].T)
        if way == "reshape":
            size = int(np.prod(shape))
            inner = self.random.choice([n for n in [*_SIZES, size] if size % n == 0])
            new = (size,) if len(shape) == 2 and self.random.random() < 0.5 else (size // inner, inner)
            line = f"$ = tt.reshape {name} : {kind(shape)} -> {kind(new)}"
            return self.make(new, [line], lambda e, m: e[name].reshape(new))
        count = self.random.choice([1, 4, 16])
        axis = 0 if way == "rows" else 1
        thin = (1, *shape) if axis == 0 else (*shape, 1)
        new = (count, *shape) if axis == 0 else (*shape, count)
        between = self.name()
        lines = [f"{between} = tt.expand_dims {name} {{axis = {axis} : i32}} : {kind(shape)} -> {kind(thin)}"]
        lines.append(f"$ = tt.broadcast {between} : {kind(thin)} -> {kind(new)}")
        return self.make(new, lines, lambda e, m: np.broadcast_to(np.expand_dims(e[name], axis), new))

    def combining(self, op, name, shape, axis, result, extra="", verb="reduce"):
        a, c, r = self.name(), self.name(), self.name()
        return [
            f'$ = "tt.{verb}"({name}) <{{axis = {axis} : i32{extra}}}> ({{',
            f"^bb0({a}: i32, {c}: i32):",
            f"{r} = arith.{op} {a}, {c} : i32",
            f"tt.{verb}.return {r} : i32",
            f"}}) : ({kind(shape)}) -> {result}",
        ]

    def reduce(self):
        name, shape = self.pick()
        axis = self.random.randrange(len(shape))
        op = self.random.choice(list(_REDUCE))
        new = shape[:axis] + shape[axis + 1 :]

        def run(env, _):
            with np.errstate(all="ignore"):
                return _REDUCE[op].reduce(env[name], axis=axis, dtype=np.int32)

        if new:
            return self.make(new, self.combining(op, name, shape, axis, kind(new)), run)
        scalar, size = self.name(), self.random.choice(_SIZES)
        lines = [line.replace("$", scalar) for line in self.combining(op, name, shape, axis, "i32")]
        lines.append(f"$ = tt.splat {scalar} : i32 -> {kind((size,))}")
        return self.make((size,), lines, lambda e, m: np.full(size, run(e, m), np.int32))

    def scan(self):
        name, shape = self.pick()
        axis = self.random.randrange(len(shape))
        op = self.random.choice(["addi", "maxsi", "xori"])
        back = self.random.random() < 0.3

        def run(env, _):
            x = np.flip(env[name], axis) if back else env[name]
            y = _REDUCE[op].accumulate(x, axis=axis, dtype=np.int32)
            return np.flip(y, axis) if back else y

        extra = f", reverse = {'true' if back else 'false'}"
        return self.make(shape, self.combining(op, name, shape, axis, kind(shape), extra, "scan"), run)

    def inside(self, depth, count):
        """Statements of a region, whose values end with it."""
        values = list(self.values)
        steps = [self.statement(depth + 1) for _ in range(count)]
        made = [v for v in self.values if v not in values]
        self.values = values
        return steps, made

    def loop(self, depth):
        carried = [v for v in (self.pick() for _ in range(self.random.randint(0, 3))) if v is not None]
        turns = self.random.choice([0, 1, 2, 3])
        low, high, step, counter, result = (self.name() for _ in range(5))
        arguments = [self.name() for _ in carried]
        outer = list(self.values)
        self.values = outer + [(a, v[1]) for a, v in zip(arguments, carried, strict=True)]
        steps = [self.statement(depth + 1) for _ in range(self.random.randint(1, 5))]
        yielded = []
        for value in carried:
            choices = [v for v in self.values if v[1] == value[1]]
            yielded.append(self.random.choice(choices[-8:])[0])
        self.values = outer
        lines = [
            f"{low} = arith.constant 0 : i32",
            f"{high} = arith.constant {turns} : i32",
            f"{step} = arith.constant 1 : i32",
        ]
        head = f"scf.for {counter} = {low} to {high} step {step}"
        if carried:
            pairs = ", ".join(f"{a} = {v[0]}" for a, v in zip(arguments, carried, strict=True))
            types = ", ".join(kind(v[1]) for v in carried)
            count = f":{len(carried)}" if len(carried) > 1 else ""
            head = f"{result}{count} = {head} iter_args({pairs}) -> ({types})"
        lines.append(f"{head}  : i32 {{")
        lines += [line for s in steps for line in s[0]]
        if carried:
            lines.append(f"scf.yield {', '.join(yielded)} : {', '.join(kind(v[1]) for v in carried)}")
        lines.append("}")
        names = [result] if len(carried) == 1 else [f"{result}#{k}" for k in range(len(carried))]
        self.values += [(name, v[1]) for name, v in zip(names, carried, strict=True)]

        def run(env, memory):
            state = [env[v[0]] for v in carried]
            for _ in range(turns):
                local = dict(env)
                local.update(zip(arguments, state, strict=True))
                for _, do in steps:
                    do(local, memory)
                state = [local[name] for name in yielded]
            env.update(zip(names, state, strict=True))

        return lines, run

    def branch(self, depth):
        value = self.pick()
        limit = self.random.choice([0, 3, 9])
        edge, test, result = self.name(), self.name(), self.name()
        yes, made = self.inside(depth, self.random.randint(1, 4))
        lines = [f"{edge} = arith.constant {limit} : i32", f"{test} = arith.cmpi sgt, %n, {edge} : i32"]
        then = [line for s in yes for line in s[0]]
        if value is None:

            def run(env, memory):
                local = dict(env)
                if env["%n"] > limit:
                    for _, do in yes:
                        do(local, memory)

            return [*lines, f"scf.if {test} {{", *then, "}"], run
        shape = value[1]
        first = self.random.choice([v for v in [*made, value] if v[1] == shape])[0]
        no, made = self.inside(depth, self.random.randint(0, 3))
        second = self.random.choice([v for v in [*made, value] if v[1] == shape])[0]
        lines += [
            f"{result} = scf.if {test} -> ({kind(shape)}) {{",
            *then,
            f"scf.yield {first} : {kind(shape)}",
            "} else {",
        ]
        lines += [line for s in no for line in s[0]]
        lines += [f"scf.yield {second} : {kind(shape)}", "}"]
        self.values.append((result, shape))

        def run(env, memory):
            local = dict(env)
            chosen, name = (yes, first) if env["%n"] > limit else (no, second)
            for _, do in chosen:
                do(local, memory)
            env[result] = local[name]

        return lines, run


def drawn(seed, length):
    """(TTIR text, run(n, buffers) that changes the buffers as the kernel does)."""
    writer = Writer(seed)
    steps = writer.program(length)
    arguments = ", ".join(f"%b{k}: !tt.ptr<i32>" for k in range(BUFFERS))
    lines = [line for s in steps for line in s[0]]
    body = "\n".join(f"    {line}" for line in lines)
    head = f"  tt.func public @k({arguments}, %n: i32) attributes {{noinline = false}} {{"
    text = "\n".join(["module {", head, body, "    tt.return", "  }", "}", ""])

    def run(n, buffers):
        env = {"%n": np.int32(n)}
        for _, do in steps:
            do(env, buffers)

    return text, run
