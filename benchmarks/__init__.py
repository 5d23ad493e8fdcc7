"""One file per question. Each prints ratios to peers measured in the same run; ``make bench`` runs them all."""
