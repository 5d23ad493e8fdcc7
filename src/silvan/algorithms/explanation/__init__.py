"""What a model does with columns, from sums over sites: how much each matters, and how predictions depend on one."""
