from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial

import nibabel as nib
import numpy as np
import pytest

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom.anatomy import (
    HEALTHY,
    Tissue,
    VoxelGrid,
    healthy_fractions,
    load_atlas,
    sample,
    smooth_field,
    spline_weights,
)
from zetadp.phantom.cohort import (
    CohortStream,
    PhantomSettings,
    patient_name,
    population_of,
    scanner_of,
    simulate_patient,
    write_dataset_json,
    write_patients,
)
from zetadp.phantom.lesions import add_tumour, draw_tumour, with_no_lesion
from zetadp.phantom.scanners import CHANNELS

SETTINGS = PhantomSettings(train_patients=6, test_patients=3, seed=5)
FLAIR, T1W, T1GD, T2W = range(4)


@pytest.fixture(scope="module")
def patients():
    return [simulate_patient(SETTINGS, number) for number in range(1, 10)]


def drawn(settings, number):
    """Return the fractions of tissue in the voxels of a patient's brain."""
    population = population_of(settings)
    shape, tumour = (
        stream(settings.seed, Purpose.COHORT, place, number) for place in (CohortStream.SHAPE, CohortStream.TUMOUR)
    )
    whole = population.brain(shape, VoxelGrid(settings.grid))
    return population.tissue(tumour, whole, settings.tumour_probability)


def brain(patient):
    return (patient > 0).all(axis=-1)


def test_volume_is_a_stripped_brain(patients):
    for patient in patients:
        assert patient.shape == (64, 64, 24, 4)
        assert patient.dtype == np.int16
        inside = brain(patient)
        assert np.array_equal(inside, (patient > 0).any(axis=-1))
        # Through its middle an adult brain is near an ellipse of 14 cm by 17 cm: 187 square centimetres.
        area = inside.sum(axis=(0, 1)) * 0.375**2
        assert 130 < area.min() <= area.max() < 260
        assert not inside[:, [0, -1]].any()
        assert not inside[[0, -1]].any()


def test_oedema_is_bright_and_rim_takes_up_contrast():
    settings = replace(SETTINGS, tumour_probability=1.0)
    seen = 0
    for number in range(1, 10):
        volume, found = simulate_patient(settings, number), drawn(settings, number)
        inside = brain(volume)
        values = volume[inside].astype(float)
        healthy = found[:HEALTHY].sum(axis=0) > 0.99
        oedema, rim = found[Tissue.OEDEMA] > 0.5, found[Tissue.RIM] > 0.5
        if oedema.sum() < 100 or rim.sum() < 100:
            continue
        seen += 1
        level = values[healthy].mean(axis=0)
        assert values[oedema, FLAIR].mean() > 1.15 * level[FLAIR]
        assert values[oedema, T2W].mean() > 1.05 * level[T2W]
        before, after = (values[rim, c].mean() / level[c] for c in (T1W, T1GD))
        assert after > 1.15 * before
    assert seen >= 3


def test_fractions_sum_to_one_and_atrophy_turns_grey_matter_to_fluid():
    place = np.stack(np.meshgrid(*[np.arange(-40, 41, 4, dtype=np.float32)] * 3, indexing="ij")).reshape(3, -1)
    young, old = (healthy_fractions(load_atlas(), place, atrophy, vessels=0.2) for atrophy in (0.0, 0.8))
    for fractions in (young, old):
        assert fractions.min() >= 0
        np.testing.assert_allclose(fractions.sum(axis=0), 1, atol=1e-5)
    np.testing.assert_allclose(old[Tissue.WHITE], young[Tissue.WHITE], atol=1e-5)
    assert (old[Tissue.GREY] <= young[Tissue.GREY] + 1e-6).all()
    assert old[Tissue.CSF].sum() > 1.1 * young[Tissue.CSF].sum()
    deep = healthy_fractions(load_atlas(), np.array([[28.0], [-20.0], [28.0]], dtype=np.float32), 0.0, 0.2)
    assert deep[Tissue.WHITE, 0] > 0.9
    ventricle = healthy_fractions(load_atlas(), np.array([[10.0], [-5.0], [22.0]], dtype=np.float32), 0.0, 0.2)
    assert ventricle[Tissue.CSF, 0] > 0.9
    fissure = healthy_fractions(load_atlas(), np.array([[0.0], [45.0], [10.0]], dtype=np.float32), 0.0, 0.2)
    assert fissure[Tissue.BLOOD, 0] > 0.2 * fissure[Tissue.CSF, 0] > 0


def test_low_grade_tumours_have_no_enhancing_rim():
    atlas = load_atlas()
    place = np.stack(np.meshgrid(*[np.arange(-60, 61, 4, dtype=np.float32)] * 3, indexing="ij")).reshape(3, -1)
    healthy = np.zeros((HEALTHY, place.shape[1]), dtype=np.float32)
    healthy[Tissue.WHITE] = 1
    kinds = set()
    for seed in range(12):
        tumour = draw_tumour(np.random.default_rng(seed), partial(sample, atlas.white, atlas))
        fractions = add_tumour(healthy, place, tumour)
        np.testing.assert_allclose(fractions.sum(axis=0), 1, atol=1e-5)
        assert fractions.min() >= 0
        far = np.square(place - tumour.centre[:, None]).sum(axis=0) > tumour.reach**2
        np.testing.assert_array_equal(fractions[:, far], with_no_lesion(healthy)[:, far])
        edge = np.square(place - tumour.centre[:, None]).sum(axis=0) > (0.9 * tumour.reach) ** 2
        np.testing.assert_allclose(fractions[HEALTHY:, edge], 0, atol=0.01)
        assert (fractions[Tissue.RIM] > 0.5).any() == tumour.enhancing
        kinds.add(tumour.enhancing)
    assert kinds == {True, False}


def test_affine_places_the_first_voxel_left_to_right_front_to_back():
    affine = VoxelGrid((64, 48, 24)).affine
    assert nib.aff2axcodes(affine) == ("L", "P", "S")
    np.testing.assert_allclose(nib.affines.voxel_sizes(affine), (240 / 64, 240 / 48, 1))
    middle = affine @ [31.5, 23.5, 11.5, 1]
    np.testing.assert_allclose(middle, [0, -17, 10, 1])


def test_noise_of_an_area_is_the_same_on_every_grid():
    spread = []
    for size in (64, 128):
        noisy, clean = (simulate_patient(replace(SETTINGS, grid=(size, size, 4), noise=n), 1) for n in (0.05, 0.0))
        inside = brain(clean)
        white = inside & (clean[..., T1W] > np.quantile(clean[..., T1W][inside], 0.6))
        ratio = noisy[..., T1W][white] / clean[..., T1W][white].astype(float)
        spread.append(ratio.std() * 64 / size)
    assert spread[0] == pytest.approx(spread[1], rel=0.1)


def test_splines_sum_to_one_and_fields_have_unit_variance():
    weights = spline_weights(np.linspace(-100, 100, 37), 200.0, 30.0)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    field = smooth_field(np.random.default_rng(0), VoxelGrid((48, 48, 155)), 12.0)
    assert field.std() == pytest.approx(1, rel=0.05)
    assert np.abs(np.diff(field, axis=2)).max() < 0.5


def test_written_files_are_the_layout_and_do_not_depend_on_shards(tmp_path):
    whole = write_patients(SETTINGS, tmp_path / "a", range(1, 10))
    shards = write_patients(SETTINGS, tmp_path / "b", [9, 3, 1]) | write_patients(
        SETTINGS, tmp_path / "b", [8, 2, 7, 4]
    )
    shards |= write_patients(SETTINGS, tmp_path / "b", [6, 5])
    assert whole == shards
    assert len(whole) == 9
    for name, facts in whole.items():
        data = (tmp_path / "a" / name).read_bytes()
        assert data == (tmp_path / "b" / name).read_bytes()
        assert facts == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        image = nib.load(tmp_path / "a" / name)
        assert image.shape[:3] == (64, 64, 24)
        np.testing.assert_allclose(image.header.get_zooms()[:3], (3.75, 3.75, 1))
        np.testing.assert_allclose(image.affine, VoxelGrid((64, 64, 24)).affine)
    image = nib.load(tmp_path / "a" / "imagesTr" / "BRATS_002.nii.gz")
    assert image.get_data_dtype() == np.int16
    assert image.header.get_xyzt_units()[0] == "mm"
    patient = simulate_patient(SETTINGS, 2)
    assert np.array_equal(np.asarray(image.dataobj), patient)


def test_dataset_json_names_every_file_and_participants_every_scanner(tmp_path):
    files = write_patients(SETTINGS, tmp_path, range(1, 10))
    write_dataset_json(SETTINGS, tmp_path)
    content = json.loads((tmp_path / "dataset.json").read_text())
    assert (
        content["modality"]
        == {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"}
        == dict(zip("0123", CHANNELS, strict=True))
    )
    assert (content["numTraining"], content["numTest"], content["tensorImageSize"]) == (6, 3, "4D")
    named = [entry["image"] for entry in content["training"]] + content["test"]
    assert sorted(named) == sorted(f"./{name}" for name in files)
    head, *rows = (tmp_path / "participants.tsv").read_text().splitlines()
    assert head == "participant_id\tscanner"
    assert rows == [f"{patient_name(n)}\t{scanner_of(SETTINGS, n) + 1}" for n in range(1, 10)]


def test_scanner_patients_are_honoured():
    settings = PhantomSettings(train_patients=20, test_patients=200, scanners=4, scanner_patients=(9, 0, 10, 1))
    training = [scanner_of(settings, number) for number in range(1, 21)]
    assert training == [0] * 9 + [2] * 10 + [3]
    test = [scanner_of(settings, number) for number in range(21, 221)]
    assert min(np.bincount(test, minlength=4)) > 25


def test_scanner_changes_the_scan_and_not_the_anatomy():
    first = PhantomSettings(train_patients=1, test_patients=0, scanners=2, scanner_patients=(1, 0))
    a, b = simulate_patient(first, 1), simulate_patient(replace(first, scanner_patients=(0, 1)), 1)
    assert np.array_equal(brain(a), brain(b))
    assert not np.array_equal(a, b)
