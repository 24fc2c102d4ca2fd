"""The distributed job: manifest rows in, committed image shards, metrics and a report out."""
