import numpy as np
import pandas as pd
import pytest
from run_builder import SEQUENCES, predictions
from scipy.stats import binomtest

from zetadp.base.validation import UserError
from zetadp.brain.images import volume_accuracy
from zetadp.training.metrics import accuracy_interval, mean_interval
from zetadp.training.metrics import summarise as summarise_classes


def summarise(table, names):
    return summarise_classes(table, names, "sequence")


def rows(*entries):
    return pd.DataFrame(entries, columns=["patient", "sequence", "slice", "predicted", "probability"])


EXAMPLE = rows(
    ("a", "FLAIR", 0, "FLAIR", 0.9),
    ("a", "FLAIR", 1, "FLAIR", 0.6),
    ("a", "T1w", 0, "T1w", 0.8),
    ("a", "T1w", 1, "T1gd", 0.5),
    ("b", "T1gd", 0, "T1w", 0.7),
    ("b", "T1gd", 1, "T1w", 0.4),
    ("b", "T2w", 0, "T2w", 0.9),
)


def test_summary_agrees_with_a_count_by_hand():
    found = summarise(EXAMPLE, SEQUENCES)
    assert (found["images"], found["patients"]) == (7, 2)
    assert found["accuracy"] == pytest.approx(4 / 7)
    assert found["confusion"] == [[2, 0, 0, 0], [0, 1, 1, 0], [0, 2, 0, 0], [0, 0, 0, 1]]
    assert found["per_class"]["T1w"] == pytest.approx({"recall": 1 / 2, "precision": 1 / 3, "f1": 2 / 5})
    assert found["per_class"]["T1gd"] == {"recall": 0.0, "precision": 0.0, "f1": 0.0}
    assert found["balanced_accuracy"] == pytest.approx((1 + 1 / 2 + 0 + 1) / 4)
    assert found["macro_f1"] == pytest.approx((1 + 2 / 5 + 0 + 1) / 4)
    assert found["per_patient"] == pytest.approx({"a": 3 / 4, "b": 1 / 3})
    assert found["per_patient_images"] == {"a": 4, "b": 3}


def test_volume_vote_goes_to_the_majority_then_to_the_larger_probability():
    # a/T1w ties one to one; T1w has the larger probability. b/T1gd is lost. Three of four volumes are right.
    assert volume_accuracy(EXAMPLE, SEQUENCES) == pytest.approx(3 / 4)
    tied = EXAMPLE.assign(probability=[0.9, 0.6, 0.4, 0.5, 0.7, 0.4, 0.9])
    assert volume_accuracy(tied, SEQUENCES) == pytest.approx(2 / 4)
    outvoted = rows(("a", "T2w", 0, "T2w", 0.99), ("a", "T2w", 1, "T1w", 0.3), ("a", "T2w", 2, "T1w", 0.3))
    assert volume_accuracy(outvoted, SEQUENCES) == 0


def test_a_follow_up_scan_is_a_volume_of_its_own():
    right = rows(("a", "T1w", 0, "T1w", 0.6), ("b", "T1w", 0, "T1w", 0.6)).assign(record=["a1", "b1"])
    wrong = rows(("a", "T1w", 0, "T2w", 0.9)).assign(record="a2")
    both = pd.concat([right, wrong], ignore_index=True)
    assert summarise(both, SEQUENCES)["per_patient"] == {"a": 1 / 2, "b": 1}
    assert volume_accuracy(both, SEQUENCES) == pytest.approx(2 / 3)


def test_interval_resamples_patients_not_images():
    # Two kinds of patients, all right or all wrong: images add nothing, so more of them must not narrow the interval.
    right = {f"p{number}": 20 * (number % 2) for number in range(20)}
    few = summarise(predictions(right, slices=5), SEQUENCES)["accuracy_interval"]
    many = summarise(predictions({p: 4 * n for p, n in right.items()}, slices=20), SEQUENCES)["accuracy_interval"]
    assert (few["low"], few["high"]) == pytest.approx((many["low"], many["high"]))
    # Standard error of a share of one half over 20 patients: 0.112; the normal interval is 0.438 wide.
    assert few["high"] - few["low"] == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 20), rel=0.15)


@pytest.mark.parametrize(("right", "of"), [(4, 4), (0, 4), (3, 4)])
def test_patients_who_are_all_alike_leave_the_accuracy_of_others_open(right, of):
    images = of * np.array([1, 2] * 100)  # patients may have different numbers of images
    for runs in (1, 3):
        times = np.ones((1, runs))
        low, high = accuracy_interval(
            (right / of * images)[:, None] * times, images[:, None] * times, np.random.default_rng(0)
        )
        exact = binomtest(200 * right // of, 200).proportion_ci(method="exact")
        assert (low, high) == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert np.isnan(accuracy_interval(images[:1], images[:1], np.random.default_rng(0))).all()


def test_seeds_share_the_resampled_patients():
    # Seeds that agree on every patient carry no more information about patients than one seed.
    generator = np.random.default_rng(3)
    right, images = generator.binomial(80, generator.beta(8, 2, size=40)), np.full(40, 80)
    alone = accuracy_interval(right, images, np.random.default_rng(0))
    five = accuracy_interval(
        np.repeat(right[:, None], 5, axis=1), np.repeat(images[:, None], 5, axis=1), np.random.default_rng(0)
    )
    assert five == pytest.approx(alone)
    # Seeds whose errors cancel patient by patient leave nothing to be uncertain about.
    mirrored = np.stack([right, 80 - right], axis=1)
    low, high = mean_interval(mirrored, np.full((40, 2), 80), np.random.default_rng(0))
    assert (low, high) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (EXAMPLE.iloc[:0], "found none"),
        (EXAMPLE.assign(predicted="T2"), "Did you mean 'T2w'"),
        (EXAMPLE.assign(sequence="flair"), "found 'flair'"),
        (pd.concat([EXAMPLE, EXAMPLE.iloc[:1]]), "patient a, sequence FLAIR, slice 0"),
        (EXAMPLE.assign(probability=np.nan), "probability"),
        (EXAMPLE.assign(probability=1.5), "probability"),
    ],
)
def test_bad_predictions_are_refused_by_name(table, message):
    with pytest.raises(UserError, match=message):
        summarise(table, SEQUENCES)
