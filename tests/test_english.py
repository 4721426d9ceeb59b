"""Tests of the project's English (`tests/english.py` has the rules)."""

from __future__ import annotations

import ast

import pytest

from tests import english


def test_no_text_breaks_a_rule() -> None:
    assert english.offenders() == []


@pytest.mark.parametrize(
    ("kind", "text", "rules"),
    [
        ("function", "Return the topic's name.", []),
        ("function", "The topic's name.", ["verb"]),
        ("function", "What a topic is called.", ["verb", "start"]),
        ("noun", "Which ledgers are open.", ["noun"]),
        ("noun", "Open ledgers. Those of a topic are first.", ["start"]),
        ("noun", "A table. What is a topic?", []),
        ("noun", "Ledgers; the file is gone, and there is no other.", ['"gone"']),
        ("noun", "A text that\nis no JSON.", ['"is no"']),
    ],
)
def test_each_rule_finds_its_offenders(kind: str, text: str, rules: list[str]) -> None:
    assert [*english.of_the_first_word(kind, text), *english.of_prose(text)] == rules


def test_an_offender_is_named_by_its_scope_and_not_by_its_line() -> None:
    scopes = english.Scopes(
        ast.parse("class A:\n    def f(self):\n        '''Return it.'''\n        raise E('x is gone')")
    )
    assert scopes.texts == [("A.f", "x is gone")] and scopes.at(3) == "A.f" and scopes.at(1) == "A"
