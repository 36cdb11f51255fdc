"""The compiled private step: the same results, chosen once, and nothing lost without a compiler."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from training_builder import NETWORKS, TINY, network, patients

from zetadp.core import compiling
from zetadp.core.compiling import is_compiled
from zetadp.core.round import Phase
from zetadp.nn.stacked import compiled, compiled_operations

IMAGES, LABELS = patients(5, 4)
IMAGES[3] = 1.5  # constant images, whose covariance is zero


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_gradients_are_those_of_each_unit_alone_for_any_number_of_units():
    contribution = Phase.of(network(TINY), 4).contribution
    for count in (5, 3, 1):
        plain = torch.cat(contribution.of_units(IMAGES[:count], LABELS[:count], factors=False), dim=1)
        with compiled_operations():
            rows = torch.cat(contribution.of_units(IMAGES[:count], LABELS[:count], factors=False), dim=1)
            changed = torch.cat([IMAGES[: count - 1], 1e3 * IMAGES[:1]])
            others = torch.cat(contribution.of_units(changed, LABELS[:count], factors=False), dim=1)
        torch.testing.assert_close(rows, plain, rtol=1e-4, atol=1e-5)
        assert torch.equal(others[:-1], rows[:-1])


class Compiler:
    """Stands for PyTorch's compiler: notes whether it was asked, and may be missing, slow or wrong."""

    def __init__(self, *, seconds=0.5, missing=False, factor=1.0):
        self.asked, self.seconds, self.missing, self.factor = 0, seconds, missing, factor

    @contextmanager
    def block(self):
        self.asked += 1
        if self.missing:
            raise RuntimeError("No working C++ compiler found")
        with compiled_operations():
            yield

    def timed(self, *_):
        return (self.seconds, torch.ones(3) * self.factor) if compiled() else (1.0, torch.ones(3))


def node(expected=6.0, *, repeatable=True):
    event = SimpleNamespace(expected=expected, population=6)
    return SimpleNamespace(mechanism=SimpleNamespace(event=event, repeatable=repeatable))


CASES = {
    "never": ("never", Compiler(), TINY, False, 0),
    "a short run": ("auto", Compiler(), TINY, False, 0),
    "a long run": ("auto, long", Compiler(), TINY, True, 1),
    "slower": ("auto, long", Compiler(seconds=2), TINY, False, 1),
    "slower, but asked for": ("always", Compiler(seconds=2), TINY, True, 1),
    "no compiler": ("always", Compiler(missing=True), TINY, False, 1),
    "other gradients": ("always", Compiler(factor=1.01), TINY, False, 1),
    "nothing to compile": ("always", Compiler(), NETWORKS["dense complex"], False, 0),
    "passes of varying size": ("always, sampled", Compiler(), TINY, False, 0),
    "one patient a pass": ("always, secret", Compiler(), TINY, True, 1),
}


@pytest.mark.parametrize("what", CASES)
def test_a_step_is_compiled_where_it_was_asked_for_works_and_pays(what, monkeypatch, caplog):
    wish, compiler, settings, expected, asked = CASES[what]
    monkeypatch.setattr(compiling, "compiled_operations", compiler.block)
    monkeypatch.setattr(compiling, "_timed", compiler.timed)
    rounds = int(compiling.LONG) * (2 if "long" in wish else 0)
    phase = replace(Phase.of(network(settings), 4), chunk=64)
    of = node(6.0 if "sampled" not in wish and "secret" not in wish else 2.0, repeatable="secret" not in wish)
    assert is_compiled(wish.partition(",")[0], phase, [of], IMAGES.flatten(0, 1), rounds) is expected
    assert compiler.asked == asked
    assert len([line for line in caplog.messages if "no" in line and "compiler" in line.lower()]) == compiler.missing
