"""Fast memory with slow memory behind it: what plans move, and how far they are from a bound."""
