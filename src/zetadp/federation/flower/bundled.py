"""What the bundle that Flower carries names as the app of nodes; it refuses to run.

Nodes of this project never load an app that a server names (`zetadp.federation.flower.worker`). A plain SuperNode would
load this one, and would have neither the hospital's plan nor its permissions.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def refuse(message: Message, context: Context) -> Message:
    """Refuse."""
    msg = "Start this node with `zetadp federation node`: a plain SuperNode knows no plan and no ledger."
    raise RuntimeError(msg)
