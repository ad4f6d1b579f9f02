"""Every fenced Python block of the documents and every doctest of the source is a test."""

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

pytest_collect_file = (
    Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["*.md"])
    + Sybil(parsers=[DocTestParser()], patterns=["*.py"], excludes=["**/kernel.py", "**/lang/*.py", "conftest.py"])
).pytest()
