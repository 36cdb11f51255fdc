"""The figures on the page of pitfalls."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import zetadp
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum

PAGE = (Path(__file__).parents[3] / "docs/pitfalls.md").read_text(encoding="utf-8")
SETTING = {"sampling_probability": 0.1, "delta": 1e-5}
PITFALLS = dict(re.findall(r"^\d+\. \*\*(.+?)\*\*(.*?)(?=\n\d+\. |\n\n|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
"""The text of each pitfall, by its title."""


def sigma(epsilon: float, rounds: int = 500) -> float:
    return zetadp.noise(epsilon=epsilon, rounds=rounds, **SETTING)


def of_persons(items: int) -> float:
    return composition.epsilon_group({NoisySum(0.1, sigma(8)): 500}, 1e-5, items)


FIGURES = {
    "Items": lambda: [of_persons(5), of_persons(20)],
    "Settings": lambda: [zetadp.epsilon(noise_multiplier=sigma(8), rounds=5000, **SETTING)],
    "Complex": lambda: [
        zetadp.epsilon(noise_multiplier=sigma(epsilon) / math.sqrt(2), rounds=500, **SETTING) for epsilon in (8, 1)
    ],
    "One person": lambda: [of_persons(2)],
    "Steps": lambda: [zetadp.epsilon(noise_multiplier=sigma(8, 50), rounds=500, **SETTING)],
}


@pytest.mark.parametrize("begins", FIGURES)
def test_the_page_shows_what_the_accountant_finds(begins):
    (text,) = (text for title, text in PITFALLS.items() if title.startswith(begins))
    shown = [float(number) for number in re.findall(r"(?:is|it is|are) (\d+(?:\.\d+)?)", " ".join(text.split()))]
    assert shown == [pytest.approx(value, rel=0.03) for value in FIGURES[begins]()]


def test_every_pitfall_names_a_test_that_exists():
    tests = Path(__file__).parents[2]
    known = "\n".join(path.read_text(encoding="utf-8") for path in tests.rglob("*.py")) + str([*tests.rglob("*.py")])
    names = [re.findall(r"`(\w+)`", text.rpartition("(")[2]) for text in PITFALLS.values()]
    assert len(names) == 12
    assert all(names)
    assert [name for row in names for name in row if name not in known] == []
