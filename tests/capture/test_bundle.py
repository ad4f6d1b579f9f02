"""Bundles: what was saved runs elsewhere as it did here, and what is not what was saved is refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend import registry
from nbxtensor.capture import folder, writing
from nbxtensor.errors import ArgumentError, FormatError, PlanError, ShapeError, UnsupportedError
from nbxtensor.io import safetensors
from nbxtensor.memory.allocator import Allocator
from nbxtensor.run import Device

SPECS = {
    "table": nbx.Spec((11, 8), "float32"),
    "w": nbx.Spec((6, 8), "float32"),
    "v": nbx.Spec((3, 8), "float32"),
    "b": nbx.Spec((9,), "float32"),
}
INPUTS = (nbx.Spec((5, 8), "float32"), nbx.Spec((5,), "int64"))


def model(weights, x, ids):
    rows = nbx.embedding(weights["table"], ids)
    both = nbx.concat([weights["w"], weights["v"]], axis=0)  # folded at load
    y = nbx.linear(x + rows, both, weights["b"])
    kept = y * nbx.asarray(np.arange(9, dtype=np.float32))  # a constant
    return nbx.softmax(kept, axis=-1), nbx.sum(y * y, axis=0)


def drawn(seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((5, 8)).astype(np.float32), rng.integers(0, 11, 5)


@pytest.fixture(scope="module")
def values():
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(spec.shape).astype(np.float32) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def program(values):
    return nbx.plan(nbx.trace(model, *INPUTS, weights=SPECS)).load(values)


@pytest.fixture(scope="module")
def saved(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "model"
    program.save(path)
    return path


@pytest.fixture
def bundle(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def run(program, seed=0):
    return [t.numpy().tobytes() for t in program(*drawn(seed))]


def write_safetensors(path, values):
    header, data = {}, b""
    for name, given in values.items():
        code = "F32" if isinstance(given, np.ndarray) else "BF16"
        value = given if isinstance(given, np.ndarray) else given.numpy()
        header[name] = {
            "dtype": code,
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + value.nbytes],
        }
        data += value.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return safetensors.open_file(path)


def rewritten(bundle, change):
    """The manifest changed, its own checksum right."""
    path = bundle / "bundle.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    manifest["sha256"] = folder.digest(manifest["content"])
    path.write_text(json.dumps(manifest))


def test_a_program_from_a_bundle_returns_the_same_bytes(program, saved):
    loaded = nbx.load_program(saved)
    for seed in range(3):
        assert run(loaded, seed) == run(program, seed)
    recording = loaded.capture()
    assert recording.verified
    assert run(recording, 1) == run(program, 1)
    assert loaded.inputs == program.inputs
    assert nbx.save_plan(loaded.plan) == nbx.save_plan(program.plan)
    assert [x.nanoseconds for x in loaded.launches] == [x.nanoseconds for x in program.launches]
    assert loaded.nodes == program.nodes
    assert [list(x) for x in loaded.dependencies()] == [list(x) for x in program.dependencies()]


WITHOUT = """
import sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "llvmlite", "torch", "scipy", "rich", "hypothesis", "nbxtensor.ops"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuses())
import hashlib
import numpy as np
import nbxtensor as nbx
program = nbx.load_program(sys.argv[1])
with np.load(sys.argv[2]) as given:
    out = program(given["x"], given["ids"])
for name in ("nbxtensor.planning.plan", "nbxtensor.ops.matmul", "importlib.metadata", "concurrent.futures"):
    assert name not in sys.modules, name
print(hashlib.sha256(b"".join(t.numpy().tobytes() for t in out)).hexdigest())
assert program.capture().verified
"""


def test_a_process_without_triton_runs_it(program, saved, tmp_path):
    x, ids = drawn(4)
    np.savez(tmp_path / "given.npz", x=x, ids=ids)
    environment = {**os.environ, "NBX_CACHE_DIR": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(saved), str(tmp_path / "given.npz")],
        env=environment, cwd=tmp_path, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == hashlib.sha256(b"".join(run(program, 4))).hexdigest()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_changed_byte_in_any_file_is_found(bundle, place):
    for path in sorted(bundle.iterdir()):
        before = path.read_bytes()
        at = int(place * (len(before) - 1))
        path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        with pytest.raises(FormatError, match=path.name):
            nbx.load_program(bundle)
        path.write_bytes(before)
    assert nbx.load_program(bundle)


def test_a_file_that_is_missing_or_cut_is_named(bundle):
    for path in sorted(bundle.iterdir()):
        before = path.read_bytes()
        path.write_bytes(before[:-1])
        with pytest.raises(FormatError, match=path.name):
            nbx.load_program(bundle)
        path.unlink()
        with pytest.raises(FormatError, match=path.name):
            nbx.load_program(bundle)
        path.write_bytes(before)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\udcff", "[" * 100_000])
def test_a_manifest_that_is_none_is_refused(bundle, text):
    (bundle / "bundle.json").write_text(text, errors="surrogateescape")
    with pytest.raises(FormatError, match=r"bundle\.json: the manifest"):
        nbx.load_program(bundle)


def test_another_version_is_refused(bundle):
    path = bundle / "bundle.json"
    for field, value in (("version", 99), ("library", "0.0.0"), ("format", "zip")):
        manifest = json.loads(path.read_text())
        before, manifest[field] = manifest[field], value
        path.write_text(json.dumps(manifest))
        with pytest.raises(FormatError, match=field):
            nbx.load_program(bundle)
        path.write_text(json.dumps(manifest | {field: before}))


def test_another_device_is_refused(bundle):
    with pytest.raises(UnsupportedError, match=r"Got null.*It is for cpu"):
        nbx.load_program(bundle, device="null")

    def other(manifest):
        manifest["content"]["targets"][0]["features"] = ["amx-of-2090"]

    rewritten(bundle, other)
    with pytest.raises(UnsupportedError, match="amx-of-2090"):
        nbx.load_program(bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["files"].update({"../escape": c["files"].pop("weights.bin")}),
        lambda c: c["fills"][0].update(at=1 << 40),
        lambda c: c["blocks"].clear(),
        lambda c: c.pop("targets"),
        lambda c: c.pop("files"),
        lambda c: c["files"].update(more=3),
        lambda c: c["programs"].append("another"),
        lambda c: c["files"].pop("weights.bin"),
        lambda c: c["fills"][0].update(block="zero"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(bundle, change):
    rewritten(bundle, lambda manifest: change(manifest["content"]))
    with pytest.raises(FormatError):
        nbx.load_program(bundle)


@pytest.mark.parametrize("change", [{"content": None}, {"content": [1]}, {"content": {"files": ["weights.bin"]}}])
def test_a_manifest_without_a_mapping_of_files_is_refused(bundle, change):
    rewritten(bundle, lambda manifest: manifest.update(change))
    with pytest.raises(FormatError, match="mapping of its files"):
        nbx.load_program(bundle)


def test_threads_load_and_run_one_bundle_at_once(program, saved):
    wanted, found = [run(program, seed) for seed in range(4)], {}

    def work(seed):
        found[seed] = run(nbx.load_program(saved), seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == wanted


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_child_process_runs_it(program, saved):
    loaded, wanted = nbx.load_program(saved), run(program, 2)
    assert run(loaded, 2) == wanted
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if run(loaded, 2) == wanted == run(nbx.load_program(saved), 2) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_weights_are_mapped_and_cannot_be_written(saved):
    loaded = nbx.load_program(saved)
    weights = next(p.storage for p in loaded.places if p is not None and p.storage.readonly)
    assert weights.allocator is None
    assert set(loaded.areas) == {"arena"}


W = {"w": nbx.Spec((3, 4), "float32"), "h": nbx.Spec((3, 4), "bfloat16"), "none": nbx.Spec((0, 4), "float32")}
FUNCTIONS = {
    "an input": lambda weights, x: x,
    "a weight": lambda weights, x: (weights["w"], weights["w"].T),
    "a folded weight": lambda weights, x: nbx.exp(weights["w"]).T + x,
    "nothing to launch": lambda weights, x: nbx.concat([weights["none"], weights["none"]], axis=0),
    "a view of the input": lambda weights, x: (x.T, x[1:, 2:]),
    "a half": lambda weights, x: (weights["h"] * 2, x.astype("bfloat16") + weights["h"].T),
    "a constant": lambda weights, x: x + nbx.asarray(np.full((4, 3), 0.5, np.float32)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("reference", [False, True])
def test_what_a_program_may_return(tmp_path, name, reference):
    rng = np.random.default_rng(3)
    values = {name: rng.standard_normal(spec.shape).astype(np.float32) for name, spec in W.items()}
    bits = (values["h"].view(np.uint32) >> 16).astype(np.uint16)
    given = {"w": values["w"], "h": nbx.from_numpy_array(bits, "bfloat16"), "none": values["none"]}
    program = nbx.plan(nbx.trace(FUNCTIONS[name], nbx.Spec((4, 3), "float32"), weights=W)).load(given)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    files = [write_safetensors(tmp_path / "w", given)] if reference else []
    program.save(tmp_path / "bundle", weights=files)
    loaded = nbx.load_program(tmp_path / "bundle")
    mine, theirs = (p(x) if isinstance(p(x), tuple) else (p(x),) for p in (program, loaded))
    for a, b in zip(mine, theirs, strict=True):
        assert (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_one_of_two_savers_to_a_folder_wins(program, tmp_path):
    """Each writes a folder of its own; the second to finish finds the first's there and leaves it."""
    with writing.BundleWriter(tmp_path / "bundle") as slow:
        program.save(tmp_path / "bundle")
        with pytest.raises(ArgumentError, match="not there yet"):
            slow.finish({})
    assert run(nbx.load_program(tmp_path / "bundle")) == run(program)
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


# ---- weights by reference


def test_weights_may_be_referred_to(program, values, tmp_path):
    file = write_safetensors(tmp_path / "w.safetensors", values | {"more": np.zeros(3, np.float32)})
    program.save(tmp_path / "small", weights=[file])
    assert (tmp_path / "small" / "weights.bin").stat().st_size < 1 << 17  # the constant alone
    assert run(nbx.load_program(tmp_path / "small"), 3) == run(program, 3)
    moved = (tmp_path / "w.safetensors").rename(tmp_path / "moved.safetensors")
    with pytest.raises(FormatError, match=r"w\.safetensors"):
        nbx.load_program(tmp_path / "small")
    assert run(nbx.load_program(tmp_path / "small", weights=[moved]), 3) == run(program, 3)
    with pytest.raises(ArgumentError, match="Got 2 for 1"):
        nbx.load_program(tmp_path / "small", weights=[moved, moved])
    for odd in (str(moved), moved, 3, [3], None):
        with pytest.raises(ArgumentError, match="a sequence of paths"):
            nbx.load_program(tmp_path / "small", weights=odd)
    data = bytearray(moved.read_bytes())
    data[-1] ^= 1
    moved.write_bytes(data)
    with pytest.raises(FormatError, match=r"moved\.safetensors"):
        nbx.load_program(tmp_path / "small", weights=[moved])


def test_files_that_do_not_have_the_weights_are_refused(program, values, tmp_path):
    other = {name: value for name, value in values.items() if name != "table"}
    wrong = {
        "none": (other, ArgumentError, "table"),
        "shape": ({**other, "table": np.zeros((11, 7), np.float32)}, ShapeError, "table"),
        "value": ({**values, "b": values["b"] + 1}, ArgumentError, "Weight b"),
    }
    for name, (given, error, words) in wrong.items():
        file = write_safetensors(tmp_path / name, given)
        with pytest.raises(error, match=words):
            program.save(tmp_path / "bundle", weights=[file])
    with pytest.raises(ArgumentError, match="open_file"):
        program.save(tmp_path / "bundle", weights=[str(tmp_path / "value")])
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(wrong)


def test_what_is_folded_from_other_values_is_kept_as_it_is(program, values, tmp_path):
    """The file has another part of what was folded: the folded bytes themselves are written down."""
    file = write_safetensors(tmp_path / "w", {**values, "v": values["v"] + 1})
    program.save(tmp_path / "bundle", weights=[file])
    assert run(nbx.load_program(tmp_path / "bundle"), 3) == run(program, 3)


# ---- state, several programs

STATE = {"cache": nbx.Spec((8, 8), "float32"), "position": nbx.Spec((), "int32")}


def step(weights, state, x):
    y = nbx.linear(x, weights["w"])
    cache = nbx.cache_update(state["cache"], y, state["position"], axis=0)
    return nbx.sum(cache, axis=0), {"cache": cache, "position": state["position"] + x.shape[0]}


def made_pair(device=None):
    w = {"w": np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)}
    spec = {"w": nbx.Spec((8, 8), "float32")}
    graphs = [nbx.trace(step, nbx.Spec((n, 8), "float32"), weights=spec, state=STATE) for n in (4, 1)]
    plans = [nbx.plan(graph, device=device or "cpu") for graph in graphs]
    prefill = plans[0].load(w)
    return {"prefill": prefill, "decode": plans[1].load(share=prefill)}


@pytest.fixture(scope="module")
def pair():
    return made_pair()


def talk(programs):
    rng = np.random.default_rng(2)
    out = [programs["prefill"](rng.standard_normal((4, 8)).astype(np.float32)).numpy().tobytes()]
    out += [programs["decode"](rng.standard_normal((1, 8)).astype(np.float32)).numpy().tobytes() for _ in range(3)]
    return [*out, *(programs["decode"].state[name].numpy().tobytes() for name in STATE)]


def test_programs_that_share_are_saved_together(pair, tmp_path):
    pair["prefill"].state.reset()
    wanted = talk(pair)
    nbx.save_programs(tmp_path / "pair", pair)  # the state is not saved: it begins as zeros
    loaded = nbx.load_programs(tmp_path / "pair")
    assert list(loaded) == ["prefill", "decode"]
    assert loaded["prefill"].turn is loaded["decode"].turn
    assert not loaded["prefill"].state["cache"].numpy().any()
    assert talk(loaded) == wanted
    with pytest.raises(ArgumentError, match="It has prefill, decode"):
        nbx.load_program(tmp_path / "pair")
    alone = nbx.load_program(tmp_path / "pair", "prefill")
    assert talk({"prefill": alone, "decode": loaded["decode"]}) != wanted
    data = len((tmp_path / "pair" / "weights.bin").read_bytes())
    assert data == 1 << 16  # once


def test_a_program_that_shares_is_saved_alone(pair, tmp_path):
    pair["decode"].save(tmp_path / "decode")
    loaded = nbx.load_program(tmp_path / "decode")
    x = np.ones((1, 8), np.float32)
    pair["decode"].state.reset()
    assert loaded(x).numpy().tobytes() == pair["decode"](x).numpy().tobytes()


def test_what_is_saved_can_be_shared_again(pair, tmp_path):
    nbx.save_programs(tmp_path / "pair", pair)
    prefill = nbx.load_programs(tmp_path / "pair")["prefill"]
    decode = pair["decode"].plan.load(share=prefill)
    pair["prefill"].state.reset()
    assert talk({"prefill": prefill, "decode": decode}) == talk(pair)


class Pieces:
    """The host's memory, dealt out as neighbouring pieces of one array."""

    def __init__(self, memory):
        self.memory, self.array, self.used = memory, np.zeros(1 << 20, np.uint8), 0

    def __getattr__(self, name):
        return getattr(self.memory, name)

    def allocate(self, nbytes, alignment=64):
        start = -(-self.array.ctypes.data // 64) * 64 + self.used
        self.used += -(-nbytes // 64) * 64
        return start

    def free(self, address):
        pass


def test_blocks_that_touch_are_told_apart(tmp_path):
    """Where one block ends another may begin, as on a device whose driver deals out pieces of a page."""
    device = Device(registry.backend("cpu"), 0)
    device.allocator = Allocator("pieces", Pieces(device.backend.memory(0)))
    pair = made_pair(device)
    areas = [storage for program in pair.values() for storage in program.areas.values()]
    assert {s.address + s.nbytes for s in areas} & {s.address for s in areas}
    nbx.save_programs(tmp_path / "pair", pair)
    assert talk(nbx.load_programs(tmp_path / "pair")) == talk(pair)


# ---- what is refused at saving, and leaves nothing


def test_programs_have_names_of_files(program, tmp_path):
    for name in ("", ".hidden", "a/b", "a\0", 1):
        with pytest.raises(ArgumentError, match="name is part of a file's name"):
            nbx.save_programs(tmp_path / "bundle", {name: program})
    with pytest.raises(ArgumentError, match="a mapping from names"):
        nbx.save_programs(tmp_path / "bundle", [program])
    with pytest.raises(ArgumentError, match="targets are a sequence"):
        program.save(tmp_path / "bundle", targets="x86-64-v3")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_has_something_in_it_is_refused(program, tmp_path):
    (tmp_path / "there").mkdir()
    program.save(tmp_path / "there")  # empty
    with pytest.raises(ArgumentError, match="there"):
        program.save(tmp_path / "there")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArgumentError, match="file"):
        program.save(tmp_path / "file")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "there"]


@pytest.mark.parametrize("count", range(5))
def test_a_failure_leaves_nothing(program, tmp_path, monkeypatch, count):
    add, calls = writing.BundleWriter.add, []

    def failing(self, name, pieces):
        calls.append(name)
        if len(calls) > count:
            raise OSError(28, "No space left on device")
        return add(self, name, pieces)

    monkeypatch.setattr(writing.BundleWriter, "add", failing)
    try:
        program.save(tmp_path / "bundle")
    except OSError:
        assert list(tmp_path.iterdir()) == []
    else:
        assert len(calls) <= count


def test_what_cannot_be_saved_is_named(program, saved, tmp_path):
    loaded = nbx.load_program(saved)
    with pytest.raises(PlanError, match="saved already"):
        loaded.save(tmp_path / "again")
    with pytest.raises(PlanError, match="saved already"):
        nbx.save_programs(tmp_path / "again", {"one": loaded})
    with pytest.raises(ArgumentError, match=r"'\.\./x'"):
        nbx.save_programs(tmp_path / "again", {"../x": program})
    with pytest.raises(PlanError, match="no program"):
        nbx.save_programs(tmp_path / "again", {})
    with pytest.raises(ArgumentError, match="Got dict"):
        nbx.save_programs(tmp_path / "again", {"x": {}})
    assert list(tmp_path.iterdir()) == []


# ---- further targets


def test_further_targets_are_compiled(program, tmp_path):
    level = registry.backend("cpu").target().arch
    if level != "x86-64-v4":
        pytest.skip(f"a processor of x86-64-v4 is needed: this one is {level}")
    program.save(tmp_path / "bundle", targets=["x86-64-v3"])
    manifest = json.loads((tmp_path / "bundle" / "bundle.json").read_text())["content"]
    assert [t["arch"] for t in manifest["targets"]] == ["x86-64-v4", "x86-64-v3"]

    def only_the_second(manifest):
        del manifest["content"]["targets"][0]

    rewritten(tmp_path / "bundle", only_the_second)
    for mine, theirs in zip(nbx.load_program(tmp_path / "bundle")(*drawn(1)), program(*drawn(1)), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "refusal", [{"needs": frozenset({"tiles"})}, {"accepts": lambda call: "tiles" in call.device.features}]
)
def test_a_target_that_a_kernel_does_not_serve_is_refused(program, tmp_path, monkeypatch, refusal):
    used = next(node.op for node in program.plan.graph.nodes if node.op.name == "linear")
    before = used.kernels
    object.__setattr__(used, "kernels", tuple(replace(kernel, **refusal) for kernel in before))
    try:
        with pytest.raises(UnsupportedError, match=r"linear: .* and x86-64-v3\. "):
            program.save(tmp_path / "bundle", targets=["x86-64-v3"])
    finally:
        object.__setattr__(used, "kernels", before)
    assert list(tmp_path.iterdir()) == []


def test_targets_of_another_backend_are_refused(program, tmp_path):
    from nbxtensor.op import Target

    with pytest.raises(ArgumentError, match="cuda"):
        program.save(tmp_path / "bundle", targets=[Target("cuda", "sm_90")])
    assert list(tmp_path.iterdir()) == []
