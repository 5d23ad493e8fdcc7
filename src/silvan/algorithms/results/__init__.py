"""What sites keep of a finished study."""
