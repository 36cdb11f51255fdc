"""Draw the stages of the default experiment's workflow, as its report shows them.

python benchmarks/stages.py > docs/stages.svg
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from zetadp.report.figurestyle import save_svg
from zetadp.report.stagesfigure import stages_figure

RULES = Path(__file__).parents[1] / "workflow/rules"
FILES = ("cohort", "kspace", "pretraining", "training", "evaluation", "tables", "audit", "tasks/brain_sequences")


def drawn() -> str:
    """Return the picture (SVG)."""
    texts = [(RULES / f"{name}.smk").read_text() for name in FILES]
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "stages.svg"
        save_svg(stages_figure(re.findall(r"^ *rule (\w+):$", "\n".join(texts), flags=re.MULTILINE)), picture)
        return picture.read_text()


if __name__ == "__main__":
    sys.stdout.write(drawn())
