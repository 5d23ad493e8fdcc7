"""Federations of machines: invitations, certificates, processes, and studies that go on after failures."""
