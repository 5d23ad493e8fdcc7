"""The figures of "Cross-Silo Federated Learning based Decision Trees" (Kalloori and Klingler, 2022)."""
