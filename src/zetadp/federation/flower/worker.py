"""Where the apps of a site run: a warm process that forks a child for every task that Flower has for it.

Flower's own way is a new Python for every task of every round, which imports everything anew, and it runs whatever
code the server sends along. Here the site's installed code is imported once, a node's patients are read once, and what
the server sends is never unpacked, let alone run.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, NoReturn

import flwr.supernode.runtime.run_clientapp as node_tasks
import httpx
import torch
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.runtime.run_serverapp import run_serverapp

import zetadp.federation.flower.server_app  # noqa: F401  (so that children find it loaded)
from zetadp.core.plan import Plan
from zetadp.dataset import pick_device
from zetadp.federation.flower.hospital import Hospital, node_app
from zetadp.federation.flower.processes import die_with_parent
from zetadp.federation.flower.pulling import ask_again_soon
from zetadp.federation.flower.settings import HospitalSettings
from zetadp.federation.flower.site_folders import load_site
from zetadp.publicstart import backbone_of, starting_weights
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.clientapp import ClientApp

logger = logging.getLogger(__name__)

POLL_SECONDS = {TaskType.CLIENT_APP: 0.1, TaskType.SERVER_APP: 1.0}
"""A node has a task every round, the server one a run."""
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def serve(runtime: str, secret: bytes, root: bytes | None, kind: TaskType, work: Callable[[str], None]) -> NoReturn:
    """Fetch tasks for ever and fork a child for each.

    Parameters
    ----------
    runtime
        Address of the runtime interface, ``host:port``.
    secret
        Shared with the process that serves it: nobody else on the machine may fetch tasks.
    root
        Certificate that its certificate must go back to; None for one without TLS on the loopback interface.
    kind
        Which tasks.
    work
        What to do with a task's token, in the child.
    """
    client = RuntimeHttpClient.from_server_address(
        server_address=runtime,
        insecure=root is None,
        root_certificates=root,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE),
        ],
    )
    while True:
        _reap()
        try:
            response = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        except httpx.HTTPError as error:
            logger.debug("no task: %s", error)
            time.sleep(1.0)
            continue
        if response.HasField("task") and response.token:
            _fork(partial(work, response.token))
        else:
            time.sleep(POLL_SECONDS[kind])


def _reap() -> None:
    """Take note of children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _fork(action: Callable[[], None]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    die_with_parent()
    code = 1
    try:
        action()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  (a child must not go on as its parent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def answer_as_node(app: ClientApp, runtime: str, token: str) -> None:
    """Do a node's task with the site's own app; what the server sent as an app is neither unpacked nor loaded."""
    vars(node_tasks).update(install_from_fab=lambda *_, **__: None, get_load_client_app_fn=lambda **_: lambda *_: app)
    node_tasks.run_clientapp(runtime, token, insecure=True, parent_pid=os.getppid())


def run_as_server(runtime: str, root: bytes, token: str) -> None:
    """Do the server's task."""
    run_serverapp(runtime, Queue(), token, insecure=False, certificates=root, parent_pid=os.getppid())


def load_hospital(path: Path) -> Hospital:
    """Read a hospital's settings, check and prepare its patients."""
    settings = HospitalSettings.read(path)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    plan = Plan.read(settings.plan)
    backbone = backbone_of(plan, settings.backbone, pick_device(settings.device))
    records, patients = load_site(
        settings.images,
        plan,
        settings.state / "images",
        part="train",
        patients=plan.nodes[plan.place(settings.name)].population // plan.units_of_a_person,
        backbone=backbone,
    )
    return Hospital(settings, plan, records, patients, starting_weights(plan.network, backbone))


def main() -> int:
    """Serve a hospital's node or the server, as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--secret", type=Path, required=True)
    site = parser.add_mutually_exclusive_group(required=True)
    site.add_argument("--hospital", type=Path)
    site.add_argument("--root", type=Path)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    ask_again_soon()
    secret = given.secret.read_bytes()
    if given.root is not None:
        root = given.root.read_bytes()
        serve(given.runtime, secret, root, TaskType.SERVER_APP, partial(run_as_server, given.runtime, root))
    try:
        app = node_app(load_hospital(given.hospital))
    except UserError as error:
        logger.error("%s", error)
        return 1
    serve(given.runtime, secret, None, TaskType.CLIENT_APP, partial(answer_as_node, app, given.runtime))
