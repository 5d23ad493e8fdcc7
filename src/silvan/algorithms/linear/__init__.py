"""Linear and logistic regression of columns that stay with their parties."""
