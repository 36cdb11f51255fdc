"""Write the rows that a run released, with their guarantee, to a file of their own."""

from pathlib import Path

from zetadp.base.storage import read_json
from zetadp.base.tensors import load_tensors
from zetadp.base.workflow import run
from zetadp.core.assembly import mixture_of
from zetadp.core.plan import Plan
from zetadp.core.pretrained import RELEASED
from zetadp.core.task import task_of
from zetadp.rows.file import Release, write_release


def main(*, model: Path, agreed: Path, privacy: Path, release: Path) -> None:
    """Write the release."""
    plan = Plan.read(agreed)
    tensors, content = load_tensors(model)
    task = task_of(plan.task)
    mixture = mixture_of(plan, task, int(content["inputs"]))
    examples = mixture.examples(tensors[RELEASED])
    names = getattr(task, "names", tuple(map(str, range(mixture.classes))))
    write_release(release, examples, Release(read_json(privacy), plan.to_json(), names))


if __name__ == "__main__":
    run(main)
