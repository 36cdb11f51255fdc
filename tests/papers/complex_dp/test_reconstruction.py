"""The tables of reconstruction: on runs and images that are made up, and what is kept of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from papers.complex_dp import tabulate_reconstruction as reconstruction
from papers.complex_dp.reconstruction.task import Reconstruction
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.base.runfolder import RunFolder, RunName

ROOT = Path(__file__).parents[3]
PATIENTS = [f"phantom-{number:04d}" for number in range(6)]
RANDOM = np.random.default_rng(0)


@pytest.fixture
def tested():
    targets = RANDOM.random((12, 16, 16)).astype(np.float32)
    volumes = {who: np.arange(2 * place, 2 * place + 2) for place, who in enumerate(PATIENTS)}
    return reconstruction.Tested(Reconstruction(size=16), np.zeros((12, 16, 16), np.complex64), targets, volumes)


def experiment(folder: Path, start: dict[str, dict[str, float]], shares: dict[tuple[str, str], float]):
    """Return finished runs of two seeds that lie, in the mean, the given shares of the way to perfect images."""
    goal = {"SSIM": 1.0, "NMSE": 0.0, "PSNR": 60.0}
    keys = {"SSIM": "per_patient", "NMSE": "per_patient_nmse", "PSNR": "per_patient_psnr"}
    runs = {}
    for (network, epsilon), share in shares.items():
        runs[network, epsilon] = {
            seed: {
                key: {who: value + own * (goal[metric] - value) for who, value in start[metric].items()}
                for metric, key in keys.items()
            }
            for seed, own in enumerate((share - 0.05, share + 0.05))
        }
        for seed in runs[network, epsilon]:
            path = folder / f"runs/{network}/central/eps-{epsilon}/seed-{seed}/privacy.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"epsilon": None if epsilon == "inf" else 0.99 * float(epsilon)}))
    return SimpleNamespace(
        results=folder,
        metrics=lambda network, arm, epsilon: runs[network, epsilon],
        cells={(n, "central", e): [RunName(n, "central", e, seed) for seed in seeds] for (n, e), seeds in runs.items()},
        folder=lambda run: RunFolder(folder / run.folder),
    )


def test_the_table_says_how_much_of_the_way_private_training_goes(tested, tmp_path, monkeypatch):
    noisy = tested.targets + RANDOM.normal(0, 0.3, tested.targets.shape).astype(np.float32)
    images = {"zero-filled": 0 * noisy, reconstruction.PUBLIC: noisy}
    start = tested.measured(noisy)
    shares = {
        ("tuned", "1"): 0.1,
        ("tuned", "8"): 0.3,
        ("tuned", "inf"): 0.4,
        ("scratch", "8"): 0.0,
        ("twin", "8"): 0.2,
    }
    found = reconstruction.collected(experiment(tmp_path, start, shares), tested, images).set_index(
        ["method", "epsilon"]
    )
    assert len(found) == len(images) + len(shares)
    best = found.loc[reconstruction.PRIVATE, "8"]
    for metric in ("SSIM", "NMSE"):
        assert best[f"way_{metric}"] == pytest.approx(0.75)
        assert best[f"way_{metric}_low"] == pytest.approx(0.75)  # the same share of every patient's way
    assert found.loc[reconstruction.PRIVATE, "1"]["way_SSIM"] == pytest.approx(0.25)
    assert best["epsilon_stated"] == pytest.approx(7.92)
    whole = np.mean([1 - value for value in start["SSIM"].values()])
    assert (best["seeds"], best["SSIM_std"]) == (2, pytest.approx(0.05 * 2**0.5 * whole))
    public = found.loc[reconstruction.PUBLIC, "0"]
    assert public["NMSE"] == pytest.approx(np.mean(list(start["NMSE"].values())))
    assert public["NMSE_low"] < public["NMSE"] < public["NMSE_high"]


def kept(name: str) -> pd.DataFrame:
    return pd.read_csv(
        ROOT / f"papers/complex_dp/results/reconstruction/{name}.csv", comment="#", dtype={"epsilon": str}
    )


def test_the_stored_table_has_the_declared_seeds():
    table = kept("table").set_index(["method", "epsilon"])
    cells = reconstruction.Experiment.of(reconstruction.SCENARIO).cells
    for (method, epsilon), network in reconstruction.TRAINED.items():
        assert table.loc[(method, epsilon), "seeds"] == len(cells[network, "central", epsilon])
        assert float(table.loc[(method, epsilon), "epsilon_stated"]) <= float(epsilon)


def test_a_patient_of_the_paper_has_a_multiple_of_a_slices_epsilon(monkeypatch):
    # Fewer rounds and slices: for those of the paper even the coarse grid takes a minute.
    claim = next(each for each in reconstruction.ZILLER if "fastMRI" in each.experiment)
    few = replace(claim, rounds=100, sampling_probability=2e-2)
    monkeypatch.setattr(reconstruction, "ZILLER", (few,))
    monkeypatch.setattr(reconstruction, "SLICES", 4)
    found = reconstruction.of_the_paper().set_index("noise")
    for noise, sigma in (("as stated", 1), ("as added", 0.5**0.5)):
        fine = composition.epsilon_group({NoisySum(few.sampling_probability, sigma): few.rounds}, few.delta, 4)
        # The coarse grid gives an upper bound.
        assert fine <= found.loc[noise, "per_patient"] <= 1.05 * fine
        assert found.loc[noise, "per_slice"] < found.loc[noise, "per_patient"] / 3
