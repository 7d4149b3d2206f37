"""Who may ask for what: policies, tokens and their aliases, the peer's and ours."""
