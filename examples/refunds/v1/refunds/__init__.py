"""A support desk's refund agent, as it ran on the night of the incident."""
