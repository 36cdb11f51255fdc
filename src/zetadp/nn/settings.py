"""Settings of networks. This module does not import PyTorch, which takes seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from zetadp.base.validation import Count, Filled, OneOf, Within, check_fields, in_range, one_of

OWN = "own"
"""Family of the user's own networks, which are PyTorch modules."""

DESCENT = "descent"
"""Estimator for every network: rounds of clipped gradients."""
CLASS_MEANS = "class_means"
"""Estimator for a head: every node sends one message, and the weights follow from them (`zetadp.nn.class_means`)."""
MIXED_ROWS = "mixed_rows"
"""Estimator for a head: every node releases rows that mix its patients, and the head is trained on them."""
AT_ONCE = (CLASS_MEANS, MIXED_ROWS)
"""Estimators that have one round."""

STUDY = "study"
FEATURES = ("features", STUDY)
"""Domains of a head: features of the last layer of a public network, or features of all layers of the public backbone
minus their mean over all images of the record."""
DOMAINS = ("kspace", "image", "complex", "signal", "spectrum", *FEATURES)
BY_NOISE = "noise"
"""Taper of a head that follows from the noise of the plan."""
ONE_DIMENSION = ("signal", "spectrum")
"""Domains in which the input of a network is a sequence of values, not a square image."""
_BLOCKS = ("widths", "convolutions", "groups", "head", "trained", "hidden")
_UNET = (("kspace",), ("widths", "convolutions", "activation", "start", "trained"))
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "complex": (("kspace",), (*_BLOCKS, "activation", "transform", "start")),
    "real": (("kspace", "image"), _BLOCKS),
    "dense": (("complex", "image", *ONE_DIMENSION), ("widths", "activation")),
    "spectrogram": (("complex", "image"), ()),
    "unet": _UNET,
    "real_unet": _UNET,
    "linear": (("kspace", "image"), ()),
    "head": (FEATURES, ("components", "start", "taper")),
    OWN: (("kspace", "image"), ()),
}
"""Domains of each family, and the names of the settings that model cards show."""
UNUSED = {"transform": "none", "start": "random", "taper": 0}
"""Values of settings in families that do not use them."""


@dataclass(frozen=True)
class NetworkSettings:
    """Settings that define a network.

    Attributes
    ----------
    family
        ``complex``; ``real`` (its twin: real weights, and widths times the square root of two, so that it has about as
        many real numbers); ``dense`` (fully connected layers) and ``spectrogram`` (`zetadp.nn.spectral`), which are
        complex if their domain is; ``unet`` and its twin ``real_unet`` (`zetadp.nn.unet`), whose outputs are images;
        ``linear`` (softmax regression on log magnitude); ``head`` (the last layer alone: a complex affine map
        of features); or ``own``, the user's PyTorch module, for which the other settings have no effect.
    domain
        Inputs: whitened ``kspace``; the real ``image``; an image that is itself ``complex``; a real ``signal`` of one
        dimension, or its complex ``spectrum``; public ``features``; or features of a ``study``, which are those of all
        layers of the public backbone minus their mean over all images of the record.
    widths
        Filters of each block; each block halves the image side by average pooling. For family ``dense``, units of each
        hidden layer; for ``spectrogram``, filters of each convolution; for a U-Net, channels at each size.
    convolutions
        Number of 3x3 convolutions in a block, each followed by normalisation and activation.
    head
        The last layers of the other families. ``hidden``: flatten, affine to ``hidden`` units, activation, affine to
        the classes. ``pooled``: global average, affine to the classes.
    hidden
        Units of the hidden layer.
    groups
        Groups of the group normalisation.
    activation
        Name of the activation of a complex network. Real networks have a fixed one.
    transform
        ``fourier``: the inverse Fourier transform comes before the first convolution of a complex network; ``none``:
        the convolutions act on k-space.
    components
        Number of components that a head takes, counted from the first; 0 takes all.
    taper
        Noise of all rounds relative to the signal in a head's first component. A head multiplies its
        component i, counted from 0, by ``(1 + taper**2 * (1 + i / 4) ** 3) ** -0.5``, and its bias by the factor of
        component 0 (`taper_factors`). Gradients and noise of the last components then move the scores
        less. ``noise``: the number follows from the noise of the plan. 0 changes nothing.
    start
        Starting weights: ``random``, or ``public`` for those of the backbone.
    trained
        Trained weights: ``all``, or the head together with scales and shifts of the normalisation (``norms``). The
        head of a U-Net is its last convolution and the weight of data consistency.
    """

    family: Annotated[str, OneOf(tuple(FAMILIES))] = "complex"
    domain: Annotated[str, OneOf(DOMAINS)] = "kspace"
    widths: Annotated[tuple[Annotated[int, Within(ge=1, le=2**16)], ...], Filled()] = (32, 64, 128)
    convolutions: Count = 2
    head: Annotated[str, OneOf(("hidden", "pooled"))] = "hidden"
    hidden: Count = 128
    groups: Count = 16
    activation: str = "conj_mish"
    transform: Annotated[str, OneOf(("none", "fourier"))] = "none"
    components: Annotated[int, Within(ge=0, le=10**6)] = 0
    taper: float | str = 0
    start: Annotated[str, OneOf(("random", "public"))] = "random"
    trained: Annotated[str, OneOf(("all", "norms"))] = "all"

    def __post_init__(self) -> None:
        """Check every setting; lists from configuration files become tuples."""
        object.__setattr__(self, "widths", tuple(self.widths))
        check_fields(self)
        if isinstance(self.taper, str):
            one_of((BY_NOISE,), taper=self.taper)
        else:
            in_range(0, 1e6, taper=self.taper)
        domains, names = FAMILIES[self.family]
        if self.domain not in domains:
            raise ValueError(f"Expected domain {' or '.join(domains)} for family {self.family}, found {self.domain}.")
        for name, unused in UNUSED.items():
            if name not in names and getattr(self, name) != unused:
                raise ValueError(
                    f"Expected {name} {unused} for family {self.family}, which has no other, found "
                    f"{getattr(self, name)}."
                )
        for width in self.widths:
            if self.family in {"complex", "real"} and width % self.groups:
                raise ValueError(f"Expected every width to be a multiple of groups={self.groups}, found {width}.")

    @property
    def used(self) -> list[str]:
        """Names of the settings that a network of this family uses."""
        unused = {"hidden"} if self.head == "pooled" else set()
        if not self.taper:
            unused.add("taper")
        if self.family == "dense" and self.domain not in {"complex", "spectrum"}:
            unused.add("activation")
        return ["family", "domain", *(name for name in FAMILIES[self.family][1] if name not in unused)]

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON object, which identifies this network in ledgers and hashes.

        Only a network with a taper has this key.
        """
        settings = {**asdict(self), "widths": list(self.widths)}
        if not self.taper:
            del settings["taper"]
        return settings
