"""Records as numbers, as points in the unit box, and as the symbols of an encoding."""
