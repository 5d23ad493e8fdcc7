"""One file per question. Each prints ratios against peers measured in the same run; ``make bench`` runs them all."""
