"""AutoForest beside the forests that it is made of, site by site."""
