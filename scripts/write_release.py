"""Write the rows that a run released, with their guarantee, to a file of their own."""

from pathlib import Path

from zetadp.base.storage import read_json
from zetadp.base.tensors import load_tensors
from zetadp.base.workflow import run
from zetadp.own.rows import write_release
from zetadp.training.plan import Plan
from zetadp.training.pretrained import RELEASED


def main(*, model: Path, agreed: Path, privacy: Path, release: Path) -> None:
    """Write the release."""
    tensors, content = load_tensors(model)
    write_release(release, tensors[RELEASED], Plan.read(agreed), int(content["inputs"]), read_json(privacy))


if __name__ == "__main__":
    run(main)
