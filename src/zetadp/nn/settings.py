"""Settings of networks, in a module that does not need PyTorch, which takes seconds to import."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from zetadp.validation import in_range, one_of, positive

OWN = "own"
"""Family of a network that the user of the library brings as a PyTorch module."""
FAMILIES = ("complex", "real", "dense", "spectrogram", "unet", "real_unet", "linear", "head", OWN)
LOW_RANK = ("low_rank", "low_rank_outer")
"""Choices of ``trained`` with low-rank updates (`zetadp.nn.layers`): both factors, or the outer one."""

DESCENT = "descent"
"""Rounds of clipped gradients: the way of every network."""
CLASS_MEANS = "class_means"
LEAST_SQUARES = "least_squares"
CLOSED_FORMS = (CLASS_MEANS, LEAST_SQUARES)
"""Ways of a head: one message of every node, from which the weights follow (`zetadp.nn.closed_form`)."""
MIXED_ROWS = "mixed_rows"
"""Way of a head: every node releases rows that mix its patients, and the head learns from them."""
AT_ONCE = (*CLOSED_FORMS, MIXED_ROWS)
"""Ways that have one round."""

STUDY = "study"
FEATURES = ("features", "layers", STUDY)
"""Domains of a head: features of the last layer of something public, of all layers of the public backbone, or these
less their mean over all images of the record."""
DOMAINS = ("kspace", "image", "complex", "signal", "spectrum", *FEATURES)
DECISIONS = IMAGE, SLICE = ("image", "slice")
"""What the task of pulse sequences decides at once: an image, or the images of all sequences of a slice."""
ROWS = ("signal", "spectrum")
"""Domains of one dimension: what a network sees is a row, and not a square."""
OF_FAMILY = {
    "dense": ("complex", "image", *ROWS),
    "spectrogram": ("complex", "image"),
    "unet": ("kspace",),
    "real_unet": ("kspace",),
}
"""Domains of families that do not take every one; no other sees complex images or rows."""

SHIPPED = {
    "features": "data/backbone.safetensors",
    "layers": "data/layers.safetensors",
    STUDY: "data/study.safetensors",
}
"""Paths of the packaged backbone, relative to the package, by the domain of its features."""


@dataclass(frozen=True)
class NetworkSettings:
    """Settings that define a network.

    Attributes
    ----------
    family
        ``complex``; ``real`` (the same shape with real weights, widths times the square root of two so that it has
        about as many real numbers); ``dense`` (fully connected layers) and ``spectrogram`` (`zetadp.nn.spectral`),
        complex or real as their domain is; ``unet`` and its real twin ``real_unet`` (`zetadp.nn.unet`), which give
        images; ``linear`` (softmax regression on log magnitude); or ``head`` (a complex affine map of features).
        ``own``: the network is brought as a PyTorch module, and the other settings are of no effect.
    domain
        What it sees: whitened ``kspace``, the real ``image``, an image that is ``complex`` itself, a real ``signal``
        of one dimension, its complex ``spectrum``, ``features`` that something public computes, features of all
        ``layers`` of the public backbone, or of a ``study``: the same less their mean over all images of the record.
    widths
        Filters of each block; each block halves the image side by average pooling. Units of each hidden layer of family
        ``dense``, filters of each convolution of family ``spectrogram``, channels at each size of a U-Net.
    convolutions
        3x3 convolutions a block, each followed by group normalisation and activation.
    head
        ``hidden``: flatten, affine to ``hidden`` units, activation, affine to the classes.
        ``pooled``: global average, affine to the classes.
    hidden
        Units of the hidden layer.
    groups
        Groups of the group normalisation.
    activation
        Name of the activation of a complex network; real networks use Mish.
    transform
        ``fourier``: the inverse Fourier transform goes before the first convolution of a complex network; ``none``: the
        convolutions slide over k-space.
    components
        Features that a head takes, the first of those there are; 0 takes all.
    start
        Where the weights start from: ``random``, or ``public``, the backbone's.
    trained
        Trained weights: ``all``; ``norms``, scales and shifts of the normalisation with the head; ``low_rank``, both
        factors of an update ``U V`` of every convolution with the head; ``low_rank_outer``, the same with V as drawn;
        or the ``head``. The head of a U-Net is its last convolution and the weight of data consistency.
    rank
        Rank of the updates, where there are any.
    """

    family: str = "complex"
    domain: str = "kspace"
    widths: tuple[int, ...] = (32, 64, 128)
    convolutions: int = 2
    head: str = "hidden"
    hidden: int = 128
    groups: int = 16
    activation: str = "conj_mish"
    transform: str = "none"
    components: int = 0
    start: str = "random"
    trained: str = "all"
    rank: int = 4

    def __post_init__(self) -> None:
        """Check every setting; lists from configuration files become tuples."""
        object.__setattr__(self, "widths", tuple(self.widths))
        one_of(FAMILIES, family=self.family)
        one_of(DOMAINS, domain=self.domain)
        one_of(("hidden", "pooled"), head=self.head)
        one_of(("none", "fourier"), transform=self.transform)
        one_of(("random", "public"), start=self.start)
        one_of(("all", "norms", *LOW_RANK, "head"), trained=self.trained)
        in_range(0, 10**6, components=self.components)
        positive(convolutions=self.convolutions, hidden=self.hidden, groups=self.groups, rank=self.rank)
        if self.family == "complex" and self.domain == "image":
            raise ValueError(
                "Expected family real or linear for domain image: slices have no phase, found family complex."
            )
        if (self.family == "head") != (self.domain in FEATURES):
            raise ValueError(
                f"Expected domain {', '.join(FEATURES[:-1])} or {STUDY} for family head and for no other, found "
                f"family {self.family} with domain {self.domain}."
            )
        if self.domain not in OF_FAMILY.get(self.family, ("kspace", "image", *FEATURES)):
            shown = "; ".join(f"{family}: {', '.join(names)}" for family, names in OF_FAMILY.items())
            raise ValueError(
                f"Expected a domain of the network's family ({shown}; others: kspace, image or features), found family "
                f"{self.family} with domain {self.domain}."
            )
        if self.family != "complex" and self.transform != "none":
            raise ValueError(f"Expected transform none for family {self.family}, found {self.transform}.")
        if self.family not in {"complex", "unet", "real_unet", "head"} and self.start == "public":
            raise ValueError(
                f"Expected start random for family {self.family}: no backbone has its shape; found public."
            )
        if self.family not in {"complex", "real"} and self.trained in LOW_RANK:
            raise ValueError(
                f"Expected family complex or real for trained {self.trained}: only they have convolutions; found "
                f"{self.family}."
            )
        for width in self.widths:
            positive(width=width)
            if self.family in {"complex", "real"} and width % self.groups:
                raise ValueError(f"Expected every width to be a multiple of groups={self.groups}, found {width}.")

    def described(self) -> dict[str, Any]:
        """Return the settings that identify this network in ledgers and hashes."""
        found = asdict(self)
        if self.trained not in LOW_RANK:
            del found["rank"]  # of no effect
        return found
