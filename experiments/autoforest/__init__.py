"""AutoForest compared with the forests that it is made of, site by site."""
