from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom.anatomy import HEALTHY, Tissue, VoxelGrid
from zetadp.phantom.cohort import (
    CohortStream,
    PhantomSettings,
    simulate_patient,
    write_dataset_json,
)
from zetadp.phantom.populations import DRAWN, POPULATIONS, drawn_population
from zetadp.phantom.public import PublicSettings

SETTINGS = PhantomSettings(train_patients=12, test_patients=0, seed=5)
FLAIR, T1W, _, T2W = range(4)


def of(population, **changes):
    return replace(SETTINGS, population=population, **changes)


def brain(patient):
    return (patient > 0).all(axis=-1)


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


@pytest.mark.parametrize("population", [*POPULATIONS, DRAWN])
def test_cohorts_are_frozen(population):
    """A patient is a function of seed and number alone, in every version: public data were made without cohorts.

    The last bits of a matrix product depend on the processor, and with them the rounding of some integers of a volume,
    by one each; so hashes of volumes would differ between machines. A projection on noise of unit variance moves by
    about the square root of their number, and by thousands where a draw changes.
    """
    settings = PhantomSettings(seed=2026, scanners=5, population=population)
    if population != "standard":
        settings = replace(settings, grid=(32, 32, 8))
    for number, projections in FROZEN[population].items():
        volume = simulate_patient(replace(settings, train_patients=number + 5), number)
        noise = np.random.default_rng(0).standard_normal(volume.shape)
        np.testing.assert_allclose((volume * noise).sum(axis=(0, 1, 2)), projections, rtol=0, atol=40)
    assert not np.array_equal(volume, simulate_patient(replace(settings, seed=2027), number))


@pytest.mark.parametrize("population", POPULATIONS)
def test_tissue_contrasts_hold(population, monkeypatch):
    """Fluid is bright in T2w and dark in FLAIR and T1w, where grey matter is darker than white."""
    monkeypatch.setitem(POPULATIONS, population, replace(POPULATIONS[population], lesions=None))
    settings = of(population)
    for number in range(1, 7):
        volume = simulate_patient(settings, number).astype(float)
        whole = POPULATIONS[population].brain(
            stream(5, Purpose.COHORT, CohortStream.SHAPE, number), VoxelGrid(settings.grid)
        )
        # Away from the surface, where receive fields are steep and the largest vessels lie.
        deep = ndimage.binary_erosion(whole.inside, np.ones((5, 5, 1)))[whole.inside]
        fluid, grey, white = (
            volume[whole.inside][deep & (whole.healthy[tissue] > 0.9)].mean(axis=0)
            for tissue in (Tissue.CSF, Tissue.GREY, Tissue.WHITE)
        )
        assert fluid[T2W] > 1.5 * white[T2W], number
        assert fluid[FLAIR] < 0.8 * white[FLAIR], number
        assert fluid[T1W] < 0.8 * white[T1W], number
        assert grey[T1W] < white[T1W], number


def test_nobody_has_a_tumour_in_a_healthy_population():
    whole = POPULATIONS["healthy"].brain(np.random.default_rng(0), VoxelGrid((32, 32, 24)))
    for seed in range(5):
        assert not POPULATIONS["healthy"].tissue(np.random.default_rng(seed), whole)[HEALTHY:].any()


FAULTS = [
    (PhantomSettings, {"scanners": 0}, "scanners"),
    (PhantomSettings, {"train_patients": 4, "scanners": 2, "scanner_patients": (1, 2, 1)}, "scanner_patients"),
    (PhantomSettings, {"train_patients": 4, "scanners": 2, "scanner_patients": (1, 2)}, "scanner_patients"),
    (PhantomSettings, {"population": "healhty"}, "population .*'healthy'"),
    (PublicSettings, {"grid": (64, 64)}, "grid"),
    (PhantomSettings, {"grid": (64, 4, 24)}, "grid"),
    (PhantomSettings, {"grid": (64, 64, 156)}, "grid"),
]


@pytest.mark.parametrize(("kind", "change", "named"), FAULTS)
def test_impossible_settings_are_refused(kind, change, named):
    with pytest.raises(ValueError, match=named):
        kind(**change)


def test_procedural_brains_do_not_read_the_atlas(monkeypatch):
    def refuse(*_):
        pytest.fail("the atlas was read")

    expected = simulate_patient(of("procedural"), 2)
    monkeypatch.setattr("zetadp.phantom.anatomy.load_atlas", refuse)
    monkeypatch.setattr("nibabel.Nifti1Image.from_filename", refuse)
    assert np.array_equal(simulate_patient(of("procedural"), 2), expected)
    with pytest.raises(pytest.fail.Exception, match="atlas was read"):
        simulate_patient(SETTINGS, 2)


def test_dataset_json_says_what_the_patients_are(tmp_path):
    said = {}
    for population in (*POPULATIONS, DRAWN):
        write_dataset_json(of(population, grid=(16, 16, 8)), tmp_path / population)
        said[population] = json.loads((tmp_path / population / "dataset.json").read_text())
    assert "glioma" not in said["healthy"]["description"]
    assert "seed decides" in said[DRAWN]["description"]
    for key in ("reference", "licence"):
        assert "ICBM" in said["vendor"][key]
        assert "ICBM" not in said["procedural"][key]


def test_the_seed_alone_decides_the_character_of_a_drawn_population():
    ones = [drawn_population(seed) for seed in range(40)]
    assert ones[3] == drawn_population(3)
    assert len(set(ones)) == len(ones)
    for one in ones:
        assert one.lesions.radius[0] < one.lesions.radius[1]
        assert one.lesions.oedema[0] < one.lesions.oedema[1]
