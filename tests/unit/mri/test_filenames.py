from __future__ import annotations

import pytest

from zetadp.mri.filenames import is_computed, readings

MEANINGS = {
    ("FLAIR",): ("P7_flair", "P7_T2_tra_FLAIR", "P7_T2-FLAIR_post_gd", "P7_3DFLAIR"),
    ("T1w",): (
        *("P7_T1", "P7_T1w_pre", "P7_T1_native", "BraTS-GLI-00001-000-t1n", "P7_T1_without_contrast", "P7_3DT1"),
        *("T1_ohne_KM", "T1ohneKM", "T1_vor_KM", "T1_sans_injection", "T1_sans_produit_de_contraste", "T1_avant_gado"),
        *("T1_sin_contraste", "T1_senza_mdc", "T1_sem_contraste", "T1_zonder_contrast", "T1_uden_kontrast"),
        *("T1_non_injecte\u0301", "T1_kontrastmittelfrei", "T1_WO_CONTRAST", "T1_pre_contrast", "T1_noncontrast"),
    ),
    ("T1gd",): (
        *("BraTS-00001-000-t1c", "P7_T1_axial_post_gd", "P7_T1_tra_Gd_MPRAGE", "P7_T1_KM", "P7_T1postGd"),
        *("T1_mit_KM", "T1mitKM", "T1_nach_KM", "T1_avec_injection", "T1_apres_gado", "T1_con_contraste"),
        *("T1_con_mdc", "T1_com_contraste", "T1_met_contrast", "T1_med_kontrast", "T1_inject\u00e9e", "T1_W_CONTRAST"),
    ),
    ("T2w",): ("P7-t2w",),
    ("T1w", "T1gd"): (
        *("P7_T1_post", "P7_T1_pre_gd", "T1_nach", "T1_apr\u00e8s", "T1_con", "T1_w_wo_contrast"),
        *(
            "T1_con_y_sin_contraste",
            "T1_vor_und_nach_KM",
            "T1_C-",
            "T1_\u0441_\u043a\u043e\u043d\u0442\u0440\u0430\u0441\u0442\u043e\u043c",
        ),
    ),
    ("FLAIR", "T1w"): ("P7_T1_FLAIR",),
    (): (
        *("P7_T1_mask", "P7_seg", "P7_DWI", "P7_T2star", "P7_T2_star", "T1_brainmask", "FLAIR_dseg", "T1_pve_0"),
        *("mod-T1w_defacemask", "T1w_label-GM_probseg", "desc-preproc_T1w", "T1_Maske", "T1_masque", "T1_mascara"),
        *("T1map", "T1_wm", "T1_Segmentation", "T2_lesions", "T1_seg2", "T1_subtraction"),
    ),
}


@pytest.mark.parametrize("sequences", MEANINGS)
def test_names_are_read_by_their_words(sequences):
    assert {name: readings(name) for name in MEANINGS[sequences]} == dict.fromkeys(MEANINGS[sequences], sequences)


def test_words_about_a_person_decide_nothing():
    assert readings("Segura_T1", "Segura") == readings("mask1_T1", "mask1") == ("T1w",)
    assert readings("\u0418\u0432\u0430\u043d_T1", "\u0418\u0432\u0430\u043d") == ("T1w",)
    assert readings("KM_T1", "KM") == readings("P7_gd_T1", "P7_gd") == ("T1w", "T1gd")
    assert readings("P7_T1", "P7_T1") == ("T1w",)
    assert is_computed("c1P7_T1", "P7")
    assert is_computed("mwp2P7_T1", "P7")
    assert not is_computed("C1_T1", "C1")
