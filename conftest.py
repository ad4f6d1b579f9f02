"""Every fenced Python block of the documents and every doctest of the source is a test."""

from hypothesis import settings
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

settings.register_profile("gates", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("gates")

pytest_collect_file = (
    Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["*.md"])
    + Sybil(parsers=[DocTestParser()], patterns=["*.py"], excludes=["**/kernel.py", "**/lang/*.py", "conftest.py"])
).pytest()
