"""Peaks of graphs of ops: what in-place results, donated operands and the order are each worth."""

import json

from bench.plan_graphs import main, peaks, table

KIB = 1024


def _op(name, inp, out, inplace=()):
    return {"name": name, "inp": inp, "out": [out], "inplace": list(inplace)}


def test_each_step_is_worth_something(tmp_path, capsys):
    """A cache (external 0) is updated, and two large values are made from it one after the other."""
    ops = [
        _op("mul", [1], 10),
        _op("dynamic_update_slice", [0, 10], 11),
        _op("stack", [11], 12),
        _op("stack", [11], 13),
        _op("exp", [12], 14, [12]),
        _op("reduce", [14], 15),
        _op("reduce", [13], 16),
        _op("add", [15, 16], 17, [15, 16]),
    ]
    sizes = {10: 1, 11: 100, 12: 400, 13: 400, 14: 400, 15: 1, 16: 1, 17: 1}
    bufs = {str(b): n * KIB for b, n in sizes.items()}
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"ops": ops, "bufs": bufs, "external": [0, 1], "outputs": [11, 17]}))
    found = peaks(path)
    assert found.program == (100 + 400 + 400 + 400) * KIB
    assert found.in_place == (400 + 400 + 1) * KIB
    assert found.ordered == found.floor == 402 * KIB  # one sum stays while the other is made
    assert found.largest_op == 401 * KIB
    assert found.complete
    assert peaks(path, donated=False).ordered == 502 * KIB
    assert "made" in table([found])
    assert main([path]) == 0
    assert "made" in capsys.readouterr().out
