"""Releases that are written down late, seldom, or not for ever."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from mutants.checks_of_hospitals import (
    check_a_hospital_records_a_round_before_it_releases,
    check_hospitals_without_patients_send_noise,
)
from mutants.checks_of_records import (
    check_every_release_stays_counted,
    check_stopping_early_lowers_no_epsilon,
    check_the_statement_is_that_of_all_rounds_seen,
)
from mutants.installing import mutant
from zetadp.privacy import accounting, gaussian

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zetadp.privacy.events import Event, NodeHistory
    from zetadp.privacy.ledger import Attempt, Ledger


@mutant("zetadp.privacy.ledger:Ledger.record", check_a_hospital_records_a_round_before_it_releases)
def ledger_written_after_release(original: Any, self: Ledger, events: Sequence[Event]) -> None:
    # The line is written when the next round is recorded: an accountant that steps behind the optimiser.
    late = vars(self).pop("late", [])
    if late:
        # They stand in memory already, where writing adds them again.
        self.attempts[-1] = replace(self.attempts[-1], events=self.attempts[-1].events[: -len(late)])
        original(self, late)
    self.attempts[-1].add(events)
    vars(self)["late"] = list(events)


@mutant("zetadp.privacy.ledger:Ledger._append", check_a_hospital_records_a_round_before_it_releases)
def ledger_not_synced(original: Any, self: Any, content: Any, *, sync: Any = True) -> Any:
    return original(self, content, sync=False)


@mutant("zetadp.privacy.ledger:Ledger.start", check_every_release_stays_counted)
def training_anew_forgets_the_ledger(original: Any, self: Ledger, header: Mapping[str, Any], draws: Any = None) -> None:
    self._file.truncate(0)
    self._size = 0
    self._head, self.attempts = "0" * 64, []
    original(self, header, draws)


@mutant("zetadp.privacy.ledger:Attempt.releases", check_every_release_stays_counted)
def torn_line_not_counted(original: Any, self: Any) -> Any:
    return list(self.events)


@mutant("zetadp.privacy.ledger:Attempt.releases", check_every_release_stays_counted)
def repeated_round_counted_once(original: Any, self: Attempt) -> list[Event]:
    torn = original(self)[len(self.events) :]
    return [*dict.fromkeys(self.events), *torn]


@mutant("zetadp.privacy.exposure:declared", check_the_statement_is_that_of_all_rounds_seen)
def steps_counted_as_epochs(original: Any, history: NodeHistory, declared_rounds: int) -> Counter[Any]:
    found = original(history, declared_rounds)
    return Counter({kind: math.ceil(kind.sampling_probability * count) for kind, count in found.items()})


@mutant("zetadp.privacy.accounting:epsilon_pld", check_the_statement_is_that_of_all_rounds_seen)
def central_limit_quoted_as_a_bound(
    original: Any, mechanisms: Mapping[Any, int], delta: float, tolerance: float = 0.0
) -> float:
    mus = [accounting.central_limit_mu(k.sampling_probability, k.noise_multiplier, n) for k, n in mechanisms.items()]
    return gaussian.epsilon(delta, math.hypot(*mus))


@mutant("zetadp.privacy.exposure:declared", check_stopping_early_lowers_no_epsilon)
def stopping_early_thought_cheaper(original: Any, history: Any, declared_rounds: Any) -> Any:
    return original(history, 1)


@mutant("zetadp.core.round:do_round", check_hospitals_without_patients_send_noise)
def empty_round_skipped(original: Any, contribution: Any, nodes: Any, records: Any, outbox: Any, number: int) -> Any:
    if not any(len(node.mechanism.draw(number).members) for node in nodes):
        return torch.zeros(len(nodes), contribution.dimension), 0
    return original(contribution, nodes, records, outbox, number)


@mutant("zetadp.core.round:do_round", check_hospitals_without_patients_send_noise)
def empty_round_sends_noise_and_is_not_recorded(
    original: Any, contribution: Any, nodes: Any, records: Any, outbox: Any, number: int
) -> Any:
    draws = [node.mechanism.draw(number) for node in nodes]
    if not any(len(draw.members) for draw in draws):
        zero = torch.zeros(contribution.dimension)
        parts = zip(nodes, draws, strict=True)
        return torch.stack([node.mechanism._privatised(draw.event, zero, 0) for node, draw in parts]), 0
    return original(contribution, nodes, records, outbox, number)
