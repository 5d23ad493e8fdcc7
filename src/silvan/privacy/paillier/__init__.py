"""Paillier encryption: keys, the cipher, packed counters, and modular arithmetic."""
