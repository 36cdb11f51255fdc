from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom.anatomy import Tissue
from zetadp.phantom.cohort import (
    POPULATIONS,
    CohortStream,
    patient_name,
    scanner_of,
    simulate_patient,
    write_dataset_json,
    write_patients,
)
from zetadp.phantom.settings import DRAWN, FIXED, Simulated, VoxelGrid

SETTINGS = Simulated(seed=5)
FLAIR, T1W, _, T2W = range(4)
FROZEN = {
    "standard": {
        1: (892698, -364248, -144337, 130504),
        2: (166332, -311693, -172428, 447909),
        180: (870109, -248673, -133570, 205189),
    },
    "vendor": {
        1: (261602, 82543, 70612, 45619),
        180: (60036, 34034, 12763, 42789),
    },
    "healthy": {
        1: (63083, 43523, -56153, 14471),
        180: (175060, 26138, -16110, 56156),
    },
    "heavy": {
        1: (153242, 30453, 13792, 29122),
        180: (110047, 33000, 2012, 37677),
    },
    "procedural": {
        1: (-4502, 26373, -32644, 19378),
        180: (97394, 44895, -17787, 27490),
    },
    "drawn": {
        1: (117799, 47157, -56781, 14556),
        180: (148041, 48041, -49418, -13606),
    },
}
"""Of patients of each population: projections of the sequences on fixed noise."""


@pytest.mark.parametrize("population", [*FIXED, DRAWN])
def test_cohorts_are_frozen(population):
    """A patient is a function of seed and number alone, in every version: public data were made without cohorts.

    The last bits of a matrix product depend on the processor, and with them the rounding of some integers of a volume,
    by one each; so hashes of volumes would differ between machines. A projection on noise of unit variance moves by
    about the square root of their number, and by thousands where a draw changes.
    """
    settings = Simulated(seed=2026, scanners=5, population=population)
    if population != "standard":
        settings = replace(settings, grid=[32, 32, 8])
    for number, projections in FROZEN[population].items():
        volume = simulate_patient(settings, number)
        noise = np.random.default_rng(0).standard_normal(volume.shape)
        np.testing.assert_allclose((volume * noise).sum(axis=(0, 1, 2)), projections, rtol=0, atol=40)
    assert not np.array_equal(volume, simulate_patient(replace(settings, seed=2027), number))


@pytest.mark.parametrize("population", FIXED)
def test_volumes_are_stripped_brains_with_the_contrasts_of_their_tissues(population, monkeypatch):
    """Fluid is bright in T2w and dark in FLAIR and T1w, where grey matter is darker than white."""
    monkeypatch.setitem(POPULATIONS, population, replace(POPULATIONS[population], lesions=None))
    for number in range(1, 5):
        volume = simulate_patient(replace(SETTINGS, population=population), number).astype(float)
        brain = POPULATIONS[population].brain(stream(5, Purpose.COHORT, CohortStream.SHAPE, number), SETTINGS.voxels())
        inside = brain.inside
        assert np.array_equal(inside, (volume > 0).all(axis=-1))
        assert np.array_equal(inside, (volume > 0).any(axis=-1))
        # Through its middle an adult brain is near an ellipse of 14 cm by 17 cm: 187 square centimetres.
        area = inside.sum(axis=(0, 1)) * 0.375**2
        assert 120 < area.min() <= area.max() < 260
        # Away from the surface, where receive fields are steep and the largest vessels lie.
        deep = ndimage.binary_erosion(inside, np.ones((5, 5, 1)))[inside]
        fluid, grey, white = (
            volume[inside][deep & (brain.healthy[tissue] > 0.9)].mean(axis=0)
            for tissue in (Tissue.CSF, Tissue.GREY, Tissue.WHITE)
        )
        assert fluid[T2W] > 1.5 * white[T2W], number
        assert fluid[FLAIR] < 0.8 * white[FLAIR], number
        assert fluid[T1W] < 0.8 * white[T1W], number
        assert grey[T1W] < white[T1W], number


def test_affine_places_the_first_voxel_left_to_right_front_to_back():
    affine = VoxelGrid((64, 48, 24)).affine
    assert nib.aff2axcodes(affine) == ("L", "P", "S")
    np.testing.assert_allclose(nib.affines.voxel_sizes(affine), (240 / 64, 240 / 48, 1))
    np.testing.assert_allclose(affine @ [31.5, 23.5, 11.5, 1], [0, -17, 10, 1])


def test_written_files_are_the_layout_and_do_not_depend_on_shards(tmp_path):
    whole = write_patients(SETTINGS, 6, tmp_path / "a", range(1, 10))
    shards = write_patients(SETTINGS, 6, tmp_path / "b", [9, 3, 1]) | write_patients(
        SETTINGS, 6, tmp_path / "b", [8, 2]
    )
    shards |= write_patients(SETTINGS, 6, tmp_path / "b", range(4, 8))
    assert whole == shards
    assert len(whole) == 9
    for name, facts in whole.items():
        data = (tmp_path / "a" / name).read_bytes()
        assert data == (tmp_path / "b" / name).read_bytes()
        assert facts == {"sha256": hashlib.sha256(data).hexdigest()}
    image = nib.load(tmp_path / "a" / "imagesTr" / "BRATS_002.nii.gz")
    assert image.header.get_xyzt_units()[0] == "mm"
    np.testing.assert_allclose(image.affine, VoxelGrid((64, 64, 24)).affine)
    assert image.get_data_dtype() == np.int16
    assert np.array_equal(np.asarray(image.dataobj), simulate_patient(SETTINGS, 2))
    write_dataset_json(SETTINGS, tmp_path, 6, 3)
    content = json.loads((tmp_path / "dataset.json").read_text())
    assert content["modality"] == {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"}
    assert (content["numTraining"], content["numTest"], content["tensorImageSize"]) == (6, 3, "4D")
    named = [entry["image"] for entry in content["training"]] + content["test"]
    assert sorted(named) == sorted(f"./{name}" for name in whole)
    head, *rows = (tmp_path / "participants.tsv").read_text().splitlines()
    assert head == "participant_id\tscanner"
    assert rows == [f"{patient_name(n)}\t{scanner_of(SETTINGS, n) + 1}" for n in range(1, 10)]


def test_dataset_json_says_what_the_patients_are(tmp_path):
    said = {}
    for population in (*FIXED, DRAWN):
        write_dataset_json(replace(SETTINGS, population=population), tmp_path / population, 6, 3)
        said[population] = json.loads((tmp_path / population / "dataset.json").read_text())
    assert "glioma" not in said["healthy"]["description"]
    assert "seed decides" in said[DRAWN]["description"]
    for key in ("reference", "licence"):
        assert "ICBM" in said["vendor"][key]
        assert "ICBM" not in said["procedural"][key]


def test_scanner_patients_are_honoured():
    settings = Simulated(scanners=4, scanner_patients=[9, 1, 10, 1])
    training = [scanner_of(settings, number) for number in range(1, 22)]
    assert training == [0] * 9 + [1] + [2] * 10 + [3]
    test = [scanner_of(settings, number) for number in range(22, 222)]
    assert min(np.bincount(test, minlength=4)) > 25


def test_scanner_changes_the_scan_and_not_the_anatomy():
    first = Simulated(seed=5, scanners=2, scanner_patients=[1, 9])
    second = replace(first, scanner_patients=[9, 1])
    a, b = simulate_patient(first, 5), simulate_patient(second, 5)
    assert np.array_equal(a > 0, b > 0)
    assert not np.array_equal(a, b)


FAULTS = [
    ({"scanners": 0}, "scanners"),
    ({"scanners": 2, "scanner_patients": [1, 2, 1]}, "scanner_patients"),
    ({"population": "healhty"}, "population .*'healthy'"),
    ({"grid": [64, 64]}, "grid"),
    ({"grid": [64, 4, 24]}, "grid"),
    ({"grid": [64, 64, 156]}, "grid"),
]


@pytest.mark.parametrize(("change", "named"), FAULTS)
def test_impossible_settings_are_refused(change, named):
    with pytest.raises(ValueError, match=named):
        Simulated(**change)


def test_procedural_brains_do_not_read_the_atlas(monkeypatch):
    def refuse(*_):
        pytest.fail("the atlas was read")

    monkeypatch.setattr("zetadp.phantom.anatomy.load_atlas", refuse)
    assert simulate_patient(replace(SETTINGS, population="procedural"), 2).any()
    with pytest.raises(pytest.fail.Exception, match="atlas was read"):
        simulate_patient(SETTINGS, 2)
