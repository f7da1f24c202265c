"""What a browser or a script reaches: pages, the JSON API and the event stream."""
