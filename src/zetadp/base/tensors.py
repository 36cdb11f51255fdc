"""Tensors: their device, named tensors in safetensors files, and the parameters of a network as one flat vector.

Reading such a file executes no code, unlike pickle.

Every file holds a digest of its content. A network with one flipped bit still gives confident answers, so a file with a
wrong digest is refused.

TF32 keeps 10 bits of every factor of a product instead of float32's 23. By default PyTorch lets cuDNN use it in
convolutions. It is turned off here, and everything is float32.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from zetadp.base.storage import written_whole
from zetadp.base.validation import UserError, first_sentence

FORMAT = "zetadp-1"
WITHOUT_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
"""Types of numbers that NumPy lacks."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of glibc's ``mallopt``."""
CACHED_BYTES = 1 << 30
"""Bytes of freed memory that the process keeps."""


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of named tensors (names, types, shapes and values), in hexadecimal."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        plain = value.detach().cpu().contiguous()
        if plain.dtype in WITHOUT_NUMPY:
            plain = plain.flatten().view(torch.uint8)
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()


def fix_signs(axes: Tensor) -> Tensor:
    """Return axes, the columns of a matrix, each with the sign that makes its number of largest modulus positive.

    The sign of an eigenvector is arbitrary. The sign that a library returns depends on the last bits of its input, and
    these depend on the processor. Noise does not change sign with the axes, so without this convention equal seeds
    could train different heads.
    """
    largest = axes.abs().argmax(dim=0, keepdim=True)
    return axes * axes.gather(0, largest).sign()


def tensors_below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> None:
    """Write tensors and a JSON object to a safetensors file, whole or not at all."""
    # safetensors' own writer leaves a temporary file of its own behind when it is killed.
    text = json.dumps(content)
    metadata = {"format": FORMAT, "content": text, "digest": _digest(tensors, text)}
    content_bytes = packed(tensors, metadata)
    with written_whole(path) as temporary:
        temporary.write_bytes(content_bytes)


def packed(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return the bytes of a safetensors file; its writer takes tensors in the order of their axes only."""
    return save({key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}, metadata)


def load_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, on a device, and the JSON object that `save_tensors` wrote.

    Raises
    ------
    UserError
        If the file is missing or damaged, even in one bit, or another program wrote it.
    """
    if Path(path).is_dir():
        models = ", ".join(sorted(str(file) for file in Path(path).glob("*.safetensors")))
        advice = f" Give the file in it: {models}." if models else ""
        raise UserError(f"Expected a file of weights or other tensors, found the folder {path}.{advice}")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UserError(
                    f"Expected {path} to be a file written by zetadp ({FORMAT}), found {metadata.get('format')}."
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
    except SafetensorError as error:
        raise UserError(
            f"Cannot read {path}: it is damaged, or not a safetensors file that zetadp wrote ({error}). Check the name."
        ) from error
    except OSError as error:
        cause = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or error
        raise UserError(f"Cannot read {path}: {cause}. Check the path.") from error
    text = metadata.get("content", "")
    if metadata.get("digest") != _digest(tensors, text):
        raise UserError(
            f"Expected {path} as it was written, found another content: the file is damaged or was altered. "
            "Copy it again, or make it again."
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
        parameters = sorted(trained, key=lambda entry: not entry[1].is_complex())
        return cls(
            names=tuple(name for name, _ in parameters),
            shapes=tuple(p.shape for _, p in parameters),
            complex=tuple(p.is_complex() for _, p in parameters),
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


def pick_device(name: str) -> torch.device:
    """Return the device called ``auto`` (CUDA if there is one), ``cpu`` or ``cuda``, and turn TF32 off.

    Raises
    ------
    UserError
        If PyTorch has no such device.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.zeros(1, device=device).item()  # fails for a device without values, such as meta
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(
            f"device: Expected auto, cpu, or cuda where PyTorch has one, found {name!r}: {first_sentence(error)} Use "
            "device auto or cpu."
        ) from error
    use_float32()
    return device


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, copied in the order of the device's other work.

    Parameters
    ----------
    values
        Tensor in the processor's memory, or on the device already.
    device
        Device for the tensor. A copy to a GPU goes through page-locked memory, from which the GPU reads without the
        processor. With a plain copy the processor would wait until the GPU had finished all earlier work.

    Returns
    -------
    Tensor on the device; ``values`` itself if it is already there.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        # PyTorch would first copy a tensor with gaps to memory that is not page-locked.
        return values.contiguous().pin_memory().to(device, non_blocking=True)
    return values.to(device)


@contextmanager
def side_stream(device: torch.device) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Let other threads copy to a GPU in the block without delaying its work, and let later work wait for the copies.

    Whoever reads a copy calls `keep_until_read`, since its memory belongs to the other stream.

    Yields
    ------
    A function. A thread copies in the context that the function returns, which does nothing on other devices.
    """
    if device.type != "cuda":
        yield nullcontext
        return
    main = torch.cuda.current_stream(device)
    side = _side_stream(main.device)
    try:
        yield lambda: torch.cuda.stream(side)
    finally:
        main.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the same stream of a device each time: PyTorch keeps the freed memory of each stream apart."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # PyTorch does not annotate it


def keep_until_read(values: Tensor) -> Tensor:
    """Return values, whose memory on a GPU is not used again before the later work of this thread has read them.

    PyTorch gives freed memory to the next copy in the stream that it belongs to, which may overtake this thread's work.
    """
    if values.device.type == "cuda":
        values.record_stream(torch.cuda.current_stream(values.device))
    return values


def same_stream(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function whose contexts put other threads' work on a GPU after this thread's; elsewhere they do nothing.

    A thread begins with the default stream, whatever stream the thread that started it had chosen.
    """
    if device.type != "cuda":
        return nullcontext
    stream = torch.cuda.current_stream(device)
    return lambda: torch.cuda.stream(stream)


def index_device(inputs: Any) -> torch.device:  # noqa: ANN401  (a tensor, or looked up)
    """Return the device of positions that select items of inputs without a wait.

    It is that of a tensor. Inputs that are looked up on a disk are found by the processor, whatever device they arrive
    on.
    """
    return inputs.device if isinstance(inputs, Tensor) else torch.device("cpu")


def for_device(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return uninitialised numbers in the processor's memory, page-locked if `to_device` will copy them to a GPU."""
    if device.type == "cuda":
        return torch.empty(size, dtype=dtype, pin_memory=True)
    return torch.from_numpy(np.empty(size, str(dtype).removeprefix("torch.")))  # NumPy asks for large pages


def to_processor(values: Tensor) -> Tensor:
    """Return a tensor in the processor's memory. From a GPU it is copied into page-locked memory, which is faster."""
    values = values.detach()
    if values.device.type != "cuda":
        return values.cpu()
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)


def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of freed memory for the next allocation, for the rest of the process.

    By default glibc returns freed blocks of megabytes to the system, which must soon clear and map them again. This
    took 6 to 13 % of a training step on a CPU (measured). Peak memory stays the same. Without glibc nothing happens.

    Returns
    -------
    Whether the C library took the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, CACHED_BYTES) and mallopt(M_MMAP_MAX, 0))


def use_float32() -> None:
    """Forbid TF32 on a GPU, in convolutions and in matrix products, for the rest of the process."""
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):  # settings by name (version 2.9 or later), which must not be mixed with older ones
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        cudnn.conv.fp32_precision = "ieee"
    else:
        torch.backends.cuda.matmul.allow_tf32 = False
        cudnn.allow_tf32 = False
