"""Programs of a federation of tests: a file in a node's state folder spoils what it answers."""

from __future__ import annotations

import time

from zetadp.federation import launcher
from zetadp.federation.hospital import Hospital
from zetadp.federation.masks import FreshValue
from zetadp.federation.protocol import Answer, Refusal, Request

honest = Hospital.reply


def reply(self: Hospital, request: Request, own: FreshValue | None = None) -> Answer | Refusal:
    path = self.settings.state / "fault"
    fault, several, rest = (path.read_text() if path.exists() else "").partition(" ")
    if several:
        path.write_text(rest)
    if fault == "hang":
        time.sleep(1000)
    answer = honest(self, request, own)
    if fault == "dawdle":  # after the release, before the answer
        (self.settings.state / "released").touch()
        time.sleep(1000)
    return answer


if __name__ == "__main__":
    Hospital.reply = reply
    launcher.main()
