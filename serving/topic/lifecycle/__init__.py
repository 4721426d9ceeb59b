"""What becomes of what was written, and of a topic that nobody uses.

`quota` and `retention` decide, `upkeep` looks when anything else is due, `rest` unloads what nobody uses, `explain`
says it in words.
"""
