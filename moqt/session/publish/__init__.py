"""What we publish, what the peer asked for of it, and its way out."""
