"""Talking to a model: requests and errors, the resilient facade, the token budget, and a fake for tests."""
