"""Files that start a site of a federation as a service: a unit for systemd, and a compose file for a container."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

UNIT = """\
# /etc/systemd/system/zetadp-{name}.service
[Unit]
Description={what} of a zetadp federation
After=network-online.target
Wants=network-online.target

[Service]
User=zetadp
WorkingDirectory=/srv/zetadp/{name}
ExecStart=/opt/zetadp/bin/zetadp federation {command}
Restart={restart}
RestartSec=30

[Install]
WantedBy=multi-user.target
"""
COMPOSE = """\
# The {name} in a container: docker compose up --detach
# FILL IN: user is the owner of this folder (id -u, id -g). {fill_in}
# Build the image from the Containerfile of zetadp: docker build --file Containerfile --tag zetadp .
# Before the first start: mkdir {folders}
"""


def service_unit(name: str, what: str, command: str, *, restart: str) -> str:
    """Return the unit of a site.

    Parameters
    ----------
    name
        Name of the site, and of its folder under ``/srv/zetadp``.
    what
        What it is, for the description.
    command
        Command of ``zetadp federation``, with its arguments.
    restart
        When systemd starts it again, such as ``always`` or ``on-failure``.
    """
    return UNIT.format(name=name, what=what, command=command, restart=restart)


def compose_file(
    name: str, command: str, *, writable: Sequence[str], data: str, port: int | None = None, restart: str
) -> str:
    """Return the compose file of a site: it can write nothing but some folders, and has no privilege.

    Parameters
    ----------
    name
        Name of the service.
    command
        Command of ``zetadp federation``, with its arguments.
    writable
        Folders beside the settings that it writes to.
    data
        Folder of images outside of the site's folder, under the same path in the container.
    port
        Port to open; None for none.
    restart
        When the container starts again, such as ``unless-stopped`` or ``on-failure``.
    """
    program, *arguments = command.split()
    service = {
        "image": "zetadp",
        "entrypoint": ["zetadp", "federation", program],
        "command": arguments,
        "user": "1000:1000",
        "working_dir": "/site",
        **({} if port is None else {"ports": [f"{port}:{port}"]}),
        "volumes": ["./:/site:ro", *(f"./{each}:/site/{each}" for each in writable), f"{data}:{data}:ro"],
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108  (in the container)
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "restart": restart,
    }
    fill_in = "The last volume is the folder of the images" + ("." if port is None else ", or is left out.")
    head = COMPOSE.format(name=name, fill_in=fill_in, folders=" ".join(writable))
    return head + yaml.safe_dump({"services": {name: service}}, sort_keys=False)
