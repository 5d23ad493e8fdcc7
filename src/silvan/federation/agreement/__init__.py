"""What sites agree on before training: one schema, how tables differ, and who holds which columns."""
