"""What every private training is made of, whatever its task: plan, records, rounds, the loop around them."""
