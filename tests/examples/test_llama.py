"""The Llama example against a forward pass in float64 written here, and its cache against no cache at all."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import nbxtensor as nbx
from nbxtensor.errors import PlanError

ROOT = Path(__file__).parent.parent.parent
CONTEXT, CHUNK = 32, 8
PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 23, 84]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture(scope="module")
def llama():
    spec = importlib.util.spec_from_file_location("llama", ROOT / "examples" / "llama.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama"] = module
    spec.loader.exec_module(module)
    return module


def drawn(config, llama, seed=0):
    """Weights large enough that tokens differ: all are standard normal over the root of what they sum."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, spec in llama.weight_specs(config).items():
        values = rng.standard_normal(spec.shape) / (1 if spec.ndim == 1 else np.sqrt(spec.shape[1]))
        found[name] = (values + (spec.ndim == 1)).astype(np.float32)
    return found


def frequencies(config):
    """Radians per position, from the published description of the scaling, one by one."""
    found = []
    for i in range(config.width // 2):
        f = config.theta ** (-2 * i / config.width)
        if config.scaling:
            s = config.scaling
            wavelength = 2 * np.pi / f
            low, high = s["original_context"] / s["low_freq_factor"], s["original_context"] / s["high_freq_factor"]
            if wavelength > low:
                f /= s["factor"]
            elif wavelength >= high:
                smooth = (s["original_context"] / wavelength - s["low_freq_factor"]) / (
                    s["high_freq_factor"] - s["low_freq_factor"]
                )
                f = (1 - smooth) * f / s["factor"] + smooth * f
        found.append(f)
    return np.array(found)


def forward(w, ids, config):
    """Return the logits of every token: no cache, no grouping, one head after the other."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    angles = np.arange(len(ids))[:, None] * frequencies(config)
    cos, sin = np.cos(angles), np.sin(angles)

    def norm(name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.eps) * w[f"{name}.weight"]

    def turned(x):
        first, second = x[:, : config.width // 2], x[:, config.width // 2 :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        h = norm(f"{at}.input_layernorm", x)
        q, k, v = (h @ w[f"{at}.self_attn.{p}_proj.weight"].T for p in "qkv")
        rows = []
        for head in range(config.heads):
            group = head * config.groups // config.heads
            mine, its = (slice(i * config.width, (i + 1) * config.width) for i in (head, group))
            scores = turned(q[:, mine]) @ turned(k[:, its]).T / np.sqrt(config.width)
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            rows.append(scores / scores.sum(-1, keepdims=True) @ v[:, its])
        x = x + np.concatenate(rows, axis=1) @ w[f"{at}.self_attn.o_proj.weight"].T
        h = norm(f"{at}.post_attention_layernorm", x)
        gate = h @ w[f"{at}.mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"{at}.mlp.up_proj.weight"].T)) @ w[f"{at}.mlp.down_proj.weight"].T
    return norm("model.norm", x) @ w["model.embed_tokens.weight" if config.tied else "lm_head.weight"].T


@pytest.mark.parametrize("tied", [False, True])
def test_tokens_and_logits_are_those_of_float64(llama, device, tied):
    config = replace(llama.SHAPES["tiny"], tied=tied)
    weights = drawn(config, llama)
    generator = llama.Generator(config, device, CONTEXT, CHUNK, weights)
    found = generator.tokens(PROMPT, 12)
    ids = list(PROMPT)
    for token in found:
        assert token == forward(weights, ids, config)[-1].argmax()
        ids.append(token)
    assert len(set(found)) > 6  # a model that says one thing shows nothing
    generator.step.state.reset()
    for number, token in enumerate(PROMPT[: CHUNK + 1]):
        generator.step.state["token"] = np.array([token])
        got_token, logits = generator.recording()
        want = forward(weights, PROMPT[: number + 1], config)[-1]
        np.testing.assert_allclose(logits.numpy()[0], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
        assert got_token.item() == want.argmax()


def test_a_chunk_is_the_same_as_its_tokens_one_by_one(llama, device):
    config = llama.SHAPES["tiny"]
    weights = drawn(config, llama, 1)
    generator = llama.Generator(config, device, CONTEXT, CHUNK, weights)
    following = generator.read(PROMPT)
    count = len(PROMPT)
    chunked = {name: np.array(value.numpy()) for name, value in generator.step.state.items()}
    generator.step.state.reset()
    for token in PROMPT:
        generator.step.state["token"] = np.array([token])
        generator.recording.replay()
    assert generator.step.state["token"].item() == following
    assert generator.step.state["position"].item() == chunked["position"].item() == count
    for name, value in generator.step.state.items():
        if name.startswith(("keys", "values")):
            one_by_one = value.numpy()[:, :, :count]
            np.testing.assert_allclose(one_by_one, chunked[name][:, :, :count], rtol=1e-4, atol=1e-5)
            assert np.abs(one_by_one).min(axis=(0, 1, 3)).all()


def test_replays_run_on_without_the_host(llama, device):
    """Nothing is read or waited for between steps, and outputs kept over replays stay what they were."""
    config = llama.SHAPES["tiny"]
    generator = llama.Generator(config, device, CONTEXT, CHUNK, drawn(config, llama, 2))
    want = generator.tokens(PROMPT, 10)
    generator.step.state.reset()
    generator.read(PROMPT)
    kept = [generator.recording() for _ in range(9)]
    assert [token.item() for token, _ in kept] == want[1:]
    assert [int(logits.numpy().argmax()) for _, logits in kept] == want[1:]


@pytest.mark.usefixtures("collection_waits")
def test_one_set_of_weights_and_one_cache(llama, device):
    config = llama.SHAPES["tiny"]
    step = llama.load(config, device, CONTEXT)
    plan = llama.plan_prefill(config, device, CONTEXT, CHUNK)
    step.device.allocator.trim()  # so that no block is larger than asked for
    live = step.device.allocator.live
    chunk = plan.load(share=step)
    assert chunk.device.allocator.live - live < plan.peak + 4096
    assert chunk.state["keys.1"].storage.address == step.state["keys.1"].storage.address
    with pytest.raises(PlanError, match=r"keys\.0"):
        llama.plan_prefill(config, device, 2 * CONTEXT, CHUNK).load(share=step)


def test_a_layer_is_nine_nodes_and_no_cache_is_copied(llama, device):
    config = llama.SHAPES["tiny"]
    plan = llama.plan_decode(config, device, CONTEXT)
    names = [node.op.name for node in plan.graph.nodes]
    assert "copy" not in names
    assert "cache_update" not in names
    ends = ["add", "embedding", "rms_norm", "argmax", "add"]  # the head's product is a linear, too
    assert len(names) == 9 * config.layers + len(ends) + 1
    update = next(node for node in plan.graph.nodes if node.op.name == "rope_update")
    assert [update.outputs[1], update.outputs[2]] == [update.operands["k_cache"], update.operands["v_cache"]]


def test_the_shapes_have_the_published_numbers_of_weights(llama):
    assert llama.SHAPES["1b"].parameters == 1_235_814_400
    assert llama.SHAPES["8b"].parameters == 8_030_261_248
    for name, context in (("1b", 1024), ("8b", 1024)):
        config = llama.SHAPES[name]
        state = sum(spec.nbytes for spec in llama.state_specs(config, context).values())
        assert state == 2 * 2 * config.layers * config.groups * config.width * context + 12


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_in_the_hugging_face_layout(llama, device, tmp_path, dtype, sharded):
    tiny = llama.SHAPES["tiny"]
    weights = drawn(tiny, llama, 3)
    if dtype == "bfloat16":
        import ml_dtypes

        weights = {name: value.astype(ml_dtypes.bfloat16) for name, value in weights.items()}
    names = list(weights)
    if sharded:
        files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, part in files.items():
            save_file({name: weights[name] for name in part}, tmp_path / file)
        index = {"weight_map": {name: file for file, part in files.items() for name in part}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file(weights, tmp_path / "model.safetensors")
    given = {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(given))
    config = llama.read_config(tmp_path)
    assert config == replace(tiny, dtype=dtype)
    generator = llama.Generator(config, device, CONTEXT, CHUNK, llama.read_weights(tmp_path))
    generator.read(PROMPT)
    _, logits = generator.recording()
    ids = [*PROMPT, forward(weights, PROMPT, config)[-1].argmax()]
    if dtype == "float32":
        want = forward(weights, ids, config)[-1]
        np.testing.assert_allclose(logits.numpy()[0], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    else:
        got = np.array(logits.astype("float32").numpy()[0], np.float64)
        generator.step.state.reset()
        generator.read(ids[:-1])
        ids[-1] = generator.step.state["token"].item()
        want = forward(weights, ids, config)[-1]
        assert (got * want).sum() / np.linalg.norm(got) / np.linalg.norm(want) > 0.998
    (tmp_path / "config.json").write_text(json.dumps({**given, "attention_bias": True}))
    with pytest.raises(SystemExit, match="attention_bias"):
        llama.read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**given, "rope_scaling": {"rope_type": "yarn"}}))
    with pytest.raises(SystemExit, match="yarn"):
        llama.read_config(tmp_path)
    for wrong, words in (
        ({**given, "vocab_size": "256"}, "vocab_size"),
        ({**given, "num_attention_heads": 0}, "num_attention_heads"),
        ({**given, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "with its numbers. Got llama3"),
        ({**given, "rope_scaling": ["linear"]}, "with its numbers"),
        ([], "config.json is a JSON object. Got list"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(SystemExit, match=words):
            llama.read_config(tmp_path)
    for wrong in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(wrong)
        with pytest.raises(SystemExit, match=r"config\.json is JSON"):
            llama.read_config(tmp_path)


def test_prompts_that_do_not_fit_are_refused(llama, device):
    generator = llama.Generator(llama.SHAPES["tiny"], device, CONTEXT, CHUNK)
    with pytest.raises(ValueError, match="1 to 32 tokens"):
        generator.read([])
    with pytest.raises(ValueError, match="within 32"):
        generator.tokens(PROMPT, CONTEXT)
    generator.read(PROMPT)
    with pytest.raises(ValueError, match="1 to 22 tokens"):
        generator.read(PROMPT * 2)


def test_the_command_prints_what_was_known_beforehand():
    done = subprocess.run(
        [sys.executable, "examples/llama.py", "--shape", "tiny", "--tokens", "8", "--context", "32"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("tokens:", "planned:", "replay byte-equal, state too: yes", "tok/s at context 32", "op family"):
        assert words in done.stdout
    done = subprocess.run(
        [sys.executable, "examples/llama.py", "--shape", "nowhere"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "config.json" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--ids", "1,,2"], 2, "--ids: numbers of tokens"),
        (["--tokens", "0"], 2, "--tokens: 1 or more"),
        (["--ids", "256"], 1, "llama.py: read: tokens from 0 to 255. Got 256."),
        (["--device", "nowhere"], 1, "llama.py: backend 'nowhere'"),
    ],
)
def test_words_that_name_nothing_are_told_in_one_line(llama, monkeypatch, capsys, words, status, told):
    monkeypatch.setattr(sys, "argv", ["llama.py", "--context", "32", *words])
    with pytest.raises(SystemExit) as ended:
        llama.main()
    assert ended.value.code == status
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_random_weights_differ_and_repeat(llama):
    config = llama.SHAPES["tiny"]
    weights = llama.RandomWeights(config)
    assert set(weights) == set(llama.weight_specs(config))
    q, k = (weights[f"model.layers.0.self_attn.{p}_proj.weight"].numpy() for p in "qk")
    assert not np.array_equal(q[:8], k[:8])
    assert np.array_equal(q, weights["model.layers.0.self_attn.q_proj.weight"].numpy())
    assert 0.01 < np.asarray(q).std() < 0.03
    assert nbx.Spec(q.shape, "float32") == llama.weight_specs(config)["model.layers.0.self_attn.q_proj.weight"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bundle_of_both_programs_continues_alike(llama, device, tmp_path, dtype):
    """Prefill and decode saved together: one set of weights and one cache, in the file and when loaded."""
    config = replace(llama.SHAPES["tiny"], dtype=dtype)
    made = llama.Generator(config, device, context=CONTEXT, chunk=CHUNK)
    wanted = made.tokens(PROMPT, 12)
    nbx.save_programs(tmp_path / "llama", {"step": made.step, "chunk": made.chunk})
    stored = (tmp_path / "llama" / "weights.bin").stat().st_size
    assert stored < made.step.plan.weights_nbytes + 4 * 65536  # once, but for constants and rounding up
    loaded = nbx.load_programs(tmp_path / "llama", device=device)
    made.step, made.chunk = loaded["step"], loaded["chunk"]
    made.recording, made._prefill = made.step.capture(), made.chunk.capture()
    assert made.tokens(PROMPT, 12) == wanted
    assert made.tokens(PROMPT, 12) == wanted


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", "3", '{"weight_map": {}}', '{"weight_map": {"a": 3}}', '{"weight_map": []}', "[" * 100_000],
)
def test_an_index_that_names_no_files_is_told_in_one_line(llama, tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match='JSON with the file of each weight by its name under "weight_map"'):
        llama.read_weights(tmp_path)


def test_a_file_that_an_index_names_and_that_is_not_there(llama, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "none.safetensors"}}')
    with pytest.raises(OSError, match=r"none\.safetensors"):
        llama.read_weights(tmp_path)


def test_weights_that_no_file_has_are_told_in_one_line(llama, tmp_path, monkeypatch, capsys):
    given = dict.fromkeys(llama.NUMBERS, 4) | {"model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(given))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "a.safetensors"}}')
    save_file({"other": np.zeros(2, np.float32)}, tmp_path / "a.safetensors")
    monkeypatch.setattr(sys, "argv", ["llama.py", "--shape", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        llama.main()
    assert ended.value.code == 1
    told = "llama.py: model.embed_tokens.weight: no file of weights has it. They have other.\n"
    assert capsys.readouterr().err == told
