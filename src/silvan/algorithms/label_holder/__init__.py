"""What the label holder of a federation by columns does with scores of rows: it judges them, or keeps predictions."""
