"""Threat models: against whom the quoted epsilon of a run holds, and what masked sums rely on.

``local``: the noise of every node protects its own message, and the node trusts no one else. ``masked_sums``: each node
adds less noise, because masks hide its message and only the sum of all messages can be read
(`zetadp.accounting.masked`). ``central``: one trusted holder has all data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias, get_args

from zetadp.base.validation import Checked, UserError, Within, one_of

Threat: TypeAlias = Literal["local", "masked_sums", "central"]

CohortUnit: TypeAlias = Literal["patient", "speaker", "record"]
"""What the units of a cohort can be: whole persons, or records, of which a person may have several."""

Unit: TypeAlias = Literal[CohortUnit, "image"]
"""The unit that is drawn, clipped and hidden. The person behind a record or an image may contribute others as well."""

PERSONS = ("patient", "speaker")
"""Units that are whole persons."""


class NoiseSource(StrEnum):
    """Source of sampling and noise: the operating system's generator, or a seed, which protects nobody."""

    SEEDED = "seeded"
    OS = "os"


NOISE_SOURCES = tuple(source.value for source in NoiseSource)
"""The sources as settings and ledgers spell them."""

MASKED_SUMS: Threat = "masked_sums"

CENTRAL_HOLDER = "central"
"""Name of the arm that has a central holder by default, and of the only node of its runs."""

NOTHING_HIDDEN = "None: no noise was added, and nothing is hidden from anybody."
"""Text that replaces the assumptions of a run without noise."""

IF_HIDDEN = "as long as masks hide single messages"
"""What an epsilon of masked sums depends on, for messages that limit it."""

LEAST_SHARES = 2
"""Fewest honest shares of noise in a sum. With one, a sum would be no better than a message with local noise."""
FARTHEST = 64
"""Standard deviations of noise for which sums have room. Larger noise has probability ``exp(-2048)``."""
MOST_CLIPS = 1 << 31
"""A sum of fewer clipping norms stays below 2**62 steps on the finest grid, whose norm is 2**31 steps."""


@dataclass(frozen=True)
class Sums(Checked):
    """What a plan with masked sums relies on. All of it is public.

    Attributes
    ----------
    colluding
        Largest number c of nodes that collude with the server, the same ones in the whole run.
    missing
        Largest number m of nodes that may be missing from a try of a round. The noise of the others must suffice,
        and at least two must be left.
    spare
        Number of tries in addition to one for each round. A try is void if a node that was named for it is missing;
        another one follows, with new draws and new noise. The noise is calibrated for all tries.
    """

    colluding: Annotated[int, Within(ge=0)] = 1
    missing: Annotated[int, Within(ge=0)] = 0
    spare: Annotated[int, Within(ge=0)] = 0

    def shares(self, nodes: int) -> int:
        """Return how many of a number of nodes are relied on to add noise.

        Raises
        ------
        UserError
            If these are fewer than two.
        """
        reliable = nodes - self.colluding - self.missing
        if reliable < LEAST_SHARES:
            raise UserError(
                f"Expected at least {LEAST_SHARES} of {nodes} nodes to be relied on for noise, found {nodes} - "
                f"{self.colluding} colluding - {self.missing} missing = {reliable}. Declare fewer, or use local noise.",
                "sums",
            )
        return reliable

    def check_room(self, people: int, share: float, nodes: int) -> None:
        """Refuse sums that might leave the range of whole numbers, whatever grid is chosen.

        Parameters
        ----------
        people
            Number of units of all nodes.
        share
            Noise of each node, in units of the clipping norm.
        nodes
            Number of nodes.
        """
        if people + FARTHEST * share * math.sqrt(nodes) >= MOST_CLIPS:
            raise UserError(
                f"Expected a sum of fewer than {MOST_CLIPS} clipping norms, found {people} units and shares of noise "
                f"of {share:g}: it might leave the range of whole numbers."
            )

    def least_members(self, nodes: int) -> int:
        """Return the fewest members that a try may have."""
        return nodes - self.missing


def check_threat(threat: Threat, nodes: int, sums: Sums | None) -> None:
    """Refuse a threat model that a number of nodes cannot have, or that does not go with what sums rely on."""
    one_of(get_args(Threat), threat=threat)
    if (threat == MASKED_SUMS) != (sums is not None):
        raise ValueError(f"Expected sums with threat {MASKED_SUMS} and with no other, found {sums}.")
    if threat == "central" and nodes != 1:
        raise ValueError(f"Expected one node with threat central, which is that of one holder, found {nodes}.")


def condition(masked: object) -> str:
    """Return what an epsilon depends on, as the end of a sentence; empty unless it counts on masks."""
    return f", {IF_HIDDEN}" if masked else ""


def arm_shown(arm: str, threat: str) -> str:
    """Return an arm's name for tables and figures, which says where only sums are read.

    Examples
    --------
    >>> arm_shown("federated", "local"), arm_shown("together", "masked_sums")
    ('federated', 'together (masked sums)')
    """
    return f"{arm} (masked sums)" if threat == MASKED_SUMS else arm


Audience: TypeAlias = Literal["server", "messages", "node", "reader"]
"""Those who see releases: the server, alone or with others; anyone who could undo all masks; another node; readers of
the models."""
