"""Bins of one byte: cells of the float line, cut points chosen from counts in them, values between cut points."""
