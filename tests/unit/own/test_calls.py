"""Calls of the public interface with arguments that it does not have, or of a type that it does not take."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import zetadp

CALLS = [name for name in zetadp.__all__ if name not in ("UserError", "nn")]
PUBLIC = {"population": 4, "per_round": 2, "rounds": 3}


def records() -> zetadp.Records:
    return zetadp.Records(torch.zeros(8, 2), torch.arange(8) % 2, patients=torch.arange(8) // 2)


def prepared(folder, **changed) -> zetadp.PrivateRun:
    given = {"epsilon": 8, "delta": 0.1, "folder": folder / "run"} | changed
    return zetadp.private(torch.nn.Linear(2, 2), records(), zetadp.Public(**PUBLIC), **given)


@pytest.mark.parametrize("name", CALLS)
def test_every_public_call_refuses_unknown_arguments(name):
    with pytest.raises(zetadp.UserError, match=rf"^{name}: Expected the arguments .*, found nonsense\.$"):
        getattr(zetadp, name)(nonsense=1)


def test_methods_refuse_unknown_arguments(tmp_path):
    for method in (records().split, prepared(tmp_path).train, zetadp.Public(**PUBLIC).write):
        with pytest.raises(zetadp.UserError, match=rf"^{method.__name__}: Expected .*, found nonsense"):
            method(nonsense=1)


NEAREST = {
    "of the call": (lambda: zetadp.Options(optimizer=None), r"found optimizer\. Did you mean 'optimiser'\?$"),
    "of a part": (
        lambda: zetadp.private(torch.nn.Linear(2, 2), records(), None, optimizer=None),
        r"Did you mean options=zetadp\.Options\(optimiser=\.\.\.\)\?$",
    ),
    "of the constants": (
        lambda: zetadp.private(torch.nn.Linear(2, 2), records(), round=3),
        r"Did you mean public=zetadp\.Public\(rounds=\.\.\.\)\?$",
    ),
    "of a release": (lambda: zetadp.release(records(), clases=2), r"Did you mean public=zetadp\.Mixing\(classes="),
}


@pytest.mark.parametrize("what", NEAREST)
def test_the_nearest_argument_is_named(what):
    call, message = NEAREST[what]
    with pytest.raises(zetadp.UserError, match=message):
        call()


def test_too_few_and_too_many_arguments_are_refused():
    for call, fault in ((zetadp.Public, "'population'"), (lambda: zetadp.Public(*range(9)), "too many")):
        with pytest.raises(zetadp.UserError, match=rf"^Public: Expected the arguments population, .*{fault}"):
            call()


NUMBERS = {
    "Fraction": Fraction,
    "NumPy's float": lambda number: np.float64(number),
    "NumPy's integer": lambda number: np.int64(number) if number == int(number) else number,
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_any_real_type_give_the_same_figures(kind, tmp_path):
    of = NUMBERS[kind]
    given = {"sampling_probability": 0.5, "rounds": 3, "delta": 1e-3}
    changed = given | {"sampling_probability": of(0.5), "delta": of(1e-3)}
    assert zetadp.epsilon(noise_multiplier=of(2), **changed) == zetadp.epsilon(noise_multiplier=2, **given)
    assert zetadp.noise(epsilon=of(8), **changed) == zetadp.noise(epsilon=8, **given)
    options = zetadp.Options(most_epsilon=of(9))
    assert prepared(tmp_path, options=options, seed=0).train().state == "finished"


def test_a_tilde_is_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert prepared(Path("~")).folder == tmp_path / "run"


WRONG = {
    "a folder for the file of a model": (lambda folder: zetadp.load(folder, torch.nn.Linear(2, 2)), ""),
    "consent in other words": (lambda _: zetadp.Options(without_noise="yes"), "without_noise"),
    "a metric without records": (lambda folder: prepared(folder).train(metric=len), "metric"),
    "a number for a path": (lambda _: zetadp.Public(**PUBLIC).write(3), "path"),
    "a number for the file of a model": (lambda folder: prepared(folder).save(3), "path"),
    "a number for a file": (lambda _: zetadp.Public.read(3), "path"),
}


@pytest.mark.parametrize("what", WRONG)
def test_arguments_of_a_wrong_type_are_refused_by_name(what, tmp_path):
    call, name = WRONG[what]
    with pytest.raises(zetadp.UserError, match=rf"^{name and f'{name}: '}Expected .*found"):
        call(tmp_path)
