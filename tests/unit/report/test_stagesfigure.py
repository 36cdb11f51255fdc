"""The picture of the workflow's stages: every rule is in one of them, and the kept picture is the present one."""

from __future__ import annotations

import re
from pathlib import Path

from zetadp.report.figurestyle import save_svg
from zetadp.report.stagesfigure import STAGES, stages_figure

ROOT = Path(__file__).parents[3]


def words(figure) -> list[str]:
    return [text.get_text() for panel in figure.axes for text in panel.texts]


def test_every_rule_with_a_script_is_in_exactly_one_stage():
    texts = "".join(path.read_text() for path in (ROOT / "workflow/rules").rglob("*.smk"))
    rules = re.split(r"^ *(?=(?:use )?rule \w+)", texts, flags=re.MULTILINE)[1:]
    names = [re.match(r"rule (\w+):", text)[1] for text in rules if text.startswith("rule") and "script:" in text]
    assert sorted(rule for stage in STAGES for rule in stage.rules) == sorted(names)


def test_the_picture_shows_the_stages_of_these_rules_alone():
    shown = words(stages_figure(["train_model", "evaluate", "of_somebody_else"]))
    assert "Private training" in shown
    assert "train_model" in shown
    assert "Data" not in shown
    assert not any("of_somebody_else" in text for text in shown)


def test_all_words_of_the_default_task_lie_within_the_boxes():
    figure = stages_figure(
        [
            rule
            for stage in STAGES
            for rule in stage.rules
            if not re.search("clip|digit|ecg|speech|simulate_volumes", rule)
        ]
    )
    figure.canvas.draw()
    panel = figure.axes[0]
    boxes = [patch.get_window_extent() for patch in panel.patches]
    for text in panel.texts:
        if text.get_text():
            part = text.get_window_extent()
            assert any(
                box.x0 <= part.x0 and part.x1 <= box.x1 and box.y0 <= part.y0 and part.y1 <= box.y1 for box in boxes
            ), text.get_text()


def test_the_kept_picture_is_the_present_one(tmp_path):
    files = ("cohort", "kspace", "pretraining", "training", "evaluation", "tables", "audit", "tasks/brain_sequences")
    texts = [(ROOT / f"workflow/rules/{name}.smk").read_text() for name in files]
    present = tmp_path / "stages.svg"
    save_svg(stages_figure(re.findall(r"^ *rule (\w+):$", "\n".join(texts), flags=re.MULTILINE)), present)
    assert (ROOT / "docs/stages.svg").read_text() == present.read_text(), f"Copy {present} to docs/stages.svg"
