"""What we asked for, and an Object on its way in."""
