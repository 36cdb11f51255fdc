"""Attack the training code with the settings of this experiment, and compare the results with the claims."""

import logging
from pathlib import Path

from zetadp.audit.settings import AuditSettings
from zetadp.audit.suite import frame, plan, run_audits, sheet
from zetadp.audit.trainings import Audited, AuditResult
from zetadp.base.storage import write_text
from zetadp.base.validation import UserError
from zetadp.base.workflow import run
from zetadp.report.attackfigure import audit_figure
from zetadp.report.figurestyle import save_svg
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_markdown, to_text, write_table
from zetadp.training.plan import Plan
from zetadp.training.promise import make_plan

COHORT = "none, a small head and features of its own"
SEEDS = "one fixed seed an audit; exact noise has none"


def main(
    *,
    noise: list[Path],
    csv: Path,
    md: Path,
    picture: Path,
    plans: list[Plan],
    delta: float,
    noise_source: str,
    settings: AuditSettings,
    experiment: str,
    refuted: str,
    threads: int,
) -> None:
    """Write table and figure, and end in an error if a claim is refuted."""
    private = [make_plan(draft, noise) for draft in plans if draft.target.private]
    targets = targets_of(private, noise_source)
    audits = plan(targets, delta=delta, settings=settings)
    results = run_audits(audits, threads)
    content = frame(results)
    table = sheet(content, experiment)
    logging.getLogger(__name__).info("\n%s", to_text(table))
    write_table((csv, md), content, table, origin(COHORT, SEEDS))
    save_svg(audit_figure(results, experiment), picture)
    report_refuted(results, to_markdown(table), Path(refuted))


def targets_of(plans: list[Plan], noise: str) -> list[Audited]:
    """Return the mechanisms to audit: one for all runs that share sampling, noise and rounds."""
    names: dict[tuple[float, float, int], list[str]] = {}
    for draft in sorted(plans, key=lambda item: item.target.epsilon):
        run = draft.run
        if draft.sums is not None or draft.unit == "image" or draft.training.mixing is not None:
            # The audit is of one node that protects patients in its own message, with one sum per round. These runs
            # make another claim. Their noise is also so weak that the attack, which adds up rounds, may have no power
            # if few patients are drawn.
            skipped = "not audited, per image, in sums only or in rows"
            logging.getLogger(__name__).info("%s, %s: %s", run.network, run.arm, skipped)
            continue
        # The node that draws its patients most often has the largest epsilon, which the target limits.
        worst = max(draft.nodes, key=lambda node: draft.probability(node.name))
        probability = float(draft.probability(worst.name))
        mechanism = (probability, worst.noise_multiplier, draft.training.rounds)
        name = f"{run.arm} at ε = {run.target.short}"
        if name not in names.setdefault(mechanism, []):
            names[mechanism].append(name)
    return [
        Audited(
            f"training, {' and '.join(shared)}, {rounds} rounds",
            noise_multiplier=sigma,
            probability=probability,
            rounds=rounds,
            noise=noise,
        )
        for (probability, sigma, rounds), shared in names.items()
    ]


def report_refuted(results: list[AuditResult], table: str, path: Path) -> None:
    """If a claim is refuted, store the table where Snakemake does not delete it, and end in an error."""
    refuted = [result for result in results if not result.passed]
    if not refuted:
        path.unlink(missing_ok=True)
        return
    write_text(path, table)
    claims = "; ".join(
        f"{r.audited.name}: claimed {r.claim.epsilon:.3f}, shown at least {r.measured:.3f}" for r in refuted
    )
    message = (
        f"Expected attacks on the training code to show no more than is claimed, found {len(refuted)} that show more "
        f"({claims}). The code reveals more than its statements say: do not use its results on patients before the "
        f"reason is known. The table is in {path}."
    )
    raise UserError(message)


if __name__ == "__main__":
    run(main)
