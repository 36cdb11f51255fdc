"""Threat models: against whom the quoted epsilon of a run holds, its assumptions, and what each audience sees.

``local``: the noise of every node protects its own message, and the node trusts no one else. ``masked_sums``: each node
adds less noise, because masks hide its message and only the sum of all messages can be read (`zetadp.privacy.masked`).
``central``: one trusted holder has all data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast

from zetadp.base.constraints import Within, check_fields
from zetadp.base.validation import UserError, one_of, positive

Threat: TypeAlias = Literal["local", "masked_sums", "central"]

Unit: TypeAlias = Literal["patient", "speaker", "record", "image"]
"""The unit that is drawn, clipped and hidden. The person behind a record or an image may contribute others as well."""

PERSONS = ("patient", "speaker")
"""Units that are whole persons."""

MASKED_SUMS: Threat = "masked_sums"

CENTRAL_HOLDER = "central"
"""Name of the only node of a run with a central holder, and of the arm that has such a holder by default."""

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
class Sums:
    """What a plan with masked sums relies on. All of it is public.

    Attributes
    ----------
    colluding
        Largest number c of nodes that collude with the server, the same ones in the whole run.
    missing
        Largest number m of nodes that may be missing from a try of a round.
    spare
        Number of tries in addition to one for each round. A try with a node missing that had been named is void, and
        another one follows, with new draws and new noise. The noise is calibrated for all tries.
    """

    colluding: Annotated[int, Within(ge=0)] = 1
    missing: Annotated[int, Within(ge=0)] = 0
    spare: Annotated[int, Within(ge=0)] = 0

    def __post_init__(self) -> None:
        """Check every number."""
        check_fields(self)

    def shares(self, nodes: int) -> int:
        """Return how many of a number of nodes are relied on to add noise.

        Raises
        ------
        UserError
            If these are fewer than two.
        """
        found = nodes - self.colluding - self.missing
        if found < LEAST_SHARES:
            raise UserError(
                f"Expected at least {LEAST_SHARES} of {nodes} nodes to be relied on for noise, found {nodes} - "
                f"{self.colluding} colluding - {self.missing} missing = {found}. Declare fewer, or use local noise."
            )
        return found

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


def threat_of_arm(arm: str, declared: str | None) -> Threat:
    """Return the threat model of an arm: as declared, or by default central for the arm ``central``, local for others.

    Examples
    --------
    >>> threat_of_arm("federated", None), threat_of_arm("central", None), threat_of_arm("sums", "masked_sums")
    ('local', 'central', 'masked_sums')
    """
    if declared is None:
        return "central" if arm == CENTRAL_HOLDER else "local"
    one_of(("local", MASKED_SUMS, "central"), threat=declared)
    return cast("Threat", declared)


def arm_shown(arm: str, threat: str) -> str:
    """Return an arm's name for tables and figures, which says where only sums are read.

    Examples
    --------
    >>> arm_shown("federated", "local"), arm_shown("together", "masked_sums")
    ('federated', 'together (masked sums)')
    """
    return f"{arm} (masked sums)" if threat == MASKED_SUMS else arm


def adversary(threat: Threat, sums: Sums | None) -> str:
    """Return against whom the quoted epsilon holds, as the end of a sentence."""
    if sums is not None:
        others = f", together with at most {sums.colluding} other node(s)" if sums.colluding else ""
        return f"against a server that may deviate in any way{others}, as long as the masks hide single messages"
    return "against whoever sees every model" if threat == "central" else "against the server"


def assumptions(threat: Threat, sums: Sums | None, shares: int = 0) -> str:
    """Return the assumptions of the quoted epsilon, in whole sentences.

    Parameters
    ----------
    threat, sums
        The threat model, and what masked sums rely on.
    shares
        Number of nodes that are relied on to add noise to a sum.
    """
    if sums is not None:
        return (
            f"Masked sums: every message is hidden by masks that cancel only in the sum. The server may deviate in any "
            f"way and learn all that {sums.colluding} other node(s) know, the same ones in the whole run. The keys of "
            f"the nodes have to be authentic, which each node checks by the digest of the roster that it approved. At "
            f"least {shares} nodes add independent noise to every sum; {sums.missing} may be missing. The masks cannot "
            "be told from random numbers by anyone with bounded means: this part of the claim is computational. "
            "Nothing is claimed about whether the sum is right, or whether the training comes to an end."
        )
    if threat == "central":
        return (
            "One trusted holder has all data. The guarantee is against those who see the models, not against the "
            "holder."
        )
    return (
        "Local noise: every node adds enough noise to its own message. Neither the server nor any other node has to be "
        "trusted, alone or together."
    )


Audience: TypeAlias = Literal["server", "messages", "node", "reader"]


@dataclass(frozen=True, slots=True)
class NodeRelease:
    r"""The contribution of one node to the weighted average :math:`\sum_k w_k S_k / R_k` in one round.

    Attributes
    ----------
    weight, expected
        The node's weight w and divisor R. Only ratios between nodes matter.
    noise_multiplier, clip
        The noise has standard deviation ``noise_multiplier * clip`` in each part.
    """

    weight: float
    expected: float
    noise_multiplier: float
    clip: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a node that adds nothing."""
        positive(weight=self.weight, expected=self.expected)

    @property
    def noise(self) -> float:
        """Standard deviation of the node's noise in the average, per part."""
        return self.noise_multiplier * self.clip * self.weight / self.expected if self.noise_multiplier else 0.0


def effective_noise(nodes: Sequence[NodeRelease], node: int, audience: Audience) -> float | None:
    r"""Return the noise multiplier that protects a patient of one node against one audience.

    An audience that receives each node's own message faces only that node's noise. A reader of the models sees only the
    average, with the noise of all nodes. Another node also sees the average, and can subtract its own message; the
    worst such node counts. The patient's node adds :math:`B w_i / R_i` to the average, under noise of variance
    :math:`\sum_j (\sigma_j B_j w_j / R_j)^2`. Figures for averages hold only if the nodes that they credit do add their
    noise.

    Parameters
    ----------
    nodes
        All nodes of the round.
    node
        Index of the patient's node.
    audience
        ``"messages"`` (whoever sees each node's message), ``"server"`` (alone or with others), ``"node"`` (one other
        node) or ``"reader"``.

    Returns
    -------
    The effective noise multiplier, or None for ``"node"`` where there is no other node.

    Examples
    --------
    A reader faces the noise of all four nodes:

    >>> effective_noise([NodeRelease(1, 24, 2.0)] * 4, 0, "reader")
    4.0
    """
    one_of(("messages", "server", "node", "reader"), audience=audience)
    if audience in ("messages", "server"):
        return nodes[node].noise_multiplier
    if audience == "node" and len(nodes) == 1:
        return None
    own = nodes[node]
    variances = [other.noise**2 for other in nodes]
    others = sorted(variance for index, variance in enumerate(variances) if index != node)
    # Weight of one patient's clipped contribution in the average.
    unit = own.clip * own.weight / own.expected
    credited = others[:-1] if audience == "node" else others
    return math.sqrt(math.fsum([variances[node], *credited])) / unit
