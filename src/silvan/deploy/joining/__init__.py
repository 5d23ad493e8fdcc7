"""What a site asks of the coordinator's joining service, with proof that the keys are its own."""
