"""What sites get of a finished study: the signed model, and the record that its report is made of."""
