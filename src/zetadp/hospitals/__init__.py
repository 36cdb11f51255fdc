"""Real federations: the coordinator, the hospitals, and what they send each other."""

import os

# Before Flower is imported: no telemetry, no question for updates, no installation of packages.
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
