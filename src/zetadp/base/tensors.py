"""Named tensors: in safetensors files, which hold tensors and text, and a network's as one flat vector.

Reading such a file executes no code, unlike pickle.

Every file holds a digest of its content. A network in which one bit has flipped still answers, and confidently, so no
file is used whose digest does not fit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from zetadp.base.storage import written_whole
from zetadp.base.validation import UserError

FORMAT = "zetadp-1"


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of named tensors (names, types, shapes and values), in hexadecimal."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def tensors_below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> None:
    """Write tensors and a JSON object to a safetensors file, whole or not at all."""
    # safetensors' own writer leaves a temporary file of its own behind when it is killed.
    text = json.dumps(content)
    metadata = {"format": FORMAT, "content": text, "digest": _digest(tensors, text)}
    packed = save({key: value.clone() for key, value in tensors.items()}, metadata=metadata)
    with written_whole(path) as temporary:
        temporary.write_bytes(packed)


def load_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, on a device, and the JSON object that `save_tensors` wrote.

    Raises
    ------
    UserError
        If the file is missing or damaged, even in one bit, or another program wrote it.
    """
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UserError(
                    f"Expected {path} to be a file written by zetadp ({FORMAT}), found {metadata.get('format')}."
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
    except (OSError, SafetensorError) as error:
        raise UserError(f"Cannot read {path}: {error}.") from error
    text = metadata.get("content", "")
    if metadata.get("digest") != _digest(tensors, text):
        raise UserError(
            f"Expected {path} as it was written, found another content: the file is damaged, was altered, or is of an "
            "earlier version of zetadp. Copy it again, or make it again."
        )
    return tensors, json.loads(text)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the digest of everything that a file holds."""
    return hashlib.sha256(f"{tensors_digest(tensors)} {text}".encode()).hexdigest()


@dataclass(frozen=True)
class Layout:
    """The position of each parameter of a network in one flat real vector.

    Clipping, noise and the optimiser see this vector: every real and every imaginary part exactly once.

    Attributes
    ----------
    names
        Names of the parameters, in the order of the vector.
    shapes
        Shape of each parameter.
    complex
        Whether each parameter is complex. A complex number takes two neighbouring positions, real part first.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    complex: tuple[bool, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Return the layout of a network's trainable parameters, complex ones first.

        A complex view must begin at an even position of the vector, and the number of real parameters can be odd.
        """
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        named = sorted(trained, key=lambda entry: not entry[1].is_complex())
        return cls(
            names=tuple(name for name, _ in named),
            shapes=tuple(p.shape for _, p in named),
            complex=tuple(p.is_complex() for _, p in named),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of real components of each parameter."""
        return tuple(s.numel() * (2 if c else 1) for s, c in zip(self.shapes, self.complex, strict=True))

    @property
    def dimension(self) -> int:
        """Number of real components of the whole vector."""
        return sum(self.sizes)

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vector of shape (dimension,) that holds the parameters."""
        return torch.cat([self._real(parameters[name]).reshape(-1) for name in self.names])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return parameters that are views of a flat vector of shape (dimension,)."""
        parts = torch.split(vector, list(self.sizes))
        entries = zip(self.names, self.shapes, self.complex, parts, strict=True)
        return {
            name: torch.view_as_complex(part.view(*shape, 2)) if is_complex else part.view(shape)
            for name, shape, is_complex, part in entries
        }

    @staticmethod
    def _real(tensor: Tensor) -> Tensor:
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor
