"""What no committed file may say: it would hold on one machine only, or speak of something other than the library."""

import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# A bar cuts each word in two, so that this file holds none of what it looks for.
FORBIDDEN = {
    "a package registry's host": r"py¦pi\.org|python¦hosted\.org|registry\.n¦pmjs|deb\.deb¦ian|ghc¦r\.io",
    "a path of one machine": r"(?<![\w.}])/(?:wo¦rk|o¦pt|ro¦ot|ho¦me)/\w",
    "who wrote it": r"(?i)\b(?:ag¦ents?|assis¦tants?|chat¦bots?|this ses¦sion)\b|\bissue #\d",
    "work left undone": r"\b(?:TO¦DO|FIX¦ME|XX¦X)\b",
    "an unresolved merge": r"(?m)^(?:<{7}|>{7}) ",
}


@functools.cache
def texts():
    """Every committed text file but the licence, by its path from the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [n for n in listed.split("\0") if n and n != "LICENSE" and (ROOT / n).is_file()]
    return {name: (ROOT / name).read_bytes().decode("utf-8", "replace") for name in names}


def found(what, text):
    return [m[0] for m in re.finditer(FORBIDDEN[what].replace("¦", ""), text)]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what):
    assert "README.md" in texts()
    assert {name: words for name, text in texts().items() if (words := found(what, text))} == {}


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a package registry's host", "--index-url https://py¦pi.org/simple"),
        ("a path of one machine", 'open("/ro¦ot/model/weights")'),
        ("a path of one machine", "cd /wo¦rk/library"),
        ("who wrote it", "as asked for in iss¦ue #12"),
        ("who wrote it", "an ag¦ent's note"),
        ("work left undone", "# TO¦DO: later"),
        ("an unresolved merge", "a\n<<<¦<<<< ours\n"),
    ],
)
def test_the_patterns_see(what, text):
    assert found(what, text) == []
    assert found(what, text.replace("¦", ""))
