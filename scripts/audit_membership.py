"""Infer from finished models which patients were in their training data, and compare the result with the claim."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from zetadp.audit.membership import audit_membership, refutation
from zetadp.audit.settings import NODES, MembershipSettings
from zetadp.base.storage import written_whole
from zetadp.base.validation import UserError
from zetadp.base.workflow import run
from zetadp.brain.images import to_records
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.nn.models import NetworkSettings
from zetadp.phantom.cohort import simulate_patient
from zetadp.phantom.settings import Simulated
from zetadp.report.attackfigure import membership_roc
from zetadp.report.figurestyle import save_svg

GRID = [64, 64, 24]
SLICES, SIZE = 4, 16
"""Number of images of each sequence, and their side."""


def main(*, table: Path, picture: Path, settings: MembershipSettings, delta: float) -> None:
    """Attack models of newly simulated patients, write table and picture, and end in an error if a claim is refuted."""
    # Softmax regression, of which hundreds train in seconds.
    attacks, claims = audit_membership(
        settings, NetworkSettings("linear"), to_records(simulate_kspace(settings), torch.device("cpu")), delta
    )
    rows = pd.concat(
        [
            attack.band.assign(
                arm=attack.arm,
                patient=attack.patient + 1,
                trials_out=len(attack.scores_out),
                trials_in=len(attack.scores_in),
                accuracy_members=attack.accuracy_members,
                accuracy_others=attack.accuracy_others,
            )
            for attack in attacks
        ]
    )
    first = ["arm", "patient", "trials_out", "trials_in", "accuracy_members", "accuracy_others"]
    with written_whole(table) as temporary:
        rows[[*first, *rows.columns.difference(first, sort=False)]].to_csv(temporary, index=False)
    save_svg(membership_roc(attacks, claims, f"{settings.patients} simulated patients"), picture)
    for attack in attacks:
        logging.getLogger(__name__).info(
            "%s: %s", attack.arm, "leaves the region of the claim" if attack.leaves("server") else "stays inside"
        )
    # Snakemake deletes the outputs of a job that fails: copy them, so that they can be examined.
    copies = {path: path.with_name(f"refuted-{path.name}") for path in (table, picture)}
    fault = refutation(attacks, claims, copies[table])
    for path, copy in copies.items():
        if fault is None:
            copy.unlink(missing_ok=True)
        else:
            shutil.copyfile(path, copy)
    if fault is not None:
        raise UserError(fault)


def simulate_kspace(settings: MembershipSettings) -> np.ndarray:
    """Return whitened k-space of patients who are in no other experiment."""
    phantom = Simulated(seed=settings.seed, grid=GRID, scanners=NODES)
    planes = centre_slices(GRID[2], SLICES)
    numbers = range(1, settings.patients + 1)
    volumes = np.stack([simulate_patient(phantom, number)[:, :, planes] for number in numbers])
    slices = resize_area(np.ascontiguousarray(volumes.transpose(0, 4, 3, 2, 1), dtype=np.float32), SIZE)
    return whiten(to_kspace(slices))


if __name__ == "__main__":
    run(main)
