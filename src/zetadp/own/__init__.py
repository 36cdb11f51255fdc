"""The public interface for your own networks and features: records, private training, release, and epsilon."""
