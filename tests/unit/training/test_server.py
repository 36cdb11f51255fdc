from __future__ import annotations

import pytest
import torch

from zetadp.training.server import Server
from zetadp.training.settings import OptimiserSettings


def messages(count: int, nodes: int = 3, size: int = 10, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, nodes, size, generator=torch.Generator().manual_seed(seed))


SGD = OptimiserSettings(0.3, drop_after=0.5, drop_factor=4, name="sgd", momentum=0.6, averaged=0.4)


@pytest.mark.parametrize("done", [0, 7, 12])
def test_a_server_that_took_over_a_state_goes_on_bit_by_bit(done):
    sent = messages(15)
    one = Server(torch.ones(10), SGD, 15)
    for number in range(done):
        one.step(sent[number], number)
    kept = {key: value.clone() for key, value in one.state().items()}
    other = Server(torch.zeros(10), SGD, 15)
    other.load(kept)
    for number in range(done, 15):
        one.step(sent[number], number)
        other.step(sent[number], number)
        assert torch.equal(one.weights, other.weights)
    assert all(torch.equal(value, other.state()[key]) for key, value in one.state().items())


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
