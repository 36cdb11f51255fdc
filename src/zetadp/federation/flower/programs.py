"""The programs of a federation: SuperLink, SuperNode and worker, and the forge, from which they are forked.

The forge is a warm process: Flower and PyTorch are imported once on a machine, not by each program. It reads one order
a line from its standard input, as JSON, and writes the number of the new process. Its children write to the same pipe
what people at the terminal should read. When its input ends, it and all its children end.

A worker runs the apps of a site: it forks a child for every task from Flower. Flower itself would start a new Python
for every task of every round, import everything again, and run any code that the server sends. A worker imports the
site's installed code once and reads a node's patients once. It never unpacks or runs code from the server.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import multiprocessing
import os
import select
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any, NoReturn

import flwr.superlink.main  # noqa: F401  (so that forks find it loaded)
import httpx
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.cli import flower_superlink
from flwr.superlink.runtime.run_serverapp import run_serverapp
from flwr.supernode.cli import flower_supernode
from flwr.supernode.runtime.run_clientapp import run_clientapp

import zetadp.federation.flower.server_app  # noqa: F401  (so that forks find it loaded)
from zetadp.base.validation import UserError
from zetadp.core.progress import wait_for_tick
from zetadp.federation.flower.hospital import Hospital, load_hospital
from zetadp.federation.flower.patches import (
    ask_again_soon,
    load_only,
    look_every,
    serve_nodes_alone_outside,
    show_life_every,
    sign_off_first,
    wait_for_the_database,
)
from zetadp.federation.flower.protocol import (
    FACTS,
    Answer,
    Reason,
    Refusal,
    Request,
    WrongEnvelopeError,
    pack_reply,
    unpack_notice,
    unpack_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from flwr.app import Context

# Not by __name__, which is __main__ in the forge: what this package logs goes to the terminal.
logger = logging.getLogger("zetadp.federation.flower.programs")

IDLE_SECONDS = 1.0
LIFE_SECONDS = 10.0
"""A node shows every few seconds that it lives; after twice this time without a sign it counts as away."""
POLL_SECONDS = {TaskType.CLIENT_APP: 0.1, TaskType.SERVER_APP: 1.0}
"""A node has a task every round, the server one a run."""
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
SET_PARENT_DEATH_SIGNAL = 1
LONGEST = 3000
"""Characters of a text for the terminal; a line of a pipe with at most 4096 bytes is never torn by another process."""


def superlink() -> None:
    """Run a SuperLink with the arguments of ``flower-superlink``, and ``--operator-secret-file``."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--operator-secret-file", type=Path, required=True)
    given, sys.argv[1:] = parser.parse_known_args()
    serve_nodes_alone_outside(given.operator_secret_file.read_bytes().hex())
    wait_for_the_database()
    flower_superlink()


def supernode() -> None:
    """Run a SuperNode with the arguments of ``flower-supernode``, and those below.

    It connects when the file ``--after`` is there, which the node's worker makes when it has read and checked the
    patients. So a node that is connected can answer.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    parser.add_argument("--memory", type=Path)
    parser.add_argument("--after", type=Path)
    given, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    while given.after is not None and not given.after.exists():
        time.sleep(0.05)
    look_every(given.idle_seconds)
    show_life_every(LIFE_SECONDS)
    ask_again_soon()
    if given.memory is not None:
        sign_off_first(given.memory, lambda: logger.info("connected to the server; waiting for requests"))
    flower_supernode()


def serve(runtime: str, secret: bytes, root: bytes | None, kind: TaskType, work: Callable[[str], None]) -> NoReturn:
    """Fetch tasks for ever and fork a child for each.

    Parameters
    ----------
    runtime
        Address of the runtime interface, ``host:port``.
    secret
        Shared with the process that serves it, so that no other user of the machine can fetch tasks.
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
    if not os.fork():
        _end_after(action)


def node_app(hospital: Hospital) -> ClientApp:
    """Return the app of a hospital's node."""
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        begun = time.monotonic()
        try:
            request = unpack_request(message.content)
        except WrongEnvelopeError as error:
            logger.warning("not a request: %s", error)
            reply: Answer | Refusal = hospital.refuse(MALFORMED, Reason.PLAN)
        else:
            reply = computed(hospital, request)
            if isinstance(reply, Answer):
                hospital.report(reply.round)
        wait_for_tick(begun, hospital.settings.answer_seconds)
        return Message(pack_reply(reply), reply_to=message)

    @app.query()
    def notice(message: Message, context: Context) -> Message:
        try:
            hospital.notice(unpack_notice(message.content))
        except WrongEnvelopeError as error:
            logger.warning("not a notice: %s", error)
        return Message(RecordDict({FACTS: ConfigRecord()}), reply_to=message)

    return app


MALFORMED = Request(plan="", attempt="", round=0, checkpointed=0, head="", weights=b"")


def computed(hospital: Hospital, request: Request) -> Answer | Refusal:
    """Return the hospital's reply, computed in a child that is ended when its time is up."""
    forking = multiprocessing.get_context("fork")
    receiver, sender = forking.Pipe(duplex=False)
    child = forking.Process(target=_compute, args=(hospital, request, sender), daemon=True)
    child.start()
    sender.close()
    try:
        if receiver.poll(hospital.settings.limit_seconds):
            reply: Answer | Refusal = receiver.recv()
            return reply
        logger.error("round %d took longer than %g s", request.round + 1, hospital.settings.limit_seconds)
        return hospital.refuse(request, Reason.TIME)
    except EOFError:
        logger.error("round %d: the computation died", request.round + 1)
        return hospital.refuse(request, Reason.FAILED)
    finally:
        receiver.close()
        child.kill()
        child.join()


def _compute(hospital: Hospital, request: Request, sender: Connection) -> None:
    die_with_parent()
    torch.set_num_threads(hospital.settings.threads or os.cpu_count() or 1)
    sender.send(hospital.reply(request))


def answer_as_node(app: ClientApp, runtime: str, token: str) -> None:
    """Do a node's task with the site's own app; what the server sent as an app is neither unpacked nor loaded."""
    load_only(app)
    run_clientapp(runtime, token, insecure=True, parent_pid=os.getppid())


def run_as_server(runtime: str, root: bytes, token: str) -> None:
    """Do the server's task."""
    run_serverapp(runtime, Queue(), token, insecure=False, certificates=root, parent_pid=os.getppid())


def worker() -> int:
    """Serve a hospital's node or the server, as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--secret", type=Path, required=True)
    site = parser.add_mutually_exclusive_group(required=True)
    site.add_argument("--hospital", type=Path)
    site.add_argument("--root", type=Path)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--ready", type=Path, help="made when the patients are read and checked")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    ask_again_soon()
    secret = given.secret.read_bytes()
    if given.root is not None:
        root = given.root.read_bytes()
        serve(given.runtime, secret, root, TaskType.SERVER_APP, partial(run_as_server, given.runtime, root))
    try:
        app = node_app(load_hospital(given.hospital, given.key))
    except UserError as error:
        logger.critical("The node of %s cannot take part: %s", given.hospital, error)
        return 1
    given.ready.touch()
    serve(given.runtime, secret, None, TaskType.CLIENT_APP, partial(answer_as_node, app, given.runtime))


PROGRAMS: Mapping[str, Callable[[], int | None]] = {"superlink": superlink, "supernode": supernode, "worker": worker}


class ForTheTerminal(logging.Handler):
    """Writes what this package logs to the forge's pipe, for people at the terminal.

    A line that finds the pipe full is left out: nobody reads, and a node must not wait for that. The log has it.

    Parameters
    ----------
    name
        Name of the process.
    pipe
        Descriptor of the pipe.
    """

    def __init__(self, name: str, pipe: int) -> None:
        super().__init__(logging.INFO)
        self.process, self.pipe = name, pipe

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line."""
        news = {"name": self.process, "level": record.levelname, "text": record.getMessage()[:LONGEST]}
        if select.select([], [self.pipe], [], 0)[1]:
            os.write(self.pipe, f"{json.dumps(news)}\n".encode()[-4096:])


def main() -> None:
    """Run the forge: fork what is ordered until the input ends."""
    die_with_parent()
    # The kernel takes note of children that end; each child has this set back for its own children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        process = os.fork()
        if not process:
            _end_after(partial(_obey, order))
        os.write(sys.stdout.fileno(), f"{json.dumps({'name': order['name'], 'started': process})}\n".encode())


def _obey(order: Mapping[str, Any]) -> int | None:
    """Run the program of an order in this process, a session of its own that writes its own log."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    logging.getLogger("zetadp").addHandler(ForTheTerminal(order["name"], os.dup(sys.stdout.fileno())))
    logging.getLogger("zetadp").setLevel(logging.INFO)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.argv = [f"flower-{order['program']}", *order["arguments"]]
    return PROGRAMS[order["program"]]()


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _end_after(action: Callable[[], int | None]) -> NoReturn:
    """Do what this child was forked for, then end it."""
    code = 1
    try:
        die_with_parent()
        code = action() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  (a child must not go on as its parent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
