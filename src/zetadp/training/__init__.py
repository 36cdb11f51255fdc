"""Parts of every private training run, whatever its task: plan, records, rounds, training loop."""
