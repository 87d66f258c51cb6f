"""Plans under several resources together."""
