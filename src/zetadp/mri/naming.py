"""Recognition of a file's pulse sequence from the words of its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from itertools import pairwise

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import SEQUENCES, canonical_sequence

NEITHER = "none"
"""Word for no sequence in a user's rules."""

CONTRAST = {"gd", "gad", "gado", "gadolinium", "ce", "km", "contrast", "enhanced", "postcontrast", "postgd", "postgad"}
PLAIN = {"pre", "precontrast", "native", "nativ", "noncontrast", "unenhanced", "non", "no", "without"}
UNCLEAR = {"post"}
"""After contrast, or after an operation."""

DERIVED = {"map", "mask", "seg", "segmentation", "label", "labels", "roi"}
"""Words of files that were computed from a sequence, such as a mask, and hold none."""

_T1_AND_MORE = re.compile(r"(t1w?)(post)?(gd|gad|gado|gadolinium|ce|km|pre)?")


def readings(name: str) -> tuple[str, ...]:
    """Return the sequences that a file's name can mean: none, one, or several if the user must decide.

    Examples
    --------
    >>> readings("P7_T1_axial_post_gd"), readings("P7_ce-gd_T1w"), readings("P7_T1_post"), readings("P7_T1_mask")
    (('T1gd',), ('T1gd',), ('T1w', 'T1gd'), ())
    """
    words = _words(name)
    if DERIVED & set(words):
        return ()
    pairs = {canonical_sequence(first + second) for first, second in pairwise(words)} - {None}
    single = {canonical_sequence(word) for word in words} - {None}
    found = single | pairs
    if "FLAIR" in found and "T1w" not in single:
        found -= {"T2w"}  # of T2-FLAIR
    if "T1gd" in found:
        found -= {"T1w"}  # of T1-Gd
    if found <= {"T1w", "T1gd"} and found:
        found = _with_or_without_contrast(found, set(words))
    return tuple(sequence for sequence in SEQUENCES if sequence in found)


def bids_readings(name: str) -> tuple[str, ...]:
    """Return the sequences that a BIDS name can stand for, by its suffix and its entity ``ce``.

    If another entity suggests contrast, such as ``acq-postgd``, there are two, and the user must decide.
    """
    *entities, suffix = name.split("_")
    enhanced = any(entity.startswith("ce-") for entity in entities)
    if suffix == "T1w":
        others = [entity for entity in entities if not entity.startswith(("sub-", "ses-"))]
        return ("T1gd",) if enhanced else tuple(sorted({"T1w", *readings("_".join([*others, suffix]))}, reverse=True))
    return (suffix,) if suffix in ("FLAIR", "T2w") and not enhanced else ()


def told(file: str, rules: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the result of the first of the user's rules that fits a file, or None if none fits."""
    for pattern, sequence in rules.items():
        if fnmatch(file, pattern):
            return () if sequence == NEITHER else (sequence,)
    return None


def read_rules(texts: Iterable[str]) -> dict[str, str]:
    """Read rules such as ``*_post*=T1gd``.

    Raises
    ------
    UserError
        If a rule is not a pattern and a sequence.
    """
    found = {}
    for text in texts:
        pattern, _, name = text.rpartition("=")
        sequence = NEITHER if name == NEITHER else canonical_sequence(name)
        if not pattern or sequence is None:
            expected = ", ".join((*SEQUENCES, NEITHER))
            raise UserError(f"Expected PATTERN=SEQUENCE with one of {expected} as the sequence, found {text!r}.")
        found[pattern] = sequence
    return found


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case; a word such as ``t1gd`` is split into ``t1`` and ``gd``."""
    found = []
    for word in re.split(r"[^a-z0-9]+", name.lower()):
        together = _T1_AND_MORE.fullmatch(word)
        found += [part for part in together.groups() if part] if together else [word]
    return [word for word in found if word]


def _with_or_without_contrast(found: set[str | None], words: set[str]) -> set[str | None]:
    contrast, plain = "T1gd" in found or bool(CONTRAST & words), bool(PLAIN & words)
    if contrast != plain:
        return {"T1gd"} if contrast else {"T1w"}
    return {"T1w", "T1gd"} if contrast or UNCLEAR & words else found
