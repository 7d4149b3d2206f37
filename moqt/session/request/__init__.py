"""One request, one stream: the table of requests, and how each begins, is answered and ends."""
