from __future__ import annotations

import pytest

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import bids_readings, read_rules, readings, told

BOTH = ("T1w", "T1gd")


@pytest.mark.parametrize(
    ("name", "sequences"),
    [
        ("P7_flair", ("FLAIR",)),
        ("P7_T2_tra_FLAIR", ("FLAIR",)),
        ("P7_T2-FLAIR_post_gd", ("FLAIR",)),
        ("P7-t2w", ("T2w",)),
        ("P7_T1", ("T1w",)),
        ("P7_T1w_pre", ("T1w",)),
        ("P7_T1_native", ("T1w",)),
        ("BraTS-GLI-00001-000-t1n", ("T1w",)),
        ("BraTS-GLI-00001-000-t1c", ("T1gd",)),
        ("P7_T1_axial_post_gd", ("T1gd",)),
        ("P7_T1_tra_Gd_MPRAGE", ("T1gd",)),
        ("P7_T1_KM", ("T1gd",)),
        ("P7_T1_post_contrast", ("T1gd",)),
        ("P7_T1postGd", ("T1gd",)),
        ("P7_ce-gd_T1w", ("T1gd",)),
        ("P7_T1_post", BOTH),
        ("P7_T1_pre_gd", BOTH),
        ("P7_T1_without_contrast", BOTH),
        ("P7_T1_FLAIR", ("FLAIR", "T1w")),
        ("P7_T1_to_T2", ("T1w", "T2w")),
        ("P7_T1_mask", ()),
        ("P7_seg", ()),
        ("P7_DWI", ()),
        ("P7_T2star", ()),
    ],
)
def test_names_are_read_by_their_words(name, sequences):
    assert readings(name) == sequences


@pytest.mark.parametrize(
    ("name", "sequences"),
    [
        ("sub-01_T1w", ("T1w",)),
        ("sub-01_ses-post_T1w", ("T1w",)),
        ("sub-01_ce-gadolinium_T1w", ("T1gd",)),
        ("sub-01_ses-post_acq-mprage_ce-gd_run-1_T1w", ("T1gd",)),
        ("sub-01_acq-postgd_T1w", BOTH),
        ("sub-01_FLAIR", ("FLAIR",)),
        ("sub-01_ce-gd_T2w", ()),
        ("sub-01_T2star", ()),
    ],
)
def test_bids_names_are_read_by_suffix_and_contrast_agent(name, sequences):
    assert bids_readings(name) == sequences


def test_a_users_rule_holds_and_the_first_that_fits():
    rules = read_rules(["*_post*=t1ce", "*T1*=none"])
    assert told("P7_T1_post.nii.gz", rules) == ("T1gd",)
    assert told("P7_T1.nii.gz", rules) == ()
    assert told("P7_T2.nii.gz", rules) is None


@pytest.mark.parametrize("rule", ["T1gd", "=T1gd", "*post=DWI"])
def test_a_rule_that_is_none_is_refused(rule):
    with pytest.raises(UserError, match="PATTERN=SEQUENCE"):
        read_rules([rule])
