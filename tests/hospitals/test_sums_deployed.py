"""Masked sums between three real processes over TLS, with noise from the operating system and real deaths."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
from decathlon_builder import real_sample
from hospitals.consortium import Consortium
from hospitals.test_faults import wait_until

from zetadp.accounting.composition import compose, epsilon
from zetadp.cli import main
from zetadp.hospitals.demo import demo_plan
from zetadp.mri.decathlon import read_task, write_site_folder
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import make_plan, promise_of

pytestmark = pytest.mark.slow


def one_patient_each(rounds: int) -> Plan:
    """Return the plan of the demonstration with three hospitals of one real patient each."""
    demo = demo_plan()
    nodes = tuple(NodeConstants(f"node-{n + 1:02d}", 1, 1) for n in range(3))
    plan = replace(
        demo, nodes=nodes, training=replace(demo.training, rounds=rounds), simulated=False, cohort="three-real-patients"
    )
    return make_plan(plan)


class OnePatientEach(Consortium):
    """Hospitals that hold one real patient each, and so do not declare a simulation."""

    def __enter__(self):
        cohort = real_sample()
        task = read_task(cohort)
        super().__enter__()
        for name, file in zip(self.names, (*task.training, *task.test), strict=True):
            row = pd.DataFrame({"file": [str(file)], "patient": [name]})
            write_site_folder(self.images(name), cohort, row, "train")
        return self

    def settings(self, name, **changes):
        return super().settings(
            name, **{"simulation": False, "chunk": None, "attempts": 1, "answer_seconds": 0.5, **changes}
        )


def test_real_patients_pay_what_was_promised_through_the_death_of_a_node_and_of_the_server(tmp_path, capsys):
    plan = one_patient_each(rounds=4)
    with OnePatientEach(tmp_path, plan) as three:
        three.start_nodes()
        settings = three.training()
        three.spoil("node-01", "hang")
        three.spoil("node-02", "none", "none", "dawdle")  # its answers to both tries of the first round are right
        three.begin(settings)
        own = three.state("node-02") / "ledgers" / f"{plan.label}.jsonl"
        wait_until(lambda: own.exists() and '"kind": "signed"' in own.read_text(), 200)
        three.kill("node-01")
        (three.state("node-01") / "fault").unlink()
        three.start_nodes("node-01")
        wait_until((three.state("node-02") / "released").exists, 200)
        three.kill("server", "node-02")
        three.mend()
        three.start_nodes("node-02")
        three.run(three.training_again())
        found = {name: three.own_attempt(name).releases() for name in three.names}
    assert [len(own) for own in found.values()] == [4, 5, 5]
    for name, own in found.items():
        assert epsilon(compose(own), plan.delta) <= promise_of(plan, name).epsilon <= 8
        ledger = three.state(name) / "ledgers" / f"{plan.label}.jsonl"
        assert main(["verify", str(ledger), "--key", str(three.credentials.node(name)[0])]) == 0
        capsys.readouterr()
        assert main(["ledger", str(ledger), "--json"]) == 0
        stated = json.loads(capsys.readouterr().out)
        assert stated["guarantee"] == "holds"
        assert stated["private_rows"]["epsilon"] == pytest.approx(promise_of(plan, name).epsilon)
