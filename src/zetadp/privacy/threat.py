"""Threat models: against whom the quoted epsilon of a training holds, and what that assumes.

``local``: every node hides its own message; nobody else needs to be trusted. ``secure_aggregation``: nodes add less
noise each, because the server is taken to see nothing but the sum of their messages. No protocol that would make it so
is implemented here, so such a training is a simulation of one. ``central``: one trusted holder of all data.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from zetadp.validation import one_of

Threat: TypeAlias = Literal["local", "secure_aggregation", "central"]

SECURE_AGGREGATION: Threat = "secure_aggregation"

CENTRAL_HOLDER = "central"
"""Name of the one node of a training with a central holder, and of the arm that has one unless it says otherwise."""

NOTHING_HIDDEN = "None: no noise was added, and nothing is hidden from anybody."
"""What a training without noise says in place of its assumptions."""


def threat_of_arm(arm: str, declared: str | None) -> Threat:
    """Return the threat model of an arm: as declared, else central for the arm of that name and local for others.

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
    """Return an arm's name as tables and figures show it: a simulated protocol is called one wherever it appears.

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
    """Return what the quoted epsilon takes for granted, in whole sentences."""
    if threat == SECURE_AGGREGATION:
        honest = nodes - (colluding or 0)
        return (
            "Secure aggregation, simulated. The server is honest but curious: it follows the rules of training, and "
            "keeps all that it sees. It sees the sum of the messages of a round and no single one. That would take a "
            "protocol, and none is implemented here: in this training the messages lie open. At most "
            f"{colluding} of the {nodes} nodes collude with the server or are missing; the other {honest} add their "
            f"noise, which is calibrated so that {honest} of them suffice. With fewer than {honest} messages a round "
            "would be void; in the simulation all nodes send theirs."
        )
    if threat == "central":
        return (
            "One holder of all data, who is trusted with it. What is hidden is hidden from those who see the models "
            "that come out, not from the holder."
        )
    return (
        "Local noise: every node hides its own message. Neither the server nor any other node need be trusted, alone "
        "or together."
    )
