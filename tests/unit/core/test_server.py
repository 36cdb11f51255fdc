from __future__ import annotations

import pytest
import torch

from zetadp.core.server import Server
from zetadp.core.settings import OptimiserSettings


def messages(count: int, nodes: int = 3, size: int = 10, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, nodes, size, generator=torch.Generator().manual_seed(seed))


def test_the_flat_vector_moves_as_pytorchs_complex_parameters_do():
    start = torch.randn(5, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    server = Server(torch.view_as_real(start).flatten(), OptimiserSettings(0.01, drop_after=1), rounds=20)
    complex_weights = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.NAdam([complex_weights], lr=0.01)
    for number, sent in enumerate(messages(20)):
        server.step(sent, number)
        complex_weights.grad = torch.view_as_complex(sent.mean(dim=0).view(5, 2))
        optimiser.step()
    found = torch.view_as_complex(server.weights.detach().view(5, 2))
    torch.testing.assert_close(found, complex_weights.detach(), rtol=1e-6, atol=1e-7)
    assert (found - start).abs().min() > 1e-3


def test_nodes_weigh_the_same():
    one, other = (Server(torch.zeros(10), OptimiserSettings(), 5) for _ in range(2))
    (sent,) = messages(1)
    one.step(sent, 0)
    other.step(((sent[0] + sent[1] + sent[2]) / 3).expand(7, -1), 0)
    # NAdam hardly sees the scale of its gradient, so the gradient is looked at too.
    for server in (one, other):
        torch.testing.assert_close(server.weights.grad, (sent[0] + sent[1] + sent[2]) / 3)
    torch.testing.assert_close(one.weights, other.weights)


def test_starting_weights_are_not_shared_with_the_caller():
    start = torch.zeros(10)
    server = Server(start, OptimiserSettings(), 5)
    server.step(messages(1)[0], 0)
    assert not start.any()
    assert server.weights.detach().any()


@pytest.mark.parametrize(
    ("rounds", "after", "first_late"), [(10, 0.6, 6), (917, 0.6, 551), (5, 0.6, 3), (3, 1.0, None), (3, 0.0, 0)]
)
def test_the_rate_drops_once_after_the_declared_fraction(rounds, after, first_late):
    server = Server(torch.zeros(2), OptimiserSettings(0.5, drop_after=after, drop_factor=10), rounds)
    rates = [server.learning_rate(number) for number in range(rounds)]
    early = rounds if first_late is None else first_late
    assert rates == pytest.approx([0.5] * early + [0.05] * (rounds - early))


def test_the_dropped_rate_is_the_one_used():
    def step_size(rounds_before_drop: int) -> float:
        server = Server(torch.zeros(1), OptimiserSettings(0.1, drop_after=rounds_before_drop / 4), 4)
        before = 0.0
        for number in range(2):
            before = float(server.weights.detach())
            server.step(torch.ones(1, 1), number)
        return before - float(server.weights.detach())

    assert step_size(1) == pytest.approx(step_size(4) / 10, rel=1e-4)


SGD = OptimiserSettings(0.3, drop_after=0.5, drop_factor=4, name="sgd", momentum=0.6, averaged=0.4)


@pytest.mark.parametrize("settings", [OptimiserSettings(0.05), SGD], ids=["nadam", "sgd"])
@pytest.mark.parametrize("done", [0, 1, 7, 12])
def test_a_server_that_took_over_a_state_goes_on_bit_by_bit(done, settings):
    sent = messages(15)
    one = Server(torch.ones(10), settings, 15)
    for number in range(done):
        one.step(sent[number], number)
    kept = {key: value.clone() for key, value in one.state().items()}
    other = Server(torch.zeros(10), settings, 15)
    other.load(kept)
    for number in range(done, 15):
        one.step(sent[number], number)
        other.step(sent[number], number)
        assert torch.equal(one.weights, other.weights)
    assert one.state().keys() == other.state().keys()
    assert all(torch.equal(value, other.state()[key]) for key, value in one.state().items())


def test_loading_forgets_the_moments_of_before():
    one, other = (Server(torch.zeros(10), OptimiserSettings(), 5) for _ in range(2))
    fresh = {key: value.clone() for key, value in other.state().items()}
    one.step(messages(1)[0], 0)
    one.load(fresh)
    for server in (one, other):
        server.step(messages(1, seed=3)[0], 1)
    assert torch.equal(one.weights, other.weights)


def test_plain_steps_follow_a_running_mean_of_the_updates():
    server = Server(torch.zeros(10), OptimiserSettings(0.3, drop_after=1, name="sgd", momentum=0.6), 6)
    expected, mean = torch.zeros(10), None
    for number, sent in enumerate(messages(6)):
        server.step(sent, number)
        update = sent.mean(dim=0)
        mean = update if mean is None else 0.6 * mean + 0.4 * update
        expected -= 0.3 * mean
    torch.testing.assert_close(server.weights.detach(), expected)


@pytest.mark.parametrize(("averaged", "rounds", "last"), [(0.4, 10, 4), (0.01, 10, 1), (1.0, 5, 5), (0.0, 5, 1)])
def test_the_final_weights_are_the_average_of_the_last_rounds(averaged, rounds, last):
    settings = OptimiserSettings(0.3, drop_after=1, name="sgd", averaged=averaged)
    server, plain = (
        Server(torch.zeros(10), each, rounds) for each in (settings, OptimiserSettings(0.3, drop_after=1, name="sgd"))
    )
    passed = []
    for number, sent in enumerate(messages(rounds)):
        if number:  # until the end the average changes nothing that is trained
            assert torch.equal(server.weights, plain.weights)
        server.step(sent, number)
        plain.step(sent, number)
        passed.append(plain.weights.detach().clone())
    torch.testing.assert_close(server.weights.detach(), torch.stack(passed[-last:]).mean(dim=0))
