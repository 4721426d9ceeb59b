"""From a block to the frames that a consumer gets.

`delivery` (frames out of a block), `stretch` (small blocks as one), `block_source` (a shell: reads the topic ahead
of the dispatcher), `consumer` (one, as its session and its dispatcher see it) and `meter` (its rates).
"""
