"""The law of noise of docs/mechanisms.md, installed as a package: trained, accounted for, cited, and missing."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from commanded import mistake
from ledger_builder import EVENT, record
from mutants.stub import releases_seen
from own_package import LAW
from training_builder import CLASSES, CLASSIFICATION, TINY, records

from zetadp.account.attempts import read_ledger
from zetadp.account.book import recorded_runs
from zetadp.account.risk import Risk
from zetadp.account.statement import last_statement, total_statement
from zetadp.accounting.composition import epsilon
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.laws import installed_kind, kind_of, modules_of
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.base.workflow import code_of
from zetadp.report.riskpage import Evidence, write_risk
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import make_plan
from zetadp.training.records import items_of
from zetadp.training.settings import TrainingSettings

CITED = "Law of noise signs: Each node sends the signs of a noisy sum. Its proof: Post-processing of Gaussian noise"


@pytest.fixture(autouse=True)
def installed(monkeypatch, tmp_path) -> Path:
    """Install the package, and return its only file."""
    folder = LAW.install(tmp_path / "installed")
    with monkeypatch.context() as patches:
        patches.syspath_prepend(folder)
        yield folder / "my_laws.py"
    uninstall()


def uninstall() -> None:
    """Forget what was imported of the package."""
    installed_kind.cache_clear()
    sys.modules.pop("my_laws", None)


def trained(ledger: Path) -> None:
    """Train by the law that the page's configuration names."""
    mechanism = yaml.safe_load(LAW.blocks("yaml")[0])["training"]["mechanism"]
    nodes = (NodeConstants("a", 6, 3), NodeConstants("b", 6, 3))
    run = RunName("tiny", "federated", Target(8), 0)
    plan = make_plan(Plan(run, TINY, TrainingSettings(3, mechanism=mechanism), nodes, task=CLASSIFICATION))
    units = [items_of([[record] for record in own], CLASSES) for own in (range(6), range(6, 12))]
    train(LocalHolders(plan, records(12), units), RunFiles(ledger, ledger.with_name("checkpoint")))


def test_it_trains_and_every_page_cites_its_proof(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with releases_seen() as sent:
        trained(ledger)
    assert len(sent) == 6
    assert all(torch.equal(message.abs(), torch.ones_like(message)) for _, message in sent)

    (run,) = recorded_runs(ledger)
    assert {kind.law for kind in run.kinds} == {"signs"}
    statement, total = last_statement(read_ledger(ledger), "tiny"), total_statement([run])
    summed = {name: replace(node, kind=NoisySum(**node.kind.values())) for name, node in run.nodes.items()}
    assert statement["epsilon"] == total_statement([replace(run, nodes=summed)])["private_rows"]["epsilon"] <= 8
    assert {audience["epsilon"] for audience in statement["audiences"].values()} == {statement["epsilon"]}
    write_risk(Risk.of(ledger), tmp_path, "ledger.jsonl", Evidence())
    for text in (statement.text, total.text, (tmp_path / "risk.html").read_text()):
        assert CITED in text


def test_its_epsilon_follows_from_its_losses_where_everybody_takes_part(installed):
    """Not from the exact formula for Gaussian noise, which it inherits."""
    installed.write_text(installed.read_text() + DEARER)
    gaussian = NoisySum(1.0, 2.0)
    dearer, gaussian_with_less = epsilon({kind_of("signs").hiding(gaussian, 1): 3}, 1e-5), NoisySum(1.0, 1.0)
    assert dearer == pytest.approx(epsilon({gaussian_with_less: 3}, 1e-5), rel=1e-3)


def test_it_protects_nobody_whatever_a_ledger_declares(tmp_path):
    ledger = tmp_path / "run.jsonl"
    record(ledger, event=replace(EVENT, kind=kind_of("signs").hiding(EVENT.kind, 1)), noise="os")
    assert total_statement(recorded_runs(ledger))["guarantee"] == Risk.of(ledger).guarantee == "simulated"


def test_it_is_found_without_being_imported_and_its_module_is_its_code(installed):
    (module,) = modules_of(["gaussian", "signs"])
    assert "my_laws" not in sys.modules
    before = code_of("scripts/train_model.py", module)
    installed.write_text(installed.read_text() + "\nADDED = True\n")
    after = code_of("scripts/train_model.py", module)
    assert {file for file in after if before[file] != after[file]} == {"my_laws.py"}


def test_no_epsilon_is_computed_where_it_is_not_installed(tmp_path, monkeypatch):
    ledger = tmp_path / "run.jsonl"
    record(ledger, event=replace(EVENT, kind=kind_of("signs").hiding(EVENT.kind, 1)))
    assert recorded_runs(ledger)
    settings = TrainingSettings(3, mechanism="signs")
    plan = Plan(RunName("tiny", "central", Target(math.inf), 0), TINY, settings, (NodeConstants("a", 6, 3),)).to_json()
    uninstall()
    monkeypatch.setattr("zetadp.base.installed.entry_points", lambda group: ())
    message = r"'signs'\. Install the package that has it as an entry point in zetadp\.mechanisms\..*`make install`"
    for attempt in (
        lambda: read_ledger(ledger),
        lambda: recorded_runs(ledger),
        lambda: Plan.from_json(plan),
        lambda: modules_of(["signs"]),
    ):
        with pytest.raises(UserError, match=message) as refused:
            attempt()
        assert "damaged" not in str(refused.value)


def test_an_error_of_a_law_ends_a_command_with_its_line(tmp_path, installed, capsys):
    ledger = tmp_path / "run.jsonl"
    record(ledger, event=replace(EVENT, kind=kind_of("signs").hiding(EVENT.kind, 1)))
    uninstall()
    installed.write_text(installed.read_text() + BROKEN)
    message = mistake(capsys, "ledger", ledger)
    assert "in the package my_laws, found OwnError: no losses (line" in message
    assert f"{installed}, in losses: raise OwnError('no losses'))" in message


NO_REPLACEMENT = {
    "less noise": ("cls(**{**noisy_sum.values(), 'noise_multiplier': noisy_sum.noise_multiplier / 4})", "of epsilon"),
    "no noise": ("cls(**{**noisy_sum.values(), 'noise_multiplier': 0.0})", "of epsilon inf in place of 8"),
    "other draws": ("cls(**{**noisy_sum.values(), 'sampling_probability': 0.1})", "sampling_probability=0.1"),
    "no kind": ("None", "None for NoisySum"),
    "another law": ("NoisySum(**noisy_sum.values())", "NoisySum"),
    "a class without a name": ("type('Other', (cls,), {})(**noisy_sum.values())", "Other"),
    "an error": ("1 / 0", r"ZeroDivisionError: .* in hiding: return 1 / 0\)"),
}


@pytest.mark.parametrize("what", NO_REPLACEMENT)
def test_a_law_that_hides_less_than_its_plan_promises_releases_nothing(what, tmp_path, installed):
    other, expected = NO_REPLACEMENT[what]
    text = installed.read_text()
    installed.write_text(text.replace("cls(**noisy_sum.values())", other))
    assert installed.read_text() != text
    with pytest.raises(UserError, match=rf"law of noise signs to replace a noisy sum .* found .*{expected}"):
        trained(tmp_path / "ledger.jsonl")
    assert not (tmp_path / "ledger.jsonl").exists() or not (tmp_path / "ledger.jsonl").read_text()


def test_a_law_whose_numbers_a_ledger_would_not_hold_releases_nothing(tmp_path, installed):
    installed.write_text(installed.read_text() + "\n\nSigns.values = lambda self: NoisySum(0.5, 9.0).values()\n")
    with pytest.raises(UserError, match=r"which a ledger would hold as Signs\(.*noise_multiplier=9\.0"):
        trained(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("change", ["[:3]", ".sum()", ".double()", ".numpy()", " * math.nan", " + 0j"])
def test_a_release_that_is_not_as_the_sum_is_refused_by_the_name_of_its_law(change, tmp_path, installed):
    text = installed.read_text().replace("generator).sign()", f"generator){change}")
    installed.write_text(f"import math\n{text}")
    with pytest.raises(UserError, match=r"finite numbers of type float32 by the law of noise signs, found "):
        trained(tmp_path / "ledger.jsonl")


NOT_COMPARED = "__import__('dataclasses').field(default=1.0, compare=False)"
DEARER = """

def losses(self, interval):
    return NoisySum(self.sampling_probability, self.noise_multiplier / 2).losses(interval)


Signs.losses, Signs.dp_event, Signs.of_person = losses, Signs.dp_event, Signs.of_person
"""
BROKEN = """

class OwnError(Exception):
    pass


def losses(self, *_):
    raise OwnError('no losses')


Signs.losses, Signs.dp_event, Signs.of_person = losses, Signs.dp_event, Signs.of_person
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('    proof: ClassVar[str] = "Post', '    other: ClassVar[str] = "Post', "cite the proof"),
        ('"Each node sends the signs of a noisy sum."', '""', "describe what a node sends"),
        ("gaussian: ClassVar[bool] = False", "other: ClassVar[bool] = False", "gaussian = False"),
        ('law: ClassVar[str] = "signs"', 'law: ClassVar[str] = "gaussian"', "law = 'signs'"),
        ("def hiding", "def other", "define hiding"),
        ("@dataclass(frozen=True)\n", "", "frozen dataclass"),
        ("(frozen=True)", "(frozen=True, eq=False)", "equal to another only if all fields are"),
        ("    law: C", f"    scale: float = {NOT_COMPARED}\n    law: C", "equal to another only if all fields are"),
        ("def sample", "def losses(self, interval):\n        ...\n\n    def sample", "define dp_event and of_person"),
        ("class Signs(NoisySum)", "class Signs", "subclass of"),
        ("import NoisySum", "import Kind as NoisySum", "every abstract method"),
        ("import NoisySum", "import Absent", "cannot be imported"),
        ("@dataclass(frozen=True)\n", "1 / 0\n", r"cannot be imported: ZeroDivisionError: .*: 1 / 0\)"),
    ],
)
def test_a_law_without_what_it_must_have_is_refused(installed, old, new, expected):
    assert old in installed.read_text()
    installed.write_text(installed.read_text().replace(old, new))
    with pytest.raises(UserError, match=rf"signs.*{expected}"):
        kind_of("signs")
