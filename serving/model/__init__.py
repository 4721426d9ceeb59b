"""What topics, subscriptions and sessions know of each other. They import this folder and not one another.

Read `ports` (what each calls of the others), `positions` (the arithmetic of places in a topic), `request` (what a
SUBSCRIBE asks), `topics_pattern` (a regular expression over names), `rates` (what is counted), `tracing`
(spans of messages).
"""
