"""The quorum log as a small model that is searched to its end: every order of every event, within bounds.

Three or four bookies, one writer, up to two recoveries, one ledger with E = Qw = 3 and Qa = 2, and a handful of blocks
of one entry. What the parties *decide* is not written down a second time: the model drives the product's own cores
(`ledger/writer_core`, `ledger/recovery_core`, `ledger/states`) as its transition functions. What is around them, the
shells, the bookies, the metadata store and the network, is `world.py`, in the words of the rules, by their numbers.

    machines     a core as a value: frozen, compared, stepped; every (core, event) is computed once
    world        the state of everything, and its moves
    invariants   what must hold in each state
    omissions    a rule left out, one at a time, and the bounds within which that must be noticed
    search       breadth first, so that the first counter-example is a shortest one, told as a history

The network reorders at will: what is on its way is a set. It loses, too: nothing forces a message to arrive, and a
*time-out* tells the sender that it did not, while it may still arrive later. A bookie that crashes and keeps its disk
is the same as one whose messages take their time, so it needs no move. A bookie whose disk is lost has one.

What is left out of the state, and why that hides nothing:
- A recovery hears an answer in the step in which the bookie gives it. An answer that takes longer is one of two things:
  heard in time, then the recovery could as well have asked later; or too late, then it might as well be lost.
- A recovery that runs on when the ledger is closed may fence and copy, and then conflicts (15): it is over. So is the
  way of a late block to a bookie that has it or is fenced.
- A recovery's read that it no longer waits for, and a write that is confirmed, do not arrive any more. They could only
  fence what the next read fences too, or add a copy.
- The three first bookies, and the recoveries, are alike until something happens to one: the first thing happens to
  the first of them.
- Blocks have one entry each; the writer asks for no LAC by itself (rule 7), which only lets recovery begin later.
"""
