"""What each request costs: its share of the seconds of steps, and its drafted tokens."""
