from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_builder import CLASSES, NETWORKS, SIZE, network, patients

from zetadp.base.tensors import Layout
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.nn import models
from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.models import NetworkSettings, build, initialise

READINGS = {
    # convolutions a block, head: complex numbers that the specification counts, with biases of convolutions
    "A8 a": (2, "hidden", 550_116),
    "A8 b": (2, "pooled", 287_844),
    "one convolution, A8 b": (1, "pooled", 93_636),
    "one convolution, A8 a": (1, "hidden", 355_908),
}


@pytest.mark.parametrize("reading", READINGS)
def test_parameters_are_as_many_as_the_specification_says_and_those_of_the_twin_about_as_many(reading):
    convolutions, head, with_biases = READINGS[reading]

    def made(family: str, domain: str) -> torch.nn.Module:
        settings = NetworkSettings(family, domain, convolutions=convolutions, head=head)
        return build(settings, 4, 32, np.random.default_rng(0))

    model = made("complex", "kspace")
    assert all(p.is_complex() for p in model.parameters())
    # The shift of the normalisation takes the place of each filter's bias.
    assert sum(p.numel() for p in model.parameters()) == with_biases - convolutions * (32 + 64 + 128)
    for domain in ("kspace", "image"):
        assert Layout.of(made("real", domain)).dimension == pytest.approx(Layout.of(model).dimension, rel=0.1)


@pytest.mark.parametrize("name", ["complex hidden", "complex pooled"])
def test_scores_are_moduli_with_finite_gradients_at_zero(name):
    model = network(NETWORKS[name], dtype=torch.float64)
    images, _ = patients(1, 6, dtype=torch.float64)
    scores = model(images[0])
    assert (scores >= 0).all()
    last = list(model.head)[-1]
    for factor, times in ((complex(math.cos(1.2), math.sin(1.2)), 1), (3, 3)):
        last.weight.data *= factor
        last.bias.data *= factor
        torch.testing.assert_close(model(images[0]), times * scores, atol=1e-12, rtol=1e-12)
    last.weight.data.zero_()
    last.bias.data.zero_()
    model(images[0]).sum().backward()
    assert all(torch.view_as_real(p.grad).isfinite().all() for p in model.parameters())


def test_the_transform_is_that_of_the_library():
    """A network behind the inverse transform sees, of k-space, the image that the library transformed."""
    settings = NETWORKS["complex fourier"]
    behind = network(settings, dtype=torch.float64)
    without = network(replace(settings, transform="none"), dtype=torch.float64)
    image = np.random.default_rng(1).standard_normal((3, 1, SIZE, SIZE)) + 0j
    torch.testing.assert_close(behind(torch.from_numpy(to_kspace(image))), without(torch.from_numpy(image)))


@pytest.mark.parametrize(("trained", "frozen"), [("all", ()), ("norms", ("blocks.0.",))])
def test_only_what_is_trained_requires_a_gradient(trained, frozen):
    model = build(replace(NETWORKS["complex fourier"], trained=trained), CLASSES, SIZE, np.random.default_rng(0))
    places = {".".join(name.split(".")[:2]) + "." for name in Layout.of(model).names}
    assert {"blocks.0.", "blocks.1.", "head.0."} - places == set(frozen)


def test_a_head_scores_the_real_part_of_an_affine_map_of_its_first_components():
    model = network(NETWORKS["head"], dtype=torch.float64)
    features = torch.randn(5, 1, 1, SIZE, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    expected = features[:, 0, 0, :3] @ model.affine.weight.T + model.affine.bias
    torch.testing.assert_close(model(features), expected.real)
    every = build(NetworkSettings("head", "features"), CLASSES, SIZE, np.random.default_rng(0))
    assert every.affine.weight.shape == (CLASSES, SIZE)
    with pytest.raises(ValueError, match="at most the 8 components"):
        build(NetworkSettings("head", "features", components=9), CLASSES, SIZE, np.random.default_rng(0))


def test_a_taper_scales_the_components_of_a_head():
    plain, tapered = (network(replace(NETWORKS["head"], taper=taper), dtype=torch.float64) for taper in (0.0, 0.5))
    features = torch.randn(5, 1, 1, SIZE, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    factors = torch.tensor([1.25**-0.5, (1 + 1.25**3 / 4) ** -0.5, (1 + 1.5**3 / 4) ** -0.5], dtype=torch.float64)
    tapered.load_state_dict(plain.state_dict())  # the factors are no weights
    plain.affine.bias.data *= factors[0]
    scaled = torch.cat((features[..., :3] * factors, features[..., 3:]), dim=-1)
    torch.testing.assert_close(tapered(features), plain(scaled), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(tapered(features), plain(features))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "complex", "taper": 1.0}, "taper 0 for family complex"),
        ({"family": "head", "domain": "features", "taper": -1.0}, "taper"),
        ({"family": "head", "domain": "features", "taper": "nois"}, "Did you mean 'noise'"),
        ({"family": "head"}, "domain features or study for family head"),
        ({"domain": "features"}, "domain kspace for family complex"),
        ({"family": "real", "transform": "fourier"}, "transform none for family real"),
        ({"family": "real", "start": "public"}, "start random for family real"),
        ({"trained": "norm"}, "Did you mean 'norms'"),
        ({"widths": (20,)}, "multiple of groups=16, found 20"),
        ({"widths": (0,)}, "widths >= 1"),
        ({"convolutions": 0}, "convolutions >= 1"),
    ],
)
def test_settings_that_make_no_network_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        NetworkSettings(**settings)


def test_images_that_cannot_be_halved_are_refused():
    for network_settings, most in ((NetworkSettings(), "3 blocks"), (NetworkSettings("unet", groups=1), "2 steps")):
        with pytest.raises(ValueError, match=f"divisible by 2 for each of {most}.*, found 18"):
            build(network_settings, CLASSES, 18, np.random.default_rng(0))
    assert build(NetworkSettings("linear"), CLASSES, SIZE + 1, np.random.default_rng(0)) is not None


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (Conv2d(20, 100, dtype=torch.complex64), 180),
        (Conv2d(20, 100, dtype=torch.float32), 180),
        (Linear(200, 100, dtype=torch.complex64), 200),
        (Linear(200, 100, dtype=torch.float32), 200),
    ],
)
def test_total_variance_of_a_weight_is_two_over_fan_in(layer, fan_in):
    initialise(layer, np.random.default_rng(0))
    weight = layer.weight.detach().flatten()
    parts = [weight.real, weight.imag] if weight.is_complex() else [weight]
    error = 5 * math.sqrt(2 / weight.numel())
    for part in parts:
        variance = float(part.double().square().mean())
        assert variance == pytest.approx(2 / fan_in / len(parts), rel=error)
        assert abs(part.mean()) < 5 * math.sqrt(variance / part.numel())
    if weight.is_complex():
        correlation = torch.corrcoef(torch.stack(parts))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(weight.numel())
    if isinstance(layer, Linear):
        assert not layer.bias.any()


def images(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Return k-space of discs in noise, of shape (image, 1, row, column)."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    discs = [np.hypot(rows - y, columns - x) < r for x, y, r in random.uniform(size / 5, size / 2, (count, 3))]
    slices = 100 * np.array(discs, dtype=np.float32) + 10 * random.random((count, size, size), dtype=np.float32)
    return torch.from_numpy(whiten(to_kspace(slices))).unsqueeze(1)


def moved_network(seed: int = 0, **changed) -> torch.nn.Module:
    """Return a network whose scales and shifts are no longer those of the start."""
    given = {"widths": (4, 8), "convolutions": 2, "head": "pooled", "groups": 2, "transform": "fourier", **changed}
    made = build(NetworkSettings(**given), 4, 16, np.random.default_rng(seed))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in made.modules():
            if hasattr(module, "shift"):
                module.scale.add_(torch.randn(module.scale.shape, dtype=module.scale.dtype, generator=generator))
                module.shift.add_(torch.randn(module.shift.shape, dtype=module.shift.dtype, generator=generator))
    return made


def in_double(model: torch.nn.Module) -> torch.nn.Module:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.complex128)
    return model


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 7),
    widths=st.sampled_from([(2,), (4, 8), (6, 4, 8)]),
    convolutions=st.integers(1, 3),
    head=st.sampled_from(["pooled", "hidden"]),
    block=st.sampled_from([1, 3000, 1 << 17]),
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_the_layers(count, widths, convolutions, head, block, seed):
    model = in_double(moved_network(seed, widths=widths, convolutions=convolutions, head=head))
    given = images(count, 16, seed).to(torch.complex128)
    expected = model(given).detach()
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(models, "UNTRAINED_BLOCK", block)
        before = given.clone()
        torch.testing.assert_close(model(given), expected, atol=1e-10, rtol=1e-10)
    assert torch.equal(given, before)


def test_numbers_whose_exponential_overflows_are_kept():
    model = moved_network()
    with torch.no_grad():
        model.blocks[1].scale.mul_(1e4)
    given = images(3, 16)
    expected = model.features(given).detach()
    with torch.no_grad():
        torch.testing.assert_close(model.features(given), expected, atol=1e-5, rtol=1e-4)
