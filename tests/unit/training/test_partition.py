from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zetadp.base.validation import UserError
from zetadp.training.partition import (
    SERVER,
    PartitionSettings,
    assign_patients,
    node_name,
    node_sizes,
    read_partition,
    training_data,
)


def index(train: int, test: int, records: int = 1, scanners: int = 3) -> pd.DataFrame:
    """Return the table of a cohort whose every patient has some records."""
    rows = [
        {
            "patient": f"p{number:03d}",
            "record": f"p{number:03d}-{visit}",
            "part": part,
            "scanner": f"s{number % scanners}",
        }
        for number, part in enumerate(["train"] * train + ["test"] * test)
        for visit in range(records)
    ]
    return pd.DataFrame(rows)


def spread(table: pd.DataFrame, nodes: int, watched: int, seed: int = 0, by: str = "uniform") -> pd.DataFrame:
    choice = PartitionSettings(nodes=nodes, by=by, validation_patients=watched, seed=seed)
    train = table[table["part"] == "train"].drop_duplicates("patient")
    sizes = node_sizes(choice, len(train), train["scanner"].value_counts().sort_index().tolist())
    return assign_patients(table, choice, sizes)


def as_mapping(table: pd.DataFrame) -> dict[str, tuple[str, str]]:
    return {row.record: (row.role, row.node) for row in table.itertuples()}


@settings(max_examples=40)
@given(
    nodes=st.integers(1, 6),
    extra=st.integers(0, 20),
    watched=st.integers(1, 3),
    left=st.integers(1, 5),
    records=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_patient_has_one_place_and_every_node_its_declared_number(nodes, extra, watched, left, records, seed):
    cohort = index(nodes + extra, nodes * watched + left, records)
    table = spread(cohort, nodes, watched, seed)
    assert sorted(table["record"]) == sorted(cohort["record"])
    places = table.groupby("patient")[["role", "node"]].nunique()
    assert (places == 1).all(axis=None)
    patients = table.drop_duplicates("patient").set_index("patient")
    part = cohort.drop_duplicates("patient").set_index("patient")["part"]
    assert set(patients.index[patients["role"] == "train"]) == set(part.index[part == "train"])
    counts = patients.groupby(["role", "node"]).size()
    names = [node_name(number) for number in range(nodes)]
    assert [counts["train", name] for name in names] == node_sizes(PartitionSettings(nodes), nodes + extra, None)
    assert [counts["validation", name] for name in names] == [watched] * nodes
    assert counts["test"].to_dict() == {SERVER: left}


@pytest.mark.parametrize("by", ["uniform", "scanner"])
def test_the_order_of_rows_does_not_matter(by):
    cohort = index(18, 12, records=2)
    shuffled = cohort.sample(frac=1, random_state=1)
    assert as_mapping(spread(cohort, 3, 2, by=by)) == as_mapping(spread(shuffled, 3, 2, by=by))


def test_the_seed_decides_and_nothing_else():
    cohort = index(30, 12)
    assert as_mapping(spread(cohort, 3, 2, seed=1)) == as_mapping(spread(cohort, 3, 2, seed=1))
    assert as_mapping(spread(cohort, 3, 2, seed=1)) != as_mapping(spread(cohort, 3, 2, seed=2))
    # Not by the alphabet, which may say where or when a patient was scanned.
    train = spread(cohort, 3, 2).query("role == 'train'").sort_values("patient")["node"].to_numpy()
    assert (np.diff([int(name[-2:]) for name in train]) < 0).any()


def test_by_scanner_each_node_holds_and_watches_one_scanner():
    cohort = index(20, 12)
    table = spread(cohort, 3, 2, by="scanner").merge(cohort, on=["patient", "record"])
    held = table[table["node"] != SERVER]
    assert held.groupby("node")["scanner"].nunique().tolist() == [1, 1, 1]
    assert held.groupby("scanner")["node"].nunique().tolist() == [1, 1, 1]
    assert table.query("role == 'validation'").groupby("node").size().tolist() == [2, 2, 2]
    assert table.query("role == 'train'").groupby("node").size().tolist() == [7, 7, 6]


@pytest.mark.parametrize(
    ("by", "sizes"), [("uniform", [6, 6, 5]), ("uniform", [6, 6, 7]), ("scanner", [6, 6, 7]), ("scanner", [5, 7, 6])]
)
def test_a_cohort_of_another_size_than_declared_is_refused(by, sizes):
    with pytest.raises(UserError, match=r"Expected .* as declared, found"):
        assign_patients(index(18, 12), PartitionSettings(nodes=3, by=by, validation_patients=2), sizes)


def test_a_table_is_read_as_it_was_written_and_identifiers_stay_text(tmp_path):
    table = spread(index(18, 12), 3, 2)
    table["patient"] = table["patient"].replace({"p000": "007", "p001": "NA", "p002": "1e5"})
    table.to_csv(tmp_path / "partition.csv", index=False)
    pd.testing.assert_frame_equal(read_partition(tmp_path / "partition.csv"), table, check_dtype=False)


def test_hospitals_of_declared_sizes_hold_as_many():
    choice = PartitionSettings(nodes=3, sizes=[9, 6, 3], validation_patients=0)
    sizes = node_sizes(choice, 18, None)
    table = assign_patients(index(18, 12), choice, sizes).query("role == 'train'")
    assert table.groupby("node").size().tolist() == sizes == [9, 6, 3]


def test_watching_must_leave_patients_to_test():
    with pytest.raises(UserError, match=r"more than 12 test patients .* found 12. Lower partition.validation_patients"):
        spread(index(18, 12), 3, 4)


def test_a_scanner_without_enough_test_patients_is_named():
    cohort = index(18, 12)
    cohort = cohort[(cohort["part"] == "train") | (cohort["scanner"] != "s1") | (cohort["patient"] == "p019")]
    with pytest.raises(UserError, match=r"2 test patients for validation of every scanner, found \{'s1': 1\}"):
        spread(cohort, 3, 2, by="scanner")


DATA = {
    "record": ["r1", "r2", "r3"],
    "patient": ["a", "b", "c"],
    "role": ["train", "train", "test"],
    "node": ["node-01", "node-02", "server"],
    "sha256": ["1", "2", "3"],
}


def hash_of(folder, name="run", **changed):
    content = pd.DataFrame(DATA | changed)
    content[["record", "sha256"]].to_csv(folder / "index.csv", index=False)
    content.drop(columns="sha256").to_csv(folder / "partition.csv", index=False)
    return training_data(folder / "index.csv", folder / "partition.csv", folder / f"ledgers/{name}.jsonl")


def test_the_hash_of_training_data_is_keyed_and_changes_with_these_alone(tmp_path):
    same = hash_of(tmp_path)
    assert hash_of(tmp_path, sha256=["1", "2", "changed"]) == hash_of(tmp_path, patient=["a", "b", "d"]) == same
    others = {
        hash_of(tmp_path, sha256=["1", "changed", "3"]),
        hash_of(tmp_path, patient=["a", "a", "c"]),
        hash_of(tmp_path, node=["node-02", "node-01", "server"]),
        hash_of(tmp_path, role=["train", "validation", "test"]),
        hash_of(tmp_path, name="another"),
    }
    (tmp_path / "ledgers/secret").unlink()
    assert len({same, *others, hash_of(tmp_path)}) == 7
