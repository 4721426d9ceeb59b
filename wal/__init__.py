"""Ledgers on object storage: what a write-ahead log whose journal and entry logs are objects is made of.

So far there is `probe`: what a store must offer for that.
"""
