"""The forge of the tests: a file in its state folder spoils what a node answers."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from zetadp.federation.flower import processes
from zetadp.federation.flower.hospital import Hospital
from zetadp.federation.flower.protocol import Answer, Refusal, Request
from zetadp.federation.masks import FreshValue

SPOILED = {
    "nan": lambda update: np.where(np.arange(len(update)) == 3, np.float32(np.nan), update),
    "short": lambda update: update[:-1],
    "real": lambda update: update[::2],  # one number for each complex weight
    "long": lambda update: np.concatenate([update, update[:5]]),
    "double": lambda update: update.astype(np.float64),
}

honest = Hospital.reply


def reply(self: Hospital, request: Request, own: FreshValue | None = None) -> Answer | Refusal:
    path = self.settings.state / "fault"
    fault, several, rest = (path.read_text() if path.exists() else "").partition(" ")
    if several:
        path.write_text(rest)
    if fault == "hang":
        time.sleep(1000)
    if fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = honest(self, request, own)
    if fault == "dawdle":  # after the release, before the answer
        (self.settings.state / "released").touch()
        time.sleep(1000)
    if isinstance(answer, Refusal):
        return answer
    if fault not in SPOILED:
        return answer
    return replace(answer, update=SPOILED[fault](np.frombuffer(answer.update, "<f4")).tobytes())


if __name__ == "__main__":
    Hospital.reply = reply
    sys.path.insert(0, str(Path(__file__).parent))
    processes.main()
