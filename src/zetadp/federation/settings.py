"""Settings of a federation's rounds. This module does not import PyTorch, which takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from zetadp.base.constraints import Count, OneOf, Positive, check_fields


@dataclass(frozen=True)
class Patience:
    """Rules of the server for nodes that do not answer.

    Attributes
    ----------
    missing
        ``wait``: a round is complete only with every node. ``continue``: after ``round_seconds`` the round continues
        with the nodes that answered.
    least_nodes
        With ``continue``, the fewest nodes that make a round; with fewer the server waits.
    round_seconds
        Seconds after which a round continues without the missing nodes.
    give_up_seconds
        Seconds after which the run ends with an error. It can be resumed.
    tries
        How often a node may fail in one round before it counts as missing from it.
    poll_seconds
        Seconds between two checks for new answers.
    """

    missing: Annotated[str, OneOf(("wait", "continue"))] = "wait"
    least_nodes: Count = 1
    round_seconds: Positive = 600
    give_up_seconds: Positive = 3600
    tries: Count = 3
    poll_seconds: Positive = 0.25

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)
