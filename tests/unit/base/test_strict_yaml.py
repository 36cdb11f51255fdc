"""What is written twice, or reads as another number, is refused with its lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from zetadp.base.strict_yaml import check_yaml, parse_yaml
from zetadp.base.validation import UserError
from zetadp.config.load import read_overlaid
from zetadp.hospitals.settings import HospitalSettings

ROOT = Path(__file__).parents[3]
NODE = "name: node-01\nplan: plan.json\nimages: x\nstate: s\n"
TWICE = {
    "cap: 8\nattempts: 1\ncap: 800\n": "'cap' once, found it in line 1 and in line 3",
    "privacy:\n  cap: 1\n  'cap': 8\n": "'cap' once, found it in line 2 and in line 3",
    "runs:\n  - {seeds: [0], seeds: [1]}\n": "'seeds' once, found it twice in line 2",
    "1: a\n1.0: b\n": "'1.0' once, found it in line 1 and in line 2",
    "a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n": "'<<' once, found it in line 3 and in line 4",
    "privacy:\n  <<: {cap: 800}\n  cap: 8\n": "the name of another section after '<<' in line 2",
    "cap: 1:30\n": "1:30 in line 1, which YAML reads as 90",
    "cap: 010\n": "010 in line 1, which YAML reads as 8",
    "delta: 1:00.5\n": "1:00.5 in line 1, which YAML reads as 60.5",
}


@pytest.mark.parametrize("text", TWICE)
def test_a_configuration_is_refused_with_the_lines(text, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=f"in {file}:") as refused:
        read_overlaid([file])
    assert TWICE[text] in str(refused.value)
    with pytest.raises(UserError) as checked:
        check_yaml(text, str(file))
    assert str(checked.value) == str(refused.value)


@pytest.mark.parametrize(
    "text", [*(text for text in TWICE if text.startswith("cap")), "<<: {simulation: true}\n", "a: &a {}\n<<: *a\n"]
)
def test_settings_of_a_site_are_refused(text, tmp_path):
    (tmp_path / "node.yaml").write_text(NODE + text)
    with pytest.raises(UserError, match=r"in .*node\.yaml:\n1\. Expected"):
        HospitalSettings.read(tmp_path / "node.yaml")


def test_json_is_refused_too(tmp_path):
    text = '{"name": "n", "plan": "p", "images": "x", "state": "s", "cap": 8, "cap": 800}'
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(UserError, match="Expected each key once"):
        HospitalSettings.read(tmp_path / "node.json")
    with pytest.raises(UserError, match="Expected each key once"):
        check_yaml(f"\t{text}", "a configuration")


FILES = [
    file
    for pattern in ("*.yaml", "workflow/**/*.yaml", "papers/**/*.yaml", "profiles/**/*.yaml", "envs/*.yaml")
    for file in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_of_the_project_mean_what_yaml_makes_of_them(file):
    text = file.read_text()
    assert parse_yaml(text, str(file)) == yaml.safe_load(text)
