from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from papers.complex_dp.baselines import zero_filled
from zetadp.base.tables import checked
from zetadp.base.validation import UserError
from zetadp.core.evaluation import outputs_of
from zetadp.nn.models import build
from zetadp.nn.settings import NetworkSettings
from zetadp.tasks.reconstruction.pretraining import make
from zetadp.tasks.reconstruction.settings import Examinations, MaskSettings
from zetadp.tasks.reconstruction.simulated import examination, simulate_volumes
from zetadp.tasks.reconstruction.task import Reconstruction
from zetadp.tasks.reconstruction.volumes import PARTS, nmse, psnr, ssim, undersample

SIZE = 32
SIZES = {"train": 2, "test": 3}
EXAMINATIONS = Examinations(population="procedural", size=SIZE, slices=3, scalp=1.0)
TASK = Reconstruction(size=SIZE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder in the layout of fastMRI; the third patient of five has two examinations."""
    found = tmp_path_factory.mktemp("volumes")
    simulate_volumes(volumes=found, examinations=asdict(EXAMINATIONS), seed=0, sizes=SIZES)
    replace(examination(EXAMINATIONS, 0, 9), name="again", patient="phantom-0002").write(found / PARTS["test"])
    return found


def prepared(folder: Path, target: Path, **sizes: int) -> tuple[Path, Path]:
    made = target / "slices.h5", target / "index.csv"
    undersample(volumes=folder, slices=made[0], table=made[1], mask={}, size=SIZE, sizes={**SIZES, **sizes})
    return made


def test_volumes_become_slices_whose_missing_lines_are_zero(folder, tmp_path):
    slices, table = prepared(folder, tmp_path)
    index = pd.read_csv(table)
    assert index.groupby("part")["patient"].nunique().to_dict() == {"test": 3, "train": 2}
    assert index["sha256"].nunique() == len(index) == 6
    role = index.rename(columns={"part": "role"}).assign(node="a")
    held = TASK.load([slices], role, "test", torch.device("cpu"))
    assert [len(own) for own in held.units()] == [6, 3, 3]  # both examinations of a patient are one unit
    for name, own in held.items.groupby("volume"):
        line = (held.inputs[own.index, 0] != 0).any(dim=1)
        assert (line == torch.from_numpy(MaskSettings().of_volume(str(name), SIZE))).all()
        assert held.targets[own.index].max() == 1
    with pytest.raises(UserError, match=r"Expected 4 patients in the part train as declared, found 2"):
        prepared(folder, tmp_path, train=4)
    with pytest.raises(UserError, match="found twin twice"):
        checked(index.assign(record="twin"), SIZES, "volumes")


def test_metrics_are_of_volumes_and_intervals_over_patients(folder, tmp_path):
    slices, table = prepared(folder, tmp_path)
    role = pd.read_csv(table).rename(columns={"part": "role"}).assign(node="a")
    held = TASK.load([slices], role, "test", torch.device("cpu"))
    network = build(NetworkSettings("unet", widths=(4, 8)), 1, SIZE, np.random.default_rng(0)).eval()
    found = held.items.assign(**TASK.measure(outputs_of(network, held.inputs), held.targets))
    said = TASK.summarise(found)
    images, wanted = network(held.inputs).detach().numpy(), held.targets.numpy()
    each = {name: [] for name in ("SSIM", "NMSE", "PSNR")}
    for _, own in held.items.groupby("volume"):
        target, image = wanted[own.index], images[own.index]
        for name, value in zip(
            each, (ssim(target, image).mean(), nmse(target, image), psnr(target, image)), strict=True
        ):
            each[name].append(value)
    for name, values in each.items():
        assert said[name] == pytest.approx(np.mean(values), rel=1e-5)
        assert said[f"{name}_interval"]["low"] <= said[name] <= said[f"{name}_interval"]["high"]
    assert (said["images"], said["patients"]) == (4, 3)
    assert said["per_patient_images"]["phantom-0002"] == 2
    whole = sum(said["per_patient"][who] * count for who, count in said["per_patient_images"].items())
    assert whole / 4 == pytest.approx(said["SSIM"])
    with pytest.raises(UserError, match="finite"):
        TASK.summarise(found.assign(error=np.nan))


def test_public_networks_learn_and_are_where_others_start(tmp_path):
    settings = {"widths": (4, 8), "patients": 3, "passes": 8, "batch": 3}
    settings["examinations"] = {"population": "procedural", "slices": 3}
    make(networks=tmp_path / "networks.safetensors", settings=settings, mask={}, size=SIZE)
    public = TASK.backbone(tmp_path / "networks.safetensors", torch.device("cpu"))
    network = NetworkSettings(
        "unet", widths=(4, 8), convolutions=1, activation="crelu", start="public", trained="norms"
    )
    before, after = (build(network, 1, SIZE, np.random.default_rng(0)) for _ in range(2))
    after.load_state_dict(public.start(network))
    # Other patients of the public population.
    volumes = [examination(replace(EXAMINATIONS, scalp=0.0), 5, number) for number in range(5)]
    complete, wanted = (np.concatenate(parts) for parts in zip(*(each.slices(SIZE) for each in volumes), strict=True))
    masks = [MaskSettings().of_volume(each.name, SIZE) for each in volumes]
    kspace = complete * np.repeat(masks, 3, axis=0)[:, None]
    inputs, targets = torch.from_numpy(kspace)[:, None], torch.from_numpy(wanted)
    drawn, learnt = (float(TASK.losses(model(inputs), targets).mean().detach()) for model in (before, after))
    zero = float(np.abs(zero_filled(kspace) - wanted).mean())
    assert drawn == pytest.approx(zero, rel=1e-3)  # a network starts from the zero-filled image
    assert learnt < 0.99 * zero
    for other in (replace(network, family="real_unet"), replace(network, widths=(4, 16))):
        with pytest.raises(UserError, match=r"public family \(unet\)"):
            public.start(other)
