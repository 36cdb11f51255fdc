"""Names of the ways in which a network is trained."""

DESCENT = "descent"
"""Rounds of clipped gradients: the way of every network."""
CLASS_MEANS = "class_means"
LEAST_SQUARES = "least_squares"
CLOSED_FORMS = (CLASS_MEANS, LEAST_SQUARES)
"""Ways of a head: one message of every node, from which the weights follow (`zetadp.nn.closed_form`)."""
