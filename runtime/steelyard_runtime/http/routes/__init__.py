"""One room per group of routes. A handler takes the request and, for POST, its JSON body; it returns a response."""
