"""downset decides when every operator of a trained network runs and where every tensor lives, and makes it so."""
