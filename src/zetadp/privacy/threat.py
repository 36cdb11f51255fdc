"""Threat models: against whom the quoted epsilon of a run holds, its assumptions, and what each audience sees.

``local``: the noise of every node protects its own message, and the node trusts no one else. ``secure_aggregation``:
each node adds less noise, because the server is assumed to see only the sum of the messages. No protocol that ensures
this is implemented here, so such a run is a simulation. ``central``: one trusted holder has all data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from zetadp.base.validation import one_of, positive

Threat: TypeAlias = Literal["local", "secure_aggregation", "central"]

Unit: TypeAlias = Literal["patient", "speaker", "record", "image"]
"""The unit that is drawn, clipped and hidden. The person behind a record or an image may contribute others as well."""

PERSONS = ("patient", "speaker")
"""Units that are whole persons."""

SECURE_AGGREGATION: Threat = "secure_aggregation"

CENTRAL_HOLDER = "central"
"""Name of the only node of a run with a central holder, and of the arm that has such a holder by default."""

NOTHING_HIDDEN = "None: no noise was added, and nothing is hidden from anybody."
"""Text that replaces the assumptions of a run without noise."""


def threat_of_arm(arm: str, declared: str | None) -> Threat:
    """Return the threat model of an arm: as declared, or by default central for the arm ``central``, local for others.

    Examples
    --------
    >>> threat_of_arm("federated", None), threat_of_arm("central", None), threat_of_arm("secure", "secure_aggregation")
    ('local', 'central', 'secure_aggregation')
    """
    if declared is None:
        return "central" if arm == CENTRAL_HOLDER else "local"
    one_of(("local", SECURE_AGGREGATION, "central"), threat=declared)
    return cast("Threat", declared)


def arm_shown(arm: str, threat: str) -> str:
    """Return an arm's name for tables and figures, which says that a protocol is simulated.

    Examples
    --------
    >>> arm_shown("federated", "local"), arm_shown("secure", "secure_aggregation")
    ('federated', 'secure (secure aggregation, simulated)')
    """
    return f"{arm} (secure aggregation, simulated)" if threat == SECURE_AGGREGATION else arm


def adversary(threat: Threat, colluding: int | None, nodes: int) -> str:
    """Return against whom the quoted epsilon holds, as the end of a sentence."""
    if threat == SECURE_AGGREGATION:
        return (
            f"against a server that sees nothing but the sum of the messages and colludes with at most {colluding} of "
            f"the {nodes} nodes"
        )
    return "against whoever sees every model" if threat == "central" else "against the server"


def assumptions(threat: Threat, colluding: int | None, nodes: int) -> str:
    """Return the assumptions of the quoted epsilon, in whole sentences."""
    if threat == SECURE_AGGREGATION:
        honest = nodes - (colluding or 0)
        return (
            "Secure aggregation, simulated. The server is honest but curious: it follows the rules of training, and "
            "keeps everything that it sees. It sees the sum of the messages of a round and no single message. That "
            "would need a protocol, and none is implemented here: in this run the single messages are visible. At most "
            f"{colluding} of the {nodes} nodes collude with the server or are missing; the other {honest} add their "
            f"noise, which is calibrated so that {honest} of them suffice. With fewer than {honest} messages a round "
            "would be void; in the simulation all nodes send theirs."
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


def effective_noise(
    nodes: Sequence[NodeRelease], node: int, audience: Audience, colluding: int | None = None
) -> float | None:
    r"""Return the noise multiplier that protects a patient of one node against one audience.

    An audience that receives each node's own message faces only that node's noise. A reader of the models sees only the
    average, with the noise of all nodes. Another node also sees the average, and can subtract its own message; the
    worst such node counts. A server that sees only sums is like a reader who can subtract the messages of nodes that
    collude with it: the patient's node adds :math:`B w_i / R_i` to the average, under noise of variance
    :math:`\sum_j (\sigma_j B_j w_j / R_j)^2` over the other honest nodes and itself. Figures for averages hold only if
    the nodes that they credit do add their noise.

    Parameters
    ----------
    nodes
        All nodes of the round.
    node
        Index of the patient's node.
    audience
        ``"messages"`` (whoever sees each node's message), ``"server"`` (alone or with others), ``"node"`` (one other
        node) or ``"reader"``.
    colluding
        None if the server sees each node's message. Otherwise it sees only their sum, and this number of other nodes
        reveal their messages to it. These are the nodes whose noise would have helped most.

    Returns
    -------
    The effective noise multiplier, or None for ``"node"`` where there is no other node.

    Examples
    --------
    With four equal nodes, three of them honest, each adds the noise of a single node divided by the root of three:

    >>> round(effective_noise([NodeRelease(1, 24, 2 / 3**0.5)] * 4, 0, "server", colluding=1), 12)
    2.0
    """
    one_of(("messages", "server", "node", "reader"), audience=audience)
    if colluding is not None and not 0 <= colluding < len(nodes):
        raise ValueError(f"Expected from 0 to {len(nodes) - 1} nodes that collude, found {colluding}.")
    if audience == "messages" or (audience == "server" and colluding is None):
        return nodes[node].noise_multiplier
    if audience == "node" and len(nodes) == 1:
        return None
    known = {"reader": 0, "node": 1, "server": colluding or 0}[audience]
    own = nodes[node]
    variances = [other.noise**2 for other in nodes]
    others = sorted(variance for index, variance in enumerate(variances) if index != node)
    # Weight of one patient's clipped contribution in the average.
    unit = own.clip * own.weight / own.expected
    return math.sqrt(math.fsum([variances[node], *others[: len(others) - known]])) / unit
