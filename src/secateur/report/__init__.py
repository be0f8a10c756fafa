"""What people look at: the terminal while a run goes on, and tables when it is done."""
