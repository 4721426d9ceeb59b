"""Delivery: MESSAGE frames for consumers from blocks.

Read in this order:

delivery        views of blocks, and frames
coalescing      consecutive small blocks combined into one
block_source    a shell: reads the topic ahead of the dispatcher
consumer        permits, unacknowledged messages and statistics of one consumer
meter           counters and rates
"""
