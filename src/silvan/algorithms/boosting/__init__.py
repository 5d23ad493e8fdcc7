"""AdaBoost across sites: BOPPID, AdaBoost.PL and MultBoost, and the stumps they vote with."""
