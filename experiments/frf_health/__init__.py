"""Table and figures of "Federated Random Forests can improve local performance ..." (Hauschild et al., 2022)."""
