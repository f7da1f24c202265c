"""A support desk's refund agent, after the incident: it believes the order book, not the model."""
