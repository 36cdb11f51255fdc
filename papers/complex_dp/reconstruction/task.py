"""Reconstruct images from accelerated single-coil k-space (Ziller et al., section 5.5). The unit is the patient.

The paper protects single slices, but a patient has many slices. Here all slices of a patient make one contribution,
which is clipped once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd

from papers.complex_dp.reconstruction.settings import Examinations, MaskSettings, PublicNetworkSettings, settings_of
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError, Within, check_fields
from zetadp.training.metrics import bootstrapped, mean_interval
from zetadp.training.task import Words, records_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from papers.complex_dp.reconstruction.public import PublicNetworks
    from zetadp.training.records import LabelledItems


@dataclass(frozen=True)
class Reconstruction:
    """Reconstruction of magnitude images from k-space with missing lines. The loss is the mean absolute error.

    Attributes
    ----------
    size
        Rows and columns of a slice. Larger slices are cut to their middle.
    mask
        Settings of the masks (`papers.complex_dp.reconstruction.settings.MaskSettings`).
    examinations
        Settings of simulated patients (`papers.complex_dp.reconstruction.settings.Examinations`).
    public
        Settings of the public networks (`papers.complex_dp.reconstruction.settings.PublicNetworkSettings`).
    """

    size: Annotated[int, Within(ge=16, le=1024)] = 96
    mask: Mapping[str, Any] = field(default_factory=dict)
    examinations: Mapping[str, Any] = field(default_factory=dict)
    public: Mapping[str, Any] = field(default_factory=dict)

    outputs = 1
    metric = "SSIM"
    simulates = True
    rules = Path(__file__).parents[1] / "rules/reconstruction.smk"

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fields(self)
        self.masks()
        self.common()
        settings_of(PublicNetworkSettings, self.public, "public")

    def masks(self) -> MaskSettings:
        """Return the checked settings of the masks."""
        return settings_of(MaskSettings, self.mask, "mask")

    def common(self) -> Examinations:
        """Return the checked settings of simulated patients."""
        return settings_of(Examinations, {**self.examinations, "size": self.size}, "examinations")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean absolute error of each image, in units of the volume's largest intensity."""
        return (outputs - targets).abs().mean(dim=(1, 2))

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the structural similarity of each slice."""
        import torch  # takes seconds, and every start of the workflow makes a task

        from zetadp.mri.similarity import ssim

        similarities = ssim(targets.cpu().numpy(), outputs.detach().cpu().numpy(), peak=1.0)
        return torch.from_numpy(similarities).float().to(outputs.device)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return columns of predictions, one value per slice.

        They are ``ssim``; ``error``, the sum of squared errors; ``square``, the sum of the target's squares; and
        ``pixels``, the number of pixels.
        """
        true, rebuilt = targets.cpu().double(), outputs.cpu().double()
        return {
            "ssim": self.scores(outputs, targets).cpu().numpy(),
            "error": (rebuilt - true).square().sum(dim=(1, 2)).numpy(),
            "square": true.square().sum(dim=(1, 2)).numpy(),
            "pixels": np.full(len(true), true[0].numel()),
        }

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return SSIM, NMSE and PSNR as defined by fastMRI: means over volumes, with intervals over patients.

        The targets of each volume have largest intensity one, so the squared error alone determines the PSNR.

        Raises
        ------
        UserError
            If there are no predictions, or some are not finite.
        """
        if predictions.empty or not np.isfinite(predictions["error"]).all():
            raise UserError(
                "Expected finite images of at least one volume, found none or values that are not finite. Train the "
                "run again."
            )
        volumes = predictions.groupby(["patient", "volume"])
        sums = volumes[["error", "square", "pixels"]].sum()
        frame = pd.DataFrame(
            {
                "SSIM": volumes["ssim"].mean(),
                "NMSE": sums["error"] / sums["square"],
                "PSNR": 10 * np.log10(sums["pixels"] / sums["error"].clip(lower=1e-12)),
            }
        )
        groups = frame.groupby("patient")
        patients, counts = groups.mean(), groups.size()
        metrics: dict[str, Any] = {}
        for name in frame:
            weighted = patients[name].to_numpy() * counts.to_numpy()
            low, high = mean_interval(weighted, counts.to_numpy(), stream(0, Purpose.BOOTSTRAP))
            metrics[str(name)] = float(frame[name].mean())
            metrics[f"{name}_interval"] = bootstrapped(low, high, "patients")
        return {
            "metric": self.metric,
            "items_called": "volumes",
            "images": len(frame),
            "patients": len(patients),
            **metrics,
            "per_patient": patients["SSIM"].to_dict(),
            "per_patient_images": counts.to_dict(),
            "per_patient_nmse": patients["NMSE"].to_dict(),
            "per_patient_psnr": patients["PSNR"].to_dict(),
        }

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the slices of the volumes with one role (`zetadp.training.task.PipelineTask.load`)."""
        return records_of(files, partition, role, device, names=("record", "volume", "slice"))

    def backbone(self, file: Path, device: torch.device) -> PublicNetworks:
        """Return the public networks."""
        from papers.complex_dp.reconstruction.public import PublicNetworks

        return PublicNetworks.load(file, device)

    @property
    def words(self) -> Words:
        """The texts for the model card (`zetadp.training.task.PipelineTask.words`)."""
        return Words(
            title="Reconstruction of accelerated MRI",
            about="It reconstructs images from single-coil k-space of which most lines were not measured, with data "
            "consistency.",
            inputs=f"k-space of a slice, {self.size} x {self.size}, centred, missing lines zero.",
            outputs="The magnitude image, in the scale of the input.",
            limits=(
                "A test bed for methods: its images are not for diagnosis.",
                "It can show structures that are not there, and hide some that are.",
            ),
        )
