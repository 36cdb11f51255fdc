"""Examinations in the layout of fastMRI, masks, metrics of volumes, and public networks."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from papers.complex_dp.baselines import zero_filled
from papers.complex_dp.reconstruction.pretraining import make
from papers.complex_dp.reconstruction.settings import Examinations, MaskSettings
from papers.complex_dp.reconstruction.simulated import examination, simulate_volumes
from papers.complex_dp.reconstruction.task import Reconstruction
from papers.complex_dp.reconstruction.volumes import PARTS, KspaceVolume, read_volume, undersample
from zetadp.base.tables import write_cohort
from zetadp.base.tensors import save_tensors, tensors_digest
from zetadp.base.validation import UserError
from zetadp.mri.kspace import to_image
from zetadp.mri.similarity import nmse, psnr, ssim
from zetadp.nn.models import build
from zetadp.nn.settings import NetworkSettings

SIZE = 32
SIZES = {"train": 2, "test": 3}
EXAMINATIONS = Examinations(population="procedural", size=SIZE, slices=3, scalp=1.0)
TASK = Reconstruction(size=SIZE)


@pytest.mark.parametrize(
    ("given", "fault"), [({"acceleration": 0}, "Expected acceleration >= 1"), ({"word": 1}, "'word'")]
)
def test_a_wrong_setting_of_a_part_is_named(given, fault):
    with pytest.raises(UserError, match=rf"^task\.settings\.mask: .*{fault}.*\.$"):
        Reconstruction(size=SIZE, mask=given)


@pytest.fixture(scope="module")
def volume() -> KspaceVolume:
    return examination(EXAMINATIONS, seed=0, number=3)


def test_a_simulated_file_has_the_layout_of_fastmri_and_is_read_back(volume, tmp_path):
    volume.write(tmp_path)
    with h5py.File(tmp_path / "phantom-0003.h5") as file:
        assert set(file) == {"kspace", "reconstruction_esc"}
        assert file["kspace"].dtype == np.complex64
        assert file["kspace"].shape == (3, 64, 32)  # the readout is sampled twice as finely as it is shown
        assert file["reconstruction_esc"].shape == (3, 32, 32)
        assert set(file.attrs) == {"patient_id"}
    found = read_volume(tmp_path / "phantom-0003.h5")
    assert (found.name, found.patient) == (volume.name, volume.patient)
    np.testing.assert_array_equal(found.kspace, volume.kspace)
    np.testing.assert_array_equal(found.target, volume.target)


def compound(kspace: np.ndarray) -> np.ndarray:
    pairs = np.empty(kspace.shape, [("real", "<f4"), ("imag", "<f4")])
    pairs["real"], pairs["imag"] = kspace.real, kspace.imag
    return pairs


WRONG = {
    "other order": lambda k, _: {"kspace": k[::-1]},
    "two slices exchanged": lambda k, _: {"kspace": k[[0, 2, 1]]},
    "next slice": lambda k, _: {"kspace": np.roll(k, 1, axis=0)},
    "real": lambda k, _: {"kspace": np.abs(k)},
    "not centred": lambda k, _: {"kspace": np.fft.fft2(to_image(k), norm="ortho").astype(np.complex64)},
    "an empty slice": lambda k, _: {"kspace": k * (np.arange(3) > 0)[:, None, None]},
    "empty": lambda k, _: {"kspace": 0 * k},
    "other scale": lambda k, _: {"kspace": 2 * k},
    "pairs": lambda k, _: {"kspace": compound(k)},
    "not finite": lambda k, _: {"kspace": np.full_like(k, np.nan)},
    "two coils": lambda k, _: {"kspace": np.stack([k, k], axis=1)},
    "no kspace": lambda _, __: {"kspace": None},
    "no target": lambda _, __: {"reconstruction_esc": None},
    "mirrored target": lambda _, t: {"reconstruction_esc": t[:, ::-1]},
    "no slices": lambda k, t: {"kspace": k[:0], "reconstruction_esc": t[:0]},
    "no patient": lambda _, __: {"patient_id": None},
    "empty patient": lambda _, __: {"patient_id": ""},
    "number as patient": lambda _, __: {"patient_id": 3.5},
    "two patients": lambda _, __: {"patient_id": np.array(["p", "q"], dtype=h5py.string_dtype())},
}


def changed(volume: KspaceVolume, folder: Path, changes: dict[str, object]) -> Path:
    """Write a volume with other arrays or another patient; what is None is left out, or a group."""
    volume.write(folder)
    with h5py.File(folder / f"{volume.name}.h5", "r+") as file:
        for name, value in changes.items():
            where = file.attrs if name == "patient_id" else file
            del where[name]
            if value is not None:
                where[name] = value
            elif name == "kspace":
                file.create_group("kspace")
    return folder / f"{volume.name}.h5"


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_an_examination_that_is_not_what_it_seems_is_refused(volume, tmp_path, change):
    with pytest.raises(UserError, match=rf"{volume.name}\.h5"):
        read_volume(changed(volume, tmp_path, change(volume.kspace, volume.target)))


@pytest.mark.parametrize("patient", [np.bytes_("p"), np.array(["p"], dtype=h5py.string_dtype())])
def test_a_patient_is_the_same_however_the_file_holds_the_name(volume, tmp_path, patient):
    assert read_volume(changed(volume, tmp_path, {"patient_id": patient})).patient == "p"


def test_complete_kspace_of_the_field_of_view_gives_the_target(volume):
    for size in (32, 24):
        kspace, target = volume.slices(size)
        assert kspace.shape == target.shape == (3, size, size)
        np.testing.assert_allclose(np.abs(to_image(kspace)), target, atol=1e-5)
    assert volume.slices(32)[1].max() == 1
    with pytest.raises(UserError, match=r"at least 64 x 64 pixels .* found 32 x 32"):
        volume.slices(64)


RANDOM = np.random.default_rng(0)
TARGET = RANDOM.random((3, 32, 40)).cumsum(axis=1).astype(np.float32)
FOUND = TARGET + RANDOM.normal(0, 0.5, TARGET.shape).astype(np.float32)


def test_metrics_are_those_of_scikit_image_scaled_by_the_volume():
    peak = float(TARGET.max())
    assert psnr(TARGET, FOUND) == pytest.approx(peak_signal_noise_ratio(TARGET, FOUND, data_range=peak), rel=1e-6)
    wanted = [structural_similarity(a, b, data_range=peak) for a, b in zip(TARGET, FOUND, strict=True)]
    np.testing.assert_allclose(ssim(TARGET, FOUND), wanted, rtol=1e-5)
    assert nmse(TARGET, FOUND) == pytest.approx(np.linalg.norm(TARGET - FOUND) ** 2 / np.linalg.norm(TARGET) ** 2)
    assert nmse(TARGET, TARGET) == 0
    np.testing.assert_allclose(ssim(TARGET, TARGET), 1)


def test_masks_have_their_centre_and_their_acceleration_and_follow_from_a_name():
    masks = MaskSettings()
    drawn = np.array([masks.draw(368, np.random.default_rng(n)) for n in range(200)])
    middle = slice(184 - 14, 184 + 15)  # 8 % of 368 lines, as many on either side of the zero frequency
    assert drawn[:, middle].all()
    assert not drawn[:, 184 + 15].all()
    assert drawn.mean() == pytest.approx(1 / 4, rel=0.02)
    assert drawn.mean(axis=0)[np.r_[:170, 199:368]].std() < 0.05  # no line is preferred
    np.testing.assert_array_equal(masks.of_volume("file1", 96), masks.of_volume("file1", 96))
    assert (masks.of_volume("file1", 96) != masks.of_volume("file2", 96)).any()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder in the layout of fastMRI; the third patient of five has two examinations."""
    found = tmp_path_factory.mktemp("volumes")
    simulate_volumes(volumes=found, examinations=asdict(EXAMINATIONS), seed=0, sizes=SIZES)
    replace(examination(EXAMINATIONS, 0, 9), name="again", patient="phantom-0002").write(found / PARTS["test"])
    return found


def test_volumes_become_slices_whose_missing_lines_are_zero_and_metrics_are_of_volumes(folder, tmp_path):
    made = {"slices": tmp_path / "slices.h5", "table": tmp_path / "index.csv"}
    undersample(volumes=folder, **made, mask={}, size=SIZE, sizes=SIZES)
    index = pd.read_csv(made["table"])
    assert index.groupby("part")["patient"].nunique().to_dict() == {"test": 3, "train": 2}
    assert index["sha256"].nunique() == len(index) == 6
    role = index.rename(columns={"part": "role"}).assign(node="a")
    held = TASK.load([made["slices"]], role, "test", torch.device("cpu"))
    assert [len(own) for own in held.units()] == [6, 3, 3]  # both examinations of a patient are one unit
    network = build(NetworkSettings("unet", widths=(4, 8)), 1, SIZE, np.random.default_rng(0)).eval()
    with torch.no_grad():
        images = network(held.inputs)
    found = held.items.assign(**TASK.measure(images, held.targets))
    said = TASK.summarise(found)
    each: dict[str, list[float]] = {"SSIM": [], "NMSE": [], "PSNR": []}
    for name, own in held.items.groupby("volume"):
        line = (held.inputs[own.index, 0] != 0).any(dim=1)
        assert (line == torch.from_numpy(MaskSettings().of_volume(str(name), SIZE))).all()
        target, image = held.targets[own.index].numpy(), images[own.index].numpy()
        assert target.max() == 1
        each["SSIM"].append(ssim(target, image).mean())
        each["NMSE"].append(nmse(target, image))
        each["PSNR"].append(psnr(target, image))
    for name, values in each.items():
        assert said[name] == pytest.approx(np.mean(values), rel=1e-5)
        assert said[f"{name}_interval"]["low"] <= said[name] <= said[f"{name}_interval"]["high"]
    assert (said["images"], said["patients"], said["per_patient_images"]["phantom-0002"]) == (4, 3, 2)
    whole = sum(said["per_patient"][who] * count for who, count in said["per_patient_images"].items())
    assert whole / 4 == pytest.approx(said["SSIM"])
    with pytest.raises(UserError, match="finite"):
        TASK.summarise(found.assign(error=np.nan))
    with pytest.raises(UserError, match=r"Expected 4 patients in the part train as declared, found 2"):
        undersample(volumes=folder, **made, mask={}, size=SIZE, sizes={**SIZES, "train": 4})
    with pytest.raises(UserError, match="singlecoil_train, found none"):
        undersample(volumes=tmp_path, **made, mask={}, size=SIZE, sizes=SIZES)
    with pytest.raises(UserError, match="found twin twice"):
        write_cohort(made["table"], index.assign(record="twin"), SIZES, "volumes")


def test_public_networks_follow_from_their_settings_learn_and_are_where_others_start(tmp_path):
    settings = {"widths": (4, 8), "patients": 3, "passes": 8, "batch": 3}
    settings["examinations"] = {"population": "procedural", "slices": 3}
    for name in ("one", "again"):
        make(networks=tmp_path / name, settings=settings, mask={}, size=SIZE)
    public, again = (TASK.backbone(tmp_path / name, torch.device("cpu")) for name in ("one", "again"))
    assert tensors_digest(public.tensors()) == tensors_digest(again.tensors())
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
    save_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(UserError, match="public networks"):
        TASK.backbone(tmp_path / "other.safetensors", torch.device("cpu"))
