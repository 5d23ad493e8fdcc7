"""Secure aggregation: sums over sites that reveal no site's part."""
