"""What the name of a file says about the volume in it: its sequence, or that it was computed from a scan.

A name is never guessed at: if it can be read in two ways, both readings are returned, and the user decides.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from itertools import pairwise

from zetadp.base.validation import UserError
from zetadp.mri.decathlon import SEQUENCES, canonical_sequence

NEITHER = "none"
"""Word for no sequence in a user's rules."""

WITH = {"with", "w", "mit", "avec", "con", "com", "met", "med"}
"""Words for "with" in English, German, French, Spanish or Italian, Portuguese, Dutch, and Scandinavian languages."""
WITHOUT = {
    *("without", "wo", "no", "non", "not", "un"),
    *("ohne", "kein", "keine", "sans", "ss", "sin", "senza", "sem", "zonder", "geen", "utan", "uden", "uten", "bez"),
}
"""Words for "without", also in Polish and Czech."""
BEFORE = {"before", "pre", "vor", "avant", "antes", "prima", "voor", "innan", "fore", "przed", "pred"}
AFTER = {
    "after",
    "post",
    "pos",
    "nach",
    "apres",
    "despues",
    "tras",
    "dopo",
    "apos",
    "depois",
    "na",
    "efter",
    "etter",
    "po",
}
"""Words for "after": after contrast, or after an operation."""
PLAIN = {"native", "nativ", "nativo", "nativa", "natif", "noncon", "precon", "basal", "basale", "blanco", "simple"}
"""Words for an image without contrast."""
FILLERS = {"de", "del", "di", "da", "do", "van", "the", "i", "v", "iv", "agent", "agente", "medio", "mezzo", "produit"}
"""Words that may stand between "without" and the contrast agent."""

_AGENT = (
    r"gd(?:dtpa|enh)?|gad(?:o(?:lin\w*|butrol|ter\w*|pent\w*|benat\w*|vist)?|avist)?|gbca|dtpa|km|pdc|mdc|civ"
    r"|[ck]ontrast\w*|enh(?:anced?|ancement)?|inj(?:ec\w*)?|dotarem|magnevist|prohance|multihance|omniscan|clariscan"
)
AGENT = re.compile(rf"{_AGENT}|ce")
"""Words for a contrast agent, or for an image that shows it."""
_NEGATED = re.compile(r"[ck]ontrast\w*?(?:frei|free|less|los|siz|suz|mentes)")
"""Words for "without contrast" in which the negation comes last, as in German, Turkish or Hungarian."""

_RELATIONS = "|".join(sorted(WITH | WITHOUT | BEFORE | AFTER, key=len, reverse=True))
_T1_AND_MORE = re.compile(rf"(t1w?)({_RELATIONS})?({_AGENT}|ce)?")
_RELATION_AND_AGENT = re.compile(rf"({_RELATIONS})({_AGENT})")

COMPUTED = {
    *("map", "mask", "maske", "masken", "masker", "masque", "mascara", "maschera", "seg", "segm", "label", "labels"),
    *("lbl", "etiqueta", "etiquetas", "rotulo", "roi", "rois", "voi", "pve", "prob", "mixeltype", "aparc", "wmparc"),
    *(
        "desc",
        "gm",
        "wm",
        "csf",
        "xfm",
        "warp",
        "jacobian",
        "jac",
        "biasfield",
        "lesion",
        "lesions",
        "lasion",
        "lesione",
    ),
    *("lesie", "subtraction", "subtracted", "subtr", "subtraktion", "soustraction", "sustraccion", "sottrazione"),
}
"""Words of images that were computed from a scan: BIDS's derivatives, and those of FSL, SPM, ANTs and others."""
_COMPUTED = re.compile(r"(?:segment|posterior|probab|parcel)\w*|\w*(?:mask|masks|seg|pve|label|labels|prob|map|maps)")
_OF_SPM = r"s?(?:mw|w|r|rp)?c[1-6]|s?m?w?p[0-3]|rp[1-3]|i?y_"
"""What SPM writes before the name of a scan to name tissue maps and deformations."""
OTHERS = {"star", "swi", "swan", "dwi", "adc", "dti", "dsc", "dce", "asl", "bold", "perf", "perfusion", "tof", "mra"}
"""Words of other kinds of images, such as T2*."""

_LATIN = str.maketrans({"ø": "o", "ł": "l", "ı": "i", "æ": "ae", "œ": "oe", "đ": "d", "ß": "ss"})


def readings(name: str, owner: str = "") -> tuple[str, ...]:
    """Return the sequences that a file's name can mean: none, one, or several if the user must decide.

    Parameters
    ----------
    name
        Name of the file without its ending.
    owner
        Name of the folder of the scan. Its words are about the person, so they decide nothing, but where they seem to,
        the user is asked.

    Examples
    --------
    >>> readings("P7_T1_axial_post_gd"), readings("P7_ce-gd_T1w"), readings("P7_T1_post"), readings("P7_T1_mask")
    (('T1gd',), ('T1gd',), ('T1w', 'T1gd'), ())
    >>> readings("P7_T1_ohne_KM"), readings("P7_T1_avec_gado"), readings("KM_T1", "KM")
    (('T1w',), ('T1gd',), ('T1w', 'T1gd'))
    """
    rest = name.removeprefix(owner)
    alone = () if is_computed(name, owner) else _readings(rest)
    if rest == name:
        return alone
    # The person's name may hold letters that no word of this module has.
    whole = _readings(re.sub(r"[^\x00-\x7f]", " ", name))
    return tuple(sequence for sequence in SEQUENCES if sequence in {*alone, *whole})


def is_computed(name: str, owner: str = "") -> bool:
    """Return whether a file's name says that its volume was computed from a scan: a mask, labels, a tissue map.

    Parameters are those of `readings`.
    """
    if owner and re.match(rf"(?:{_OF_SPM}){re.escape(owner)}", name, re.IGNORECASE):
        return True
    words = [re.sub(r"(?<=[a-z])\d+$", "", word) for word in _words(name.removeprefix(owner))]
    return any(word in COMPUTED or _COMPUTED.fullmatch(word) for word in words)


def fits(file: str, pattern: str) -> bool:
    """Return whether a pattern fits a file, by its name or, if the pattern holds a ``/``, by its path.

    Examples
    --------
    >>> fits("P1/t2.nii.gz", "t2*"), fits("P1/t2.nii.gz", "P1/*"), fits("P2/t2.nii.gz", "P1/*")
    (True, True, False)
    """
    return fnmatch(file if "/" in pattern else file.rpartition("/")[2], pattern)


def apply_rules(file: str, rules: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the result of the first of the user's rules that fits a file's path, or None if none fits."""
    for pattern, sequence in rules.items():
        if fits(file, pattern):
            return () if sequence == NEITHER else (sequence,)
    return None


def read_rules(texts: Iterable[str]) -> dict[str, str]:
    """Read rules such as ``*_post*=T1gd``.

    Raises
    ------
    UserError
        If a rule is not a pattern and a sequence.
    """
    rules = {}
    for text in texts:
        pattern, _, name = text.rpartition("=")
        sequence = NEITHER if name == NEITHER else canonical_sequence(name)
        if not pattern or sequence is None:
            expected = ", ".join((*SEQUENCES, NEITHER))
            raise UserError(f"Expected PATTERN=SEQUENCE with one of {expected} as the sequence, found {text!r}.")
        rules[pattern] = sequence
    return rules


def _readings(name: str) -> tuple[str, ...]:
    words = _words(name)
    if is_computed(name) or not OTHERS.isdisjoint(words):
        return ()
    pairs = {canonical_sequence(first + second) for first, second in pairwise(words)} - {None}
    single = {canonical_sequence(word) for word in words} - {None}
    sequences = single | pairs
    if "FLAIR" in sequences and "T1w" not in single:
        sequences -= {"T2w"}  # of T2-FLAIR
    if "T1gd" in sequences:
        sequences -= {"T1w"}  # of T1-Gd
    if sequences and sequences <= {"T1w", "T1gd"}:
        sequences = _with_or_without_contrast(name, words, has_t1gd="T1gd" in sequences)
    return tuple(sequence for sequence in SEQUENCES if sequence in sequences)


def _plain(name: str) -> str:
    """Return a name in small letters without accents."""
    folded = unicodedata.normalize("NFKD", name.casefold()).translate(_LATIN)
    return "".join(character for character in folded if not unicodedata.combining(character))


def _words(name: str) -> list[str]:
    """Return the words of a name in small letters; ``t1gd`` is split into ``t1`` and ``gd``, ``ohneKM`` likewise."""
    words: list[str] = []
    for written in re.split(r"[^a-z0-9]+", _plain(name)):
        word = re.sub(r"^[23]d(?=.)", "", written)
        together = _T1_AND_MORE.fullmatch(word) or _RELATION_AND_AGENT.fullmatch(word)
        words += [part for part in together.groups() if part] if together else [word]
    return [word for word in words if word]


def _with_or_without_contrast(name: str, words: list[str], *, has_t1gd: bool) -> set[str | None]:
    """Return the T1-weighted sequences that the words of a name can mean.

    Parameters
    ----------
    name, words
        The name and its words.
    has_t1gd
        Whether a word is a spelling of T1gd.
    """
    plain, contrast, used = False, has_t1gd, set()
    for position, word in enumerate(words):
        if _NEGATED.fullmatch(word):
            plain = True
        elif AGENT.fullmatch(word):
            before = next((index for index in range(position - 1, -1, -1) if words[index] not in FILLERS), None)
            relation = "" if before is None else words[before]
            # "pre" with a name of an agent may also mean: before an operation, with contrast.
            negates = relation in WITHOUT | BEFORE and (relation != "pre" or "ontrast" in word)
            plain, contrast = plain or negates, contrast or not negates
            if negates or relation in WITH | AFTER:
                used.add(before)
    rest = {word for position, word in enumerate(words) if position not in used}
    plain = plain or bool(rest & (WITHOUT | BEFORE | PLAIN))
    # A single "w" is mostly that of T1w, but in "w_wo_contrast" it means "with".
    unclear = not contrast and rest & ((AFTER | WITH) - ({"w"} if not plain else set()))
    minus = re.search(r"c-(?:_|$)", _plain(name))
    foreign = not contrast and not plain and re.search(r"[^\W\d_a-z]", _plain(name))
    if (contrast and plain) or unclear or minus or foreign:
        return {"T1w", "T1gd"}
    return {"T1gd"} if contrast else {"T1w"}
