"""Whose each item is, from outside: ids of patients in a list, an array, a tensor or a column of a table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from zetadp.base.arrays import exact_up_to, has_mask
from zetadp.base.names import check_distinct
from zetadp.base.validation import UserError, shown


def checked_owners(owners: Iterable[Any], where: str) -> list[str | bytes | int]:
    """Return the owner of each item; a scalar of NumPy or PyTorch becomes the number or text that it holds.

    Parameters
    ----------
    owners
        Owner of each item, such as its patient: texts, also as bytes in UTF-8, or whole numbers, in a list, an array, a
        tensor or a column of a table.
    where
        The argument or file that gave them, for the message.

    Raises
    ------
    UserError
        If the owner of an item is missing or is neither a text nor a whole number, or if two have one `name_key`.
    """
    if isinstance(owners, str):
        raise UserError(f"{where}: Expected one id for each item, found a text. Give a list of ids.")
    if has_mask(owners):
        raise UserError(
            f"{where}: Expected an id for each item, found a masked array. Leave items of nobody out: they may be "
            "anybody's."
        )
    exact = exact_up_to(getattr(owners, "dtype", None))
    ids: list[Any] = []
    for item, one in enumerate(owners):
        scalar = isinstance(one, np.generic) or (isinstance(one, Tensor) and one.ndim == 0)
        owner = one.item() if scalar else one
        ids.append(owner)
        most = min(exact, exact_up_to(one.dtype if scalar else np.dtype(float)))
        if isinstance(owner, float) and owner.is_integer() and abs(owner) >= most:
            raise UserError(
                f"{where}: Expected ids that their type holds exactly, found {owner:.0f} for item {item}, in a type "
                f"that is exact below {most:.0f} only: different ids may have become one. Read ids as whole numbers or "
                "texts."
            )
    for item, owner in enumerate(ids):
        if isinstance(owner, set | frozenset | list | np.ndarray | range | slice) or not isinstance(owner, Hashable):
            raise UserError(
                f"{where}: Expected one id for each item, found {shown(repr(owner))[:80]} for item {item}. ids[i] is "
                "the patient of item i. An item of several patients moves with each of them: give all items of these "
                "patients one common id, which makes them one unit."
            )
        # What is missing in a table is None, NA, or unequal to itself (NaN and NaT).
        if owner is None or owner is pd.NA or owner != owner or owner == "":
            raise UserError(
                f"{where}: Expected an id for each item, found {owner!r} for item {item}. Leave items of nobody out: "
                "they may be anybody's."
            )
        if isinstance(owner, bool):
            raise UserError(f"{where}: Expected ids, found {owner} for item {item}. A mask does not name patients.")
        if isinstance(owner, float) and owner.is_integer():
            ids[item] = int(owner)
        elif not isinstance(owner, str | int) and not (
            isinstance(owner, bytes) and owner.decode(errors="ignore").encode() == owner
        ):
            # The next process must write the id in the same way, or the account would not recognise the patient.
            raise UserError(
                f"{where}: Expected texts, texts in UTF-8 or whole numbers, found {shown(repr(owner))[:80]} for item "
                f"{item}. Write each id as one text, such as f'{{site}} {{number}}'."
            )
    check_distinct(ids, where)
    return ids
