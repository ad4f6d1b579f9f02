"""A driver in Python: memory in host pages, streams that run when they are waited for, every argument checked.

Its functions are C callbacks of the types in CUDA's headers, written down here anew, so that what the backend passes
goes through the same marshalling as for the real library. What the headers forbid is noted in ``misuse`` and answered
by an error status.
"""

import ctypes as C
import itertools
import struct
import threading
import types

from tests.backend.cuda.fake_headers import (
    CONFIG,
    H200,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_VALUE,
    NO_DEVICE,
    NODE,
    NOT_FOUND,
    NOT_INITIALIZED,
    OK,
    OUT_OF_MEMORY,
    PROTOTYPES,
    TEXTS,
    Handle,
    Misuse,
    i,
    p,
)


class FakeLibrary:
    """The library.

    Attributes:
        exports: The driver's functions.
        kernels: By name: (format of each argument as `struct` spells it, function of grid and values, attributes).
        misuse: What was done that the headers forbid.
        edges: Whether each edge of the graph instantiated last starts its launch early.
        early: Whether each launch that is in no graph may start before the one before it is done.
        launched: (name, grid, block, shared memory, values) of every kernel that ran.
    """

    def __init__(self, *, devices=1, name="NVIDIA H200", attributes=H200, total=1 << 30, absent=()):
        self.devices, self.name, self.attributes, self.total, self.absent = devices, name, attributes, total, absent
        self.kernels, self.misuse, self.launched, self.failing = {}, [], [], {}
        self.edges, self.early = [], []
        self.version = 13000
        self.running = threading.RLock()
        self.default = [Handle("stream", device, flags=0, queue=[]) for device in range(devices)]
        self.host, self.reaches = {}, []
        self.initialised = False
        self.handles = {}
        self.numbers = itertools.count(0x5500_0000_0000, 16)
        self.blocks = [{} for _ in range(devices)]  # address -> bytearray
        self.next_address = 0x7F00_0000_0000
        self.thread = threading.local()
        self.clock = 0.0
        self.contexts = {}
        self.exports = types.SimpleNamespace(
            **{symbol: self._callback(symbol) for symbol in PROTOTYPES if symbol not in absent}
        )

    def _callback(self, symbol):
        body = getattr(type(self), symbol)

        def call(*arguments):
            try:
                if not self.initialised and symbol not in ("cuInit", "cuGetErrorName", "cuGetErrorString"):
                    raise Misuse(NOT_INITIALIZED, "before cuInit")
                if symbol in self.failing:
                    return self.failing[symbol]
                return body(self, *arguments) or OK
            except Misuse as error:
                if str(error):
                    self.misuse.append(f"{symbol}: {error}")
                return error.status

        return C.CFUNCTYPE(i, *PROTOTYPES[symbol])(call)

    # ---- what checks share

    def live(self, kind):
        return [h for h in self.handles.values() if h.kind == kind and h.alive]

    def make(self, out, kind, **fields):
        number = next(self.numbers)
        self.handles[number] = Handle(kind, self.current(), **fields)
        self.write(out, "P", number)
        return self.handles[number]

    def get(self, number, kind):
        handle = self.handles.get(number)
        if handle is None or handle.kind != kind or not handle.alive:
            raise Misuse(INVALID_HANDLE, f"{number} is no live {kind}")
        if handle.device != self.current():
            raise Misuse(INVALID_CONTEXT, f"a {kind} of device {handle.device} while {self.current()} is current")
        return handle

    def current(self):
        device = getattr(self.thread, "device", None)
        if device is None:
            raise Misuse(INVALID_CONTEXT, "no current context in this thread")
        return device

    def device(self, number):
        if not 0 <= number < self.devices:
            raise Misuse(101, f"no device {number}")
        return number

    def write(self, out, form, value):
        if not out:
            raise Misuse(INVALID_VALUE, "nowhere to write")
        C.memmove(out, struct.pack("@" + form, value), struct.calcsize("@" + form))

    def span(self, address, nbytes, device=None):
        """The bytes of a range, which lies in one block."""
        for start, block in self.blocks[self.current() if device is None else device].items():
            if start <= address and address + nbytes <= start + len(block):
                return memoryview(block)[address - start : address - start + nbytes]
        raise Misuse(INVALID_VALUE, f"{nbytes} bytes at {address:#x} are in no block")

    def enqueue(self, stream, work):
        found = self.get(stream, "stream")
        if found.flags != 1:
            raise Misuse(INVALID_VALUE, "a stream that waits for the legacy one")
        found.queue.append(work)

    def any_stream(self, number):
        """A stream of any device, or the default one of the current device."""
        if number == 1:
            return self.default[self.current()]
        found = self.handles.get(number)
        if found is None or found.kind != "stream" or not found.alive:
            raise Misuse(INVALID_HANDLE, f"{number} is no live stream")
        return found

    def drain(self, stream, until=None):
        """Run the work of a stream, up to a mark."""
        with self.running:
            while stream.queue and not (until and until["done"]):
                stream.queue.pop(0)()

    # ---- the functions

    def cuInit(self, flags):
        if flags:
            raise Misuse(INVALID_VALUE, "flags are 0")
        if not self.devices:
            raise Misuse(NO_DEVICE, "")
        self.initialised = True

    def cuGetErrorName(self, status, out, which=0):
        if status not in TEXTS:
            return INVALID_VALUE
        self.write(out, "P", C.addressof(TEXTS[status][which]))
        return OK

    def cuGetErrorString(self, status, out):
        return self.cuGetErrorName(status, out, 1)

    def cuDriverGetVersion(self, out):
        self.write(out, "i", self.version)

    def cuDeviceGetCount(self, out):
        self.write(out, "i", self.devices)

    def cuDeviceGet(self, out, index):
        self.write(out, "i", self.device(index))

    def cuDeviceGetName(self, out, length, device):
        self.device(device)
        text = self.name.encode()[: length - 1] + b"\0"
        C.memmove(out, text, len(text))

    def cuDeviceTotalMem_v2(self, out, device):
        self.device(device)
        self.write(out, "N", self.total)

    def cuDeviceGetAttribute(self, out, attribute, device):
        self.device(device)
        self.write(out, "i", self.attributes[attribute])

    def cuDevicePrimaryCtxRetain(self, out, device):
        number = self.contexts.setdefault(self.device(device), 0xC000 + device)
        self.write(out, "P", number)

    def cuCtxSetCurrent(self, context):
        if context not in self.contexts.values():
            raise Misuse(INVALID_CONTEXT, f"{context} is no context")
        self.thread.device = context - 0xC000

    def cuMemAlloc_v2(self, out, nbytes):
        blocks = self.blocks[self.current()]
        if not nbytes:
            raise Misuse(INVALID_VALUE, "a block of 0 bytes")
        if nbytes > self.total - sum(map(len, blocks.values())):
            raise Misuse(OUT_OF_MEMORY, "")
        address = self.next_address
        self.next_address += -(-nbytes // 512) * 512 + 512
        blocks[address] = bytearray(b"\xcd" * nbytes)
        self.write(out, "Q", address)

    def cuMemFree_v2(self, address):
        if address not in self.blocks[self.current()]:
            raise Misuse(INVALID_VALUE, f"{address:#x} is no block")
        if any(stream.queue for stream in self.live("stream") if stream.device == self.current()):
            self.misuse.append("cuMemFree_v2: while work is under way that may use it")
        del self.blocks[self.current()][address]

    def cuMemGetInfo_v2(self, free, total):
        self.write(free, "N", self.total - sum(map(len, self.blocks[self.current()].values())))
        self.write(total, "N", self.total)

    def cuMemHostAlloc(self, out, nbytes, flags):
        block = C.create_string_buffer(b"\xcd" * nbytes, nbytes)
        self.host[C.addressof(block)] = block
        self.write(out, "P", C.addressof(block))

    def cuMemFreeHost(self, address):
        if self.host.pop(address, None) is None:
            raise Misuse(INVALID_VALUE, f"{address:#x} is no pinned block")

    def cuDeviceCanAccessPeer(self, out, device, other):
        self.write(out, "i", int(self.device(device) != self.device(other)))

    def cuCtxEnablePeerAccess(self, context, flags):
        pair = self.current(), context - 0xC000
        if flags or context not in self.contexts.values() or pair[0] == pair[1]:
            raise Misuse(INVALID_VALUE, f"{context} with flags {flags}")
        if pair in self.reaches:
            raise Misuse(704, "")
        self.reaches.append(pair)

    def cuMemcpyPeerAsync(self, target, target_context, source, source_context, nbytes, stream):
        to = self.span(target, nbytes, target_context - 0xC000)
        of = self.span(source, nbytes, source_context - 0xC000)
        self.enqueue(stream, lambda: to.__setitem__(slice(None), bytes(of)))

    def cuPointerGetAttribute(self, out, attribute, address):
        for number, blocks in enumerate(self.blocks):
            if attribute == 9 and any(a <= address < a + len(b) for a, b in blocks.items()):
                return self.write(out, "i", number)
        raise Misuse(INVALID_VALUE, "")

    def cuMemcpyHtoDAsync_v2(self, target, source, nbytes, stream):
        place = self.span(target, nbytes)
        self.enqueue(stream, lambda: C.memmove(C.addressof(C.c_char.from_buffer(place)), source, nbytes))

    def cuMemcpyDtoHAsync_v2(self, target, source, nbytes, stream):
        place = self.span(source, nbytes)
        self.enqueue(stream, lambda: C.memmove(target, C.addressof(C.c_char.from_buffer(place)), nbytes))

    def cuMemcpyDtoDAsync_v2(self, target, source, nbytes, stream):
        to, of = self.span(target, nbytes), self.span(source, nbytes)
        self.enqueue(stream, lambda: to.__setitem__(slice(None), bytes(of)))

    def cuMemsetD8Async(self, target, value, nbytes, stream):
        place = self.span(target, nbytes)
        self.enqueue(stream, lambda: place.__setitem__(slice(None), bytes([value]) * nbytes))

    def cuStreamCreate(self, out, flags):
        self.make(out, "stream", flags=flags, queue=[])

    def cuStreamSynchronize(self, stream):
        self.drain(self.get(stream, "stream"))

    def cuStreamQuery(self, stream):
        return 600 if self.get(stream, "stream").queue else OK

    def cuEventCreate(self, out, flags):
        self.make(out, "event", flags=flags, time=None, mark=None)

    def cuEventRecord(self, event, stream):
        found, on = self.get(event, "event"), self.any_stream(stream)
        if on.device != found.device:
            raise Misuse(INVALID_HANDLE, "an event and a stream of two devices")
        mark = found.mark = {"done": False, "stream": on}
        on.queue.append(lambda: mark.update(done=True))

    def cuEventSynchronize(self, event):
        mark = self.get(event, "event").mark
        if mark:
            self.drain(mark["stream"], mark)

    def cuStreamWaitEvent(self, stream, event, flags):
        found = self.handles.get(event)  # of any device
        if found is None or found.kind != "event" or not found.alive or flags:
            raise Misuse(INVALID_HANDLE, f"{event} is no live event")
        mark = found.mark
        if mark:
            self.any_stream(stream).queue.append(lambda: self.drain(mark["stream"], mark))

    def cuEventElapsedTime(self, out, start, end):
        first, last = self.get(start, "event"), self.get(end, "event")
        if first.time is None or last.time is None:
            raise Misuse(INVALID_HANDLE, "an event that was not recorded")
        self.write(out, "f", last.time - first.time)

    def cuEventDestroy_v2(self, event):
        self.get(event, "event").alive = False

    def cuModuleLoadData(self, out, image):
        if C.string_at(image, 5) != b"fake:":
            raise Misuse(INVALID_IMAGE, "")
        self.make(out, "module", name=C.string_at(image).decode().removeprefix("fake:"), pending=0)

    def cuModuleUnload(self, module):
        found = self.get(module, "module")
        if found.pending or any(found in graph.modules for graph in self.live("instance")):
            self.misuse.append(f"cuModuleUnload: {found.name} is in use")
        found.alive = False

    def cuModuleGetFunction(self, out, module, name):
        found = self.get(module, "module")
        if name.decode() != found.name:
            raise Misuse(NOT_FOUND, "")
        self.make(out, "function", module=found, name=found.name, dynamic=48 << 10)

    def _attributes(self, function):
        return {0: 1024, 1: 0, 3: 0, 4: 32} | self.kernels[function.name][2]

    def cuFuncGetAttribute(self, out, attribute, function):
        self.write(out, "i", self._attributes(self.get(function, "function"))[attribute])

    def cuFuncSetAttribute(self, function, attribute, value):
        found = self.get(function, "function")
        if attribute != 8 or value + self._attributes(found)[1] > self.attributes[97]:
            raise Misuse(INVALID_VALUE, f"attribute {attribute} as {value}")
        found.dynamic = value

    def _kernel(self, function, grid, block, shared, table, extra):
        found = self.get(function, "function")
        if not found.module.alive:
            raise Misuse(INVALID_HANDLE, f"{found.name} of a module that is gone")
        limits = [self.attributes[code] for code in (5, 6, 7)]
        if extra or not all(0 < n <= most for n, most in zip(grid, limits, strict=True)):
            raise Misuse(INVALID_VALUE, f"grid {grid}")
        if not 0 < block[0] * block[1] * block[2] <= self._attributes(found)[0] or shared > found.dynamic:
            raise Misuse(INVALID_VALUE, f"block {block} with {shared} bytes of shared memory")
        forms, body, _ = self.kernels[found.name]
        pointers = C.cast(table, C.POINTER(p))
        values = []
        for number, form in enumerate(forms):
            if pointers[number] % struct.calcsize("@" + form):
                raise Misuse(INVALID_VALUE, f"argument {number} is not aligned")
            values += struct.unpack("@" + form, C.string_at(pointers[number], struct.calcsize("@" + form)))
        found.module.pending += 1
        found.module.pending -= 1

        def run():
            if not found.module.alive:
                self.misuse.append(f"{found.name} runs after its module went")
            self.launched.append((found.name, grid, block, shared, tuple(values)))
            self.clock += 0.25
            body(grid, *values)

        return found, run

    def cuLaunchKernelEx(self, config, function, table, extra):
        gx, gy, gz, bx, by, bz, shared, stream, attributes, count = CONFIG.unpack(C.string_at(config, CONFIG.size))
        if count and C.string_at(attributes, 72) != struct.pack("IIi60x", 6, 0, 1):
            raise Misuse(INVALID_VALUE, "attributes of a launch")
        self.early.append(bool(count))
        wanted = getattr(self.handles.get(function), "device", None)
        if wanted is not None and getattr(self.thread, "device", None) != wanted:
            raise Misuse(INVALID_CONTEXT, "")  # an answer that callers may count on
        found, run = self._kernel(function, (gx, gy, gz), (bx, by, bz), shared, table, extra)
        found.module.pending += 1

        def done():
            run()
            found.module.pending -= 1

        self.enqueue(stream, done)

    def cuGraphCreate(self, out, flags):
        if flags:
            raise Misuse(INVALID_VALUE, "flags are 0")
        self.make(out, "graph", nodes=[], modules=[], edges=[])

    def cuGraphDestroy(self, graph):
        self.get(graph, "graph").alive = False

    def _append(self, out, graph, before, count, work, kind):
        found = self.get(graph, "graph")
        given = [C.cast(before, C.POINTER(p))[n] for n in range(count)]
        self.make(out, "node", graph=found, what=kind, before=set())
        found.nodes.append((next(reversed(self.handles)), work))
        for node in given:
            self._connect(found, node, found.nodes[-1][0], early=False)

    def _connect(self, graph, first, last, *, early):
        one, other = self.get(first, "node"), self.get(last, "node")
        if one.graph is not graph or other.graph is not graph or first in other.before or first == last:
            raise Misuse(INVALID_VALUE, f"an edge from {first} to {last}")
        if early and not one.what == other.what == "kernel":
            raise Misuse(INVALID_VALUE, "an early start of what is no kernel")
        other.before.add(first)
        graph.edges.append((first, last, early))

    def cuGraphAddDependencies_v2(self, graph, first, last, data, count):
        found = self.get(graph, "graph")
        for n in range(count):
            edge = C.string_at(data + 8 * n, 8)
            if edge not in (bytes(8), bytes((1, 0, 1, 0, 0, 0, 0, 0))):
                raise Misuse(INVALID_VALUE, f"edge data {edge}")
            ends = (C.cast(end, C.POINTER(p))[n] for end in (first, last))
            self._connect(found, *ends, early=bool(edge[0]))

    def cuGraphAddKernelNode(self, out, graph, before, count, parameters):
        function, *rest = NODE.unpack(C.string_at(parameters, NODE.size))
        gx, gy, gz, bx, by, bz, shared, table, extra = rest
        found, run = self._kernel(function, (gx, gy, gz), (bx, by, bz), shared, table, extra)
        self._append(out, graph, before, count, run, "kernel")
        self.get(graph, "graph").modules.append(found.module)

    def cuGraphAddEventRecordNode(self, out, graph, before, count, event):
        found = self.get(event, "event")
        self._append(out, graph, before, count, lambda: setattr(found, "time", self.clock), "event")

    def cuGraphInstantiateWithFlags(self, out, graph, flags):
        found = self.get(graph, "graph")
        if flags:
            raise Misuse(INVALID_VALUE, f"flags {flags}")
        self.edges = [edge[2] for edge in found.edges]
        self.make(out, "instance", nodes=self._sorted(found), modules=list(found.modules))

    def _sorted(self, graph):
        """The nodes in an order that the edges allow, as far from that of their making as it goes."""
        waiting, done = dict(graph.nodes), []
        while waiting:
            ready = [node for node in waiting if not self.handles[node].before & set(waiting)]
            if not ready:
                raise Misuse(INVALID_VALUE, "a cycle")
            done.append((ready[-1], waiting.pop(ready[-1])))
        return done

    def cuGraphExecKernelNodeSetParams(self, instance, node, parameters):
        found = self.get(instance, "instance")
        self.get(node, "node")
        function, *rest = NODE.unpack(C.string_at(parameters, NODE.size))
        gx, gy, gz, bx, by, bz, shared, table, extra = rest
        kernel, run = self._kernel(function, (gx, gy, gz), (bx, by, bz), shared, table, extra)
        place = [n for n, _ in found.nodes].index(node)
        if kernel.module not in found.modules:
            raise Misuse(INVALID_VALUE, "another function")
        found.nodes[place] = (node, run)

    def cuGraphExecDestroy(self, instance):
        self.get(instance, "instance").alive = False

    def cuGraphUpload(self, instance, stream):
        self.get(instance, "instance"), self.get(stream, "stream")

    def cuGraphLaunch(self, instance, stream):
        for _, work in self.get(instance, "instance").nodes:
            self.enqueue(stream, work)
